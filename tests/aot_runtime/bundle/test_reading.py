"""The index and its files are checked when they are read: each fault is a `BundleError` that describes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aot_runtime import BundleError
from aot_runtime.bundle.reading import bundle_id, read_index
from aot_runtime.contract.index_encoding import encode_index
from aot_runtime.contract.index_file import decode_index
from tests.support.forging import edit_index
from tests.support.sample_index import sample_index

Edit = Callable[[dict[str, Any]], Any]


def variant(**fields: Any) -> Edit:
    return lambda index: index["variants"][0].update(fields)


def kernarg(position: int, **fields: Any) -> Edit:
    return lambda index: index["variants"][0]["kernargs"][position].update(fields)


def case(**fields: Any) -> Edit:
    return lambda index: index["selftest"][0].update(fields)


def vectors(file: str, size: int = 1) -> Edit:
    return case(vectors={"file": file, "size": size, "sha256": ""})


def again(what: str) -> Edit:
    return lambda index: index[what].append(index[what][0])


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda index: index.update(oldest_reader=3), "needs a reader of format 3; this one reads up to 2: install a "),
        (lambda index: index.update(format=1), "is of format 1, and this reader reads 2 and later: build the bundle a"),
        (lambda index: index.update(oldest_reader=None), "is not a bundle index"),
        (lambda index: index.pop("variants"), "missing required field `variants`"),
        (lambda index: index["target"].update(arch="gfx9999"), "no architecture is 'gfx9999'"),
        (lambda index: index["target"].update(warp_size=32), "and 32 lanes a wave"),
        (again("ops"), "an op is listed twice"),
        (variant(op="nothing"), "is of op 'nothing', which the index does not have"),
        (variant(launch=7), "is of a launch that does not exist"),
        (variant(launch=-1), "is of a launch that does not exist"),
        (variant(code="f" * 16), "and code object 2: there are "),
        (variant(config=9), "is not on the op's axes"),
        (lambda index: index["variants"][0]["axis_values"].pop("T"), "is not on the op's axes"),
        (variant(num_warps=65), "launch parameters of 'reduce_rows' are out of range"),
        (variant(num_warps=0), "out of range"),
        (variant(warp_size=16), "out of range"),
        (variant(lds_bytes=-1), "out of range"),
        (variant(cooperative=True), "needs a cooperative launch"),
        (variant(kernarg_bytes=8), "kernargs of 'reduce_rows' need "),
        (variant(kernarg_bytes=1 << 20), "the segment has 1048576"),
        (kernarg(1, offset=4), "overlaps another"),
        (kernarg(0, offset=-8), "overlaps another"),
        (kernarg(0, size=4), "is '*float16' of 4 bytes"),
        (kernarg(0, type=""), "is '' of 8 bytes"),
        (kernarg(0, type="i33"), "is 'i33' of 8 bytes"),
        (kernarg(0, type="i32"), "is 'i32' of 8 bytes"),
        (kernarg(0, value="y"), "points at 'y'"),
        (kernarg(0, value=""), "points at ''"),
        (kernarg(0, value="x.ptr or __import__('os')"), "points at "),
        (lambda index: index["variants"][-1]["kernargs"][0].update(value="y"), "points at 'y'"),
        (lambda index: index.update(version="v1"), "'v1' is not a valid bundle version"),
        (case(op="none"), "the op does not exist"),
        (case(name="../x"), "or the name is invalid"),
        (case(bounds={}), "has bounds of []; the op writes to ['largest', 'total']"),
        (case(bounds={"x": 1.0}), "has bounds of ['x']"),
        (case(bounds={"total": -1.0, "largest": 1.0}), "finite ones of 0 and more are allowed"),
        (case(dtypes={}), "is of dtypes {}"),
        (case(dtypes={"T": "int8"}), "is of dtypes {'T': 'int8'}"),
        (case(scalars={"y": 1}), "passes scalars ['y']"),
        (case(innermost={"x": 0}), "has innermost dims {'x': 0}"),
        (vectors("../secret.npz"), "has file '../secret.npz'"),
        (vectors("code/" + "0" * 16 + ".npz"), "selftest/<hash>.npz"),
        (vectors(f"selftest/{'0' * 16}.npz", 1 << 30), "of at most 16777216"),
        (again("selftest"), "a selftest case is listed twice"),
    ],
)
def test_an_index_that_is_not_sound(sample_folder: Path, edit: Edit, words: str):
    edit_index(sample_folder, edit)
    with pytest.raises(BundleError) as raised:
        read_index(sample_folder)
    assert words in str(raised.value) and str(sample_folder / "bundle.json") in str(raised.value)


OUTSIDE = ["../" * 21 + "x", "/etc/passwd", "0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n", "\u0660" * 64, ""]


@pytest.mark.parametrize("file", OUTSIDE)
def test_files_of_a_bundle_stay_in_it(sample_folder: Path, file: str):
    """A code object's file is named by its sha256, and can have no other name."""
    edit_index(sample_folder, lambda index: next(iter(index["blobs"].values())).update(sha256=file))
    with pytest.raises(BundleError, match="is not a bundle index: Expected `str` matching regex"):
        read_index(sample_folder)


POSITIONS = {
    "kernargs": (lambda index: index["layouts"][0].append(999), "has no kernarg 999: it has "),
    "layouts": (lambda index: index["kernels"][0].__setitem__(3, 999), "has no layout 999: it has "),
    "kernels": (lambda index: index["variants"][0].__setitem__(0, 999), "a variant is of kernel 999 and code object "),
    "code": (lambda index: index["variants"][0].__setitem__(4, 999), "and code object 999: there are "),
    "before the start": (lambda index: index["variants"][0].__setitem__(4, -1), "Expected `int` >= 0"),
    "too few values": (lambda index: index["variants"][0][1].pop(), "is not on the op's axes"),
    "too many values": (lambda index: index["variants"][0][1].append(1), "is not on the op's axes"),
    "long layout": (lambda index: index["layouts"][0].extend([0] * 1024), "Expected `array` of length <= 1024"),
    "kernels without end": (lambda index: index["kernels"].extend(index["kernels"] * 4096), "length <= 4096"),
    "variants without end": (lambda index: index["variants"].extend(index["variants"] * 4096), "length <= 65536"),
    "one name": (lambda index: index["code"].append(["a" * 16 + "0" * 48, 1]), "two code objects have one name"),
}


@pytest.mark.parametrize(("edit", "words"), POSITIONS.values(), ids=POSITIONS)
def test_positions_that_are_those_of_nothing(tmp_path: Path, edit: Edit, words: str):
    tree = json.loads(encode_index(sample_index()))
    edit(tree)
    with pytest.raises(BundleError) as raised:
        decode_index(json.dumps(tree).encode())
    assert words in str(raised.value)


def test_variants_share_what_they_have_in_common():
    index = sample_index()
    again = decode_index(encode_index(index))
    assert again == index and decode_index(encode_index(again)) == again
    layouts = {variant.kernargs for variant in index.variants}
    assert len({id(variant.kernargs) for variant in again.variants}) == len(layouts) < len(index.variants) / 4
    kernargs = {id(arg) for variant in again.variants for arg in variant.kernargs}
    assert len(kernargs) == len({arg for layout in layouts for arg in layout})
    assert len({id(variant.options) for variant in again.variants}) < len(index.variants) / 2


def test_an_altered_id(sample_folder: Path):
    path = sample_folder / "bundle.json"
    text = path.read_text()
    given = json.loads(text)["id"]
    path.write_text(text.replace(given, "f" * 64))
    with pytest.raises(BundleError, match=f"the index says id {'f' * 12}, but its content has {given[:12]}: altered"):
        read_index(sample_folder)
    path.write_text(text.replace("Weighted sum", "weighted sum"))
    with pytest.raises(BundleError, match=f"says id {given[:12]}, but its content has .*: altered"):
        read_index(sample_folder)
    assert bundle_id(text.encode()) == given


def test_fields_of_a_later_format_are_ignored(sample_folder: Path):
    before = read_index(sample_folder)

    def extend(index: dict[str, Any]) -> None:
        index["format"] = 7
        index["signature"] = {"by": "nobody"}
        index["ops"][0]["colour"] = "red"
        index["ops"][0]["tensors"][0]["shape"][0]["unit"] = "m"
        index["variants"][0]["resources"]["watts"] = 3

    edit_index(sample_folder, extend)
    after = read_index(sample_folder)
    assert (after.ops, after.variants, after.blobs) == (before.ops, before.variants, before.blobs)


def test_an_index_that_is_too_large(sample_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("aot_runtime.bundle.reading.MAX_INDEX_BYTES", 1000)
    with pytest.raises(BundleError, match="is over 1000 bytes: not a bundle index"):
        read_index(sample_folder)
