"""Choices with numbers: declared in `values`, read by `number`, and bound to parameters and axes."""

from pathlib import Path

import pytest

from aot_runtime.contract.expressions import parse
from aot_runtime.contract.partial_evaluation import evaluate
from tests.support.building.bindings import Bindings, with_bind
from tests.support.building.projects import EVERYTHING, check_fault, contract, edit

NUMBERS = {"fast": 0, "exact": 3, "both": -1}
NUMBERED = edit(EVERYTHING, ("values: [fast, exact], default", "values: {fast: 0, exact: 3, both: -1}, default"))


def numbers(expression: str) -> dict[str, int]:
    """Return the value of an expression for each choice."""
    return {mode: evaluate(parse(expression), {"mode": mode}) for mode in NUMBERS}


def test_names_and_numbers_of_a_choice(tmp_path: Path):
    axes = "by_number: {values: [-1, 0, 3], pick: mode}\n      by_name: {values: [fast, exact, both], pick: mode}"
    changes = ('{chunks: "cdiv(cols, 16)"}', "{chunks: 10 * number(mode) + 1}"), ("TOP: {", f"{axes}\n      TOP: {{")
    op = contract(tmp_path, edit(NUMBERED, *changes))
    assert (op.scalars[2].choices, op.scalars[2].default) == (("fast", "exact", "both"), "'fast'")
    assert numbers(op.derived[0].value) == {name: 10 * number + 1 for name, number in NUMBERS.items()}
    picks = {axis.name: axis.pick for axis in op.axes}
    assert numbers(picks["by_number"]) == NUMBERS and picks["by_name"] == "mode"


def test_a_parameter_takes_the_number(tmp_path: Path):
    for bound in Bindings(tmp_path, with_bind("a: mode, b: number(mode)", NUMBERED)).bind("mode", "a", "b"):
        assert bound.type == "i32" and numbers(bound.value) == NUMBERS


@pytest.mark.parametrize("argument", ["rows", "mod", "mode, mode", "1", "", "other"])
def test_number_of_what_has_none(tmp_path: Path, argument: str):
    text = edit(NUMBERED, ("mode: {", "other: {type: choice, values: [a]}\n      mode: {"),
                ("require: [", f'require: [@"number({argument}) > 0", '))  # fmt: skip
    nearest = "; did you mean 'mode'?" if argument == "mod" else "; known: mode"
    said = f"op 'scale': number({argument}): number() needs a choice whose values are numbers{nearest}"
    check_fault(tmp_path, text, said)
