"""Validation of tensor maps and of their arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from aot_runtime import BundleError
from aot_runtime.bundle.reading import bundle_id, read_index
from aot_runtime.call.choosing import mapped_tensors
from aot_runtime.call.planner import Planner
from aot_runtime.contract import records
from aot_runtime.contract.index_encoding import encode_index
from aot_runtime.contract.layout import Layout, make_layout
from aot_runtime.contract.records import TensorMap
from aot_runtime.contract.tensor_maps import Mapped, mapped, unmappable
from tests.support.sample_index import sample_index

GOOD = TensorMap("float16", (0, 1), (64, 64), 128)


def array(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str = "float16", aligned: bool = True) -> Layout:
    return make_layout(("cuda", 0), dtype, shape, strides, aligned)


def test_numbers_of_a_map():
    layout = array((7, 3, 1, 64), (64, 448, 5, 1))
    assert mapped(TensorMap("float16", (1, 2, 0, 3), (1, 1, 8, 64)), layout) == Mapped((3, 1, 7, 64), (896, 16, 128))


@pytest.mark.parametrize(
    ("layout", "faults"),
    [
        (array((5, 64), (64, 1)), 0),
        (array((5, 1), (8, 3)), 0),
        (array((1, 64), (-3, 1)), 0),
        (array((2**31 - 1, 64), (2**31, 1)), 0),
        (array((5, 64), (64, 1), aligned=False), 1),
        (array((5, 64), (68, 1)), 1),
        (array((5, 64), (68, 1), "float32"), 0),
        (array((5, 64), (8, 1), "float8_e4m3fn"), 1),
        (array((5, 64), (0, 1)), 0),
        (array((5, 64), (-64, 1)), 1),
        (array((5, 64), (2**39, 1)), 1),
        (array((0, 64), (64, 1)), 1),
        (array((2**31, 64), (64, 1)), 1),
    ],
)
def test_what_there_is_no_map_of(layout: Layout, faults: int):
    assert len(list(unmappable("x", layout, 1))) == faults


def with_map(tensor_map: TensorMap | None = GOOD, arch: str = "sm_90", aligned: bool = True, **fields: Any) -> Any:
    """Return an index whose first variant of that specialisation takes a map of x; `fields` are the kernarg's own."""
    index = sample_index(arch, "cuda" if arch.startswith("sm") else "hip")
    at, variant = next((i, v) for i, v in enumerate(index.variants) if v.aligned == aligned and v.op == "reduce")
    args = [arg for arg in variant.kernargs if arg.offset >= 8]
    moved = [msgspec.structs.replace(arg, offset=arg.offset + 128) for arg in args]
    x = {"type": "tensormap", "offset": 0, "size": 128, "value": "x", "map": tensor_map} | fields
    changed = msgspec.structs.replace(
        variant, kernargs=(records.Kernarg("x", **x), *moved), kernarg_bytes=variant.kernarg_bytes + 128
    )
    variants = (*index.variants[:at], changed, *index.variants[at + 1 :])
    index = msgspec.structs.replace(index, variants=variants)
    return msgspec.structs.replace(index, id=bundle_id(encode_index(index)))


def reread(index: records.Index, folder: Path) -> records.Index:
    (folder / records.INDEX).write_bytes(encode_index(index))
    return read_index(folder)


def test_an_index_with_a_map(tmp_path: Path):
    """It is read as written. A variant that takes the map asks for what that needs, and no other does."""
    index = with_map()
    assert reread(index, tmp_path).variants == index.variants
    op = next(op for op in index.ops if op.name == "reduce")
    variants = [variant for variant in index.variants if variant.op == op.name]
    assert [*mapped_tensors(variants).values()] == [("x",)]
    broadcast, reversed_rows = (array((4, 64), (step, 1), op.dtypes["T"][0]) for step in (0, -64))
    rules = Planner(op, variants, "cuda")._rules
    assert [*rules.unmappable("x", broadcast)] == []
    assert [*rules.unmappable("x", reversed_rows)] == [
        "stride -64 of 'x' in dim 0 is -128 bytes; a tensor map has multiples of 16 from 0 to 2**40",
    ]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (with_map(arch="gfx942"), "is not a valid tensor map: it is of 'x', in a variant for gfx942 that is aligned"),
        (with_map(aligned=False), "in a variant for sm_90 that is general"),
        (with_map(value="y"), "it is of 'y', in a variant"),
        (with_map(None), "is 'tensormap' of 128 bytes"),
        (with_map(size=64), "is 'tensormap' of 64 bytes"),
        (with_map(type="*float16", size=8), "is '*float16' of 8 bytes"),
        (with_map(TensorMap("float64", (0, 1), (64, 64))), "its elements are float64"),
        (with_map(TensorMap("int8", (0, 1), (64, 64))), "its elements are int8"),
        (with_map(TensorMap("float16", (0, 2), (64, 64))), "its dims are [0, 2]"),
        (with_map(TensorMap("float16", (0, 1), (64,))), "its dims are [0, 1], and its box is [64]"),
        (with_map(TensorMap("float16", (0, 1), (0, 64))), "its box is [0, 64] of float16"),
        (with_map(TensorMap("float16", (0, 1), (512, 64))), "its box is [512, 64] of float16"),
        (with_map(TensorMap("float16", (0, 1), (64, 4))), "its box is [64, 4] of float16"),
        (with_map(TensorMap("float16", (0, 1), (64, 128), 128)), "rows of 256 bytes are swizzled by 128"),
        (with_map(TensorMap("float16", (0, 1), (64, 8), 16)), "rows of 16 bytes are swizzled by 16"),
    ],
)
def test_maps_that_a_reader_refuses(index: records.Index, message: str, tmp_path: Path):
    with pytest.raises(BundleError) as raised:
        reread(index, tmp_path)
    assert message in str(raised.value)
