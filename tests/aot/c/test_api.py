"""The C header of the ops: its names, and the ops that it omits."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from aot.c.api import header_text, signature
from aot.c.c_names import enumerators, function_names
from aot.c.files import c_files
from aot_runtime.contract import records
from aot_runtime.contract.variant_names import MAX_NAME, variant_names
from tests.support.c_interface.calling import compile_library
from tests.support.contracts import op, tensor
from tests.support.sample_index import REDUCE, SWAP, sample_index

DEEP = msgspec.structs.replace(SWAP, name="deep", tensors=(
    records.Tensor("a", tuple(records.Dim(f"n{i}") for i in range(9)), "float32", role="inout"),))  # fmt: skip


@pytest.mark.parametrize(("language", "others"), [("c11", ()), ("c++17", (REDUCE, SWAP))])
def test_an_op_that_no_struct_can_hold_is_left_out_with_the_reason(
    tmp_path: Path, language: str, others: tuple[records.Op, ...]
):
    sample = sample_index()
    variants = tuple(variant for variant in sample.variants if variant.op in {other.name for other in others})
    index = msgspec.structs.replace(sample, ops=(*others, DEEP), variants=variants)
    assert "/* deep has no function in C: it has a tensor of more than 8 dims. */" in header_text(index)
    for file, content in c_files(index).items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(content)
    compile_library(tmp_path, tmp_path / "src/sample.c", language=language)


def test_arguments_say_what_they_are():
    text = header_text(sample_index())
    for line in (
        "aot_tensor x; /* input: float16 or bfloat16 [rows, cols]. */",
        "aot_tensor weight; /* optional: float16 or bfloat16 [rows|1, cols]. One per element. */",
        "aot_tensor largest; /* output when return_largest: float32 [rows]. */",
        "aot_int seed; /* i64, required. */",
        "aot_float scale; /* fp32, default cols ** -0.5. Factor of each sum. */",
        "sample_reduce_rounding rounding; /* default 'nearest'. */",
        "aot_flag return_largest; /* flag, default False. */",
        "    SAMPLE_REDUCE_ROUNDING_NOT_GIVEN = 0,",
        " * Requires: rows % 2 == 0.",
    ):
        assert line in text


def test_functions_have_names_of_their_own():
    ops = [op(tensor("x", "n"), name=name) for name in ("open", "f", "f_args", "f_outputs", "f_op")]
    names = function_names("b", ops)
    assert names["f"] == "b_f" and names["open"] == "b_open_op"
    made = [name + suffix for name in names.values() for suffix in ("", "_args", "_outputs", "_explain")]
    assert len(made) == len({*made, "b_open"}) - 1


def test_enumerators_have_names_of_their_own():
    scalar = records.Scalar("mode", "choice", choices=("not_given", "a-b", "a_b"))
    assert len({*enumerators("b_f", scalar)}) == 4


def test_a_header_of_other_arguments_has_another_signature():
    renamed = msgspec.structs.replace(REDUCE.scalars[2], choices=("nearest", "other"))
    changed = [
        REDUCE,
        msgspec.structs.replace(REDUCE, scalars=(*REDUCE.scalars[:2], renamed, *REDUCE.scalars[3:])),
        msgspec.structs.replace(REDUCE, scalars=REDUCE.scalars[1:]),
        msgspec.structs.replace(REDUCE, tensors=(REDUCE.tensors[1], REDUCE.tensors[0], *REDUCE.tensors[2:])),
        SWAP,
    ]
    assert len({signature(item) for item in changed}) == 5
    assert signature(msgspec.structs.replace(REDUCE, doc="Other words.", launches=())) == signature(REDUCE)


def test_names_of_variants_are_words_until_they_are_long_or_alike(sample: records.Index):
    names = variant_names(sample)
    assert "sample_gfx942_reduce_reduce_rows_f16_weighted_width64_aligned_wide" in names
    assert "sample_gfx942_reduce_add_partial_bf16_width4096_general_c0" in names
    reduced = next(variant for variant in sample.variants if variant.op == "reduce")
    for axis, points in (
        ("LONG_" * 12 + "NAME", ((True, True),)),
        ("WEI_GHTED", ((True, False), (False, True))),  # in short it is another's name
    ):
        changed = msgspec.structs.replace(REDUCE, axes=(records.Axis(axis, (False, True), "True"), *REDUCE.axes))
        variants = tuple(
            msgspec.structs.replace(reduced, axis_values={**reduced.axis_values, "WEIGHTED": one, axis: other})
            for one, other in points
        )
        names = variant_names(msgspec.structs.replace(sample, ops=(changed,), variants=variants))
        assert len({*names}) == len(points) and max(map(len, names)) <= MAX_NAME
        assert all(re.fullmatch(r"sample_gfx942_reduce_[0-9a-f]{12}", name) for name in names)
