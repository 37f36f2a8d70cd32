"""Choices with numbers: named once in `values`, asked for by `number`, and what a parameter or axis is bound to."""

import pytest

from aot.compile.kernel_source import Parameter
from aot.manifest.yamlfile import ManifestError
from aot.plan.binding import Binder
from aot.plan.contract import build_contract
from aot.plan.variants import enumerate_variants
from aot_runtime.contract.expressions import parse
from tests.support.building.projects import EVERYTHING, OPTIONS, contract, contract_fault, edit, load

NUMBERED = edit(
    EVERYTHING, ("values: [fast, exact], default: fast", "values: {fast: 0, exact: 3, both: -1}, default: fast")
)
NUMBERS = {"fast": 0, "exact": 3, "both": -1}
AXIS = ("TOP: {values", "MODE: {values: [-1, 0, 3], pick: mode}\n      TOP: {values")


def test_the_contract_lists_the_names(tmp_path):
    (scalar,) = (item for item in contract(tmp_path, NUMBERED).scalars if item.name == "mode")
    assert (scalar.choices, scalar.default) == (("fast", "exact", "both"), "'fast'")


@pytest.mark.parametrize("mode", NUMBERS)
def test_number_is_the_choices_number(tmp_path, mode):
    op = contract(tmp_path, edit(NUMBERED, ('{chunks: "cdiv(cols, 16)"}', "{chunks: 10 * number(mode) + 1}")))
    assert parse(op.derived[0].value).evaluate({"mode": mode}) == 10 * NUMBERS[mode] + 1


@pytest.mark.parametrize("mode", NUMBERS)
def test_an_axis_of_numbers_is_picked_by_the_number(tmp_path, mode):
    (axis,) = (axis for axis in contract(tmp_path, edit(NUMBERED, AXIS)).axes if axis.name == "MODE")
    assert parse(axis.pick).evaluate({"mode": mode}) == NUMBERS[mode]


def test_an_axis_of_names_is_picked_by_the_name(tmp_path):
    text = edit(NUMBERED, ("TOP: {values", "MODE: {values: [fast, exact, both], pick: mode}\n      TOP: {values"))
    (axis,) = (axis for axis in contract(tmp_path, text).axes if axis.name == "MODE")
    assert axis.pick == "mode"


@pytest.mark.parametrize("bind", ["", "        bind: {mode: mode}\n", "        bind: {mode: number(mode)}\n"])
def test_a_parameter_takes_the_number(tmp_path, bind):
    manifest = load(tmp_path, edit(NUMBERED, ("        grid: [rows]\n", f"        grid: [rows]\n{bind}")))
    op = build_contract(manifest, "scale", "gfx942", OPTIONS)
    variant = enumerate_variants(op, manifest.spec.ops["scale"], "gfx942").variants[0]
    (bound,) = Binder(manifest, op, 0, (Parameter("mode", False),), "gfx942").bind(variant)
    assert bound.type == "i32"
    assert {mode: parse(bound.value).evaluate({"mode": mode}) for mode in NUMBERS} == NUMBERS


@pytest.mark.parametrize("argument", ["rows", "mod", "mode, mode", "1", ""])
def test_number_of_what_has_none(tmp_path, argument):
    text = edit(NUMBERED, ("require: [cols % 2 == 0]", f'require: ["number({argument}) > 0"]'))
    found = contract_fault(tmp_path, text)
    assert f"number({argument}): number() takes a choice that has numbers" in found and "m.yaml:14:15: " in found


def test_choices_without_numbers_have_none(tmp_path):
    with pytest.raises(ManifestError, match=r"number\(mode\): number\(\) takes a choice that has numbers"):
        contract(tmp_path, edit(EVERYTHING, ("require: [cols % 2 == 0]", "require: [number(mode) > 0]")))
