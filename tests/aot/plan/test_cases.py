"""Planned selftest cases: those of a bundle, and every fault, before anything is compiled."""

from pathlib import Path

import pytest

from aot.manifest.loading import load_manifest
from aot.plan.bundles import plan_bundle
from aot.targets import Target
from tests.support.building.projects import check_row, edit, rows
from tests.support.building.selftests import INTEGERS, SCALE_CASES, picks, project


def cases(manifest: Path, arch: str = "gfx942", **filters: str) -> list[str]:
    wanted = {axis: frozenset({value}) for axis, value in filters.items()}
    return [case.recipe.name for case in plan_bundle(load_manifest(manifest), Target(arch), wanted, False).cases]


def test_cases_whose_variants_are_not_built_are_left_out(tmp_path: Path):
    text = edit(SCALE_CASES, ("    launches:", "    exclude: [arch == 'sm_90' and T == 'float32']\n    launches:"))
    manifest = project(tmp_path, text).manifest
    assert cases(manifest) == ["small", "case1"] and cases(manifest, "sm_90") == ["small"]
    assert cases(manifest, block="16") == ["small"] and cases(manifest, t="float16", block="32") == []


def test_a_call_that_depends_on_the_device(tmp_path: Path):
    """It is left out unless the variants for few and for many compute units are both built."""
    pick = ("pick: smallest >= cols", "pick: 16 if num_cus < 200 else 32")
    manifest = project(tmp_path, edit(SCALE_CASES, pick, ("cols: 32", "cols: 16"))).manifest
    assert cases(manifest) == ["small", "case1"] and cases(manifest, block="16") == []


def test_a_reference_need_not_take_every_scalar(tmp_path: Path):
    hint = ("factor: {type: fp32}", "factor: {type: fp32}\n      hint: {type: i32, default: 4}")
    assert cases(project(tmp_path, edit(SCALE_CASES, hint)).manifest) == ["small", "case1"]


# What is replaced in SCALE_CASES, by what, with an @ where the fault is; what is said, in which WORDS are spelled out.
FAULTS = r"""
cols: 7 -> @colums: 7 -> CASE: 'colums' is not a dim, dtype variable or scalar; did you mean 'cols'?
call: {rows: 3, cols: 7, -> @call: {rows: 3,
 -> CASE: scale: the extent of cols, a dim of 'x', is missing
cols: 7 -> @cols: 7.5 -> CASE: cols is 7.5; an extent must be an integer
cols: 7 -> @cols: true -> CASE: cols is True; an extent must be an integer
call: {rows: 3, cols: 7 -> @call: {rows: 3, cols: 0 -> CASE: scale: cols is 0; allowed: 1 to 2147483647
call: {rows: 3 -> @call: {rows: 3 -> T: float16, factor -> T: int8, factor
 -> CASE: scale: argument 'x' is int8; allowed: float16, float32
call: {rows: 3 -> @call: {rows: 3 -> factor: 0.1 -> factor: much
 -> CASE: scale: argument 'factor' is 'much'; a number is allowed
0.1} -> 0.1}, given: [@x] -> CASE: 'x' is not an optional tensor
0.1} -> 0.1}, inputs: {@y: {std: 2}} -> CASE: 'y' is not an input of this call; known: x
0.1} -> 0.1}, inputs: {@out: {std: 2}} -> CASE: 'out' is not an input of this call; known: x
0.1} -> 0.1}, innermost: {@x: rows} -> CASE: 'x' is not an input with `innermost` dims
0.1} -> 0.1}, inputs: {x: {@values: [1, 2]}} -> CASE: 'x' is float16[3, 7]: 21 values, not 2
0.1} -> 0.1}, inputs: {@x: {}} -> SPEC.inputs.x: an input has one of `std`, `range` and `values`
0.1} -> 0.1}, inputs: {@x: {std: 1, range: [0, 1]}} -> SPEC.inputs.x: an input has one of `std`, `range` and `values`
0.1} -> 0.1}, inputs: {@x: {range: [2, 1]}} -> SPEC.inputs.x: range [2, 1]: the first number is greater than the second
0.1} -> 0.1}, inputs: {x: {@range: [1]}} -> SPEC.inputs.x.range: at least 2 allowed, 1 given
0.1} -> 0.1}, inputs: {x: {@std: 0}} -> SPEC.inputs.x.std: Input should be greater than 0 (given: 0)
0.1} -> 0.1}, inputs: {x: {@std: .inf}} -> SPEC.inputs.x.std: Input should be a finite number (given: inf)
0.1} -> 0.1}, inputs: {x: {range: [0, @.nan]}} -> SPEC.inputs.x.range.1: Input should be a finite number (given: nan)
0.1} -> 0.1}, @floor: .nan -> SPEC.floor: Input should be a finite number (given: nan)
factor: 0.1 -> @factor: .nan -> SPEC.call.factor: NaN is not allowed here: it does not equal itself
0.1} -> 0.1}, @floor: -1 -> SPEC.floor: Input should be greater than or equal to 0 (given: -1)
- {call -> - @{name: small, call -> OP: another case has the name 'small'
reference: r.py:scale\n    selftest -> @selftest
 -> OP: `selftest` needs `reference: path.py:function` (given: nothing)
reference: r.py:scale -> @reference: r.py -> OP: `selftest` needs `reference: path.py:function` (given: r.py)
reference: r.py:scale -> @reference: gone.py:scale -> OP: file gone.py is not in FOLDER
reference: r.py:scale -> @reference: r.py:scales -> OP: r.py has no function 'scales'
reference: r.py:scale -> @reference: r.py:scale_same_dtype -> OP: r.py has no function 'scale_same_dtype_same_dtype'
"""
WORDS = {"CASE": "op 'scale', case 'small'", "OP": "op 'scale'", "SPEC": "ops.scale.selftest.0"}


@pytest.mark.parametrize("row", rows(FAULTS), ids=lambda row: row[-1])
def test_what_is_refused(tmp_path: Path, row: list[str]):
    for word, meaning in {**WORDS, "FOLDER": str(tmp_path)}.items():
        row[-1] = row[-1].replace(word, meaning)
    check_row(tmp_path, SCALE_CASES, row, read=lambda folder, text: cases(project(folder, text).manifest))


ZEROS = "0, " * 29
INPUTS = f"""
{{}} -> 'starts' is int8, which has no normal distribution: say `{{range: [low, high]}}` or `{{values: […]}}`
{{@starts: {{std: 1}}}}
 -> 'starts' is int8, which has no normal distribution: say `{{range: [low, high]}}` or `{{values: […]}}`
{{starts: {{@range: [0, 128]}}}} -> 'starts' cannot be 128: int8 has whole numbers from -128 to 127
{{starts: {{@range: [0.5, 3]}}}} -> 'starts' cannot be 0.5: int8 has whole numbers from -128 to 127
{{starts: {{@values: [{ZEROS}1.5]}}}} -> 'starts' cannot be 1.5: int8 has whole numbers from -128 to 127
{{starts: {{@values: [{ZEROS}x]}}}} -> the values of 'starts' are not all numbers
{{@mask: {{range: [0, 1]}}}} -> 'mask' is not an input of this call; known: starts, x
"""


@pytest.mark.parametrize(("inputs", "message"), rows(INPUTS))
def test_inputs_that_are_refused(tmp_path: Path, inputs: str, message: str):
    row = ["inputs: {starts: {range: [-2, 3]}}", f"{'' if '@' in inputs else '@'}inputs: {inputs}", message]
    read = lambda folder, text: cases(picks(folder, text).manifest)  # noqa: E731
    check_row(tmp_path, INTEGERS, row, "op 'pick', case 'case0': ", read)
