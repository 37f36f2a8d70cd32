"""`--filter`: its syntax, and errors of wrong filters."""

from pathlib import Path

import pytest

from aot.plan.filters import parse_filters, resolve_filters
from tests.support.building.projects import SCALE, load


@pytest.mark.parametrize(
    ("text", "name"),
    [("half", "float16"), ("f4", "float32"), ("single", "float32"), ("fp16", "float16"), ("FP32", "float32")],
)
@pytest.mark.parametrize("axis", ["dtype", "T"])
def test_a_dtype_by_another_of_its_names(tmp_path: Path, axis: str, text: str, name: str):
    filters, faults = resolve_filters([load(tmp_path, SCALE)], parse_filters([f"{axis}={text}"]))
    assert (filters, faults) == ({axis.lower(): frozenset({name})}, [])


@pytest.mark.parametrize(
    ("filters", "faults"),
    [
        ("blok=16", ["no manifest has an axis 'blok'; did you mean 'BLOCK'?"]),
        ("U=float32", ["no manifest has an axis 'U'; known: BLOCK, T, dtype, op"]),
        ("OP=Zz,op=Scale", ["op is never 'Zz'; known: scale"]),
        ("block=16|17", ["BLOCK is never '17'; known: 16, 32"]),
        ("dtype=float64,op=scal", ["dtype is never 'float64'; did you mean 'float16'?",
                                   "op is never 'scal'; did you mean 'scale'?"]),
        ("t=bf16", ["T is never 'bfloat16'; did you mean 'float16'?"]),
        ("dtype=zzz", ["dtype is never 'zzz'; known: float16, float32"]),
    ],
)  # fmt: skip
def test_what_no_manifest_has(tmp_path: Path, filters: str, faults: list[str]):
    _, found = resolve_filters([load(tmp_path, SCALE)], parse_filters([filters]))
    assert found == [f"--filter: {fault}" for fault in faults]
