"""Unsound contracts are refused before they are used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from aot_runtime.contract import records
from aot_runtime.contract.manifest_rules import RESERVED_OPS, contract_faults
from aot_runtime.contract.names import RESERVED
from aot_runtime.contract.records import Divisible
from aot_runtime.contract.validate import Fault, structure_faults
from aot_runtime.errors import ExpressionError
from tests.support.contracts import contract, launch, op, planner, tensor

X = tensor("x", "rows", "cols")


def faulty(made: records.Op) -> bool:
    return bool(list(structure_faults(made)))


def config(values: dict[str, int], when: str = "") -> records.Op:
    configs = (records.Config("a", values, {}, when), records.Config("b", values, {}))
    return op(X, launches=(launch("1", configs=configs),))


NAMED: dict[str, Callable[[str], records.Op]] = {
    "op": lambda name: op(X, name=name),
    "tensor": lambda name: op(X, tensor(name, "rows")),
    "dim": lambda name: op(tensor("x", name)),
    "scalar": lambda name: op(X, scalars=(records.Scalar(name, "i32"),)),
    "dtype variable": lambda name: op(tensor("x", "n", dtype=name), dtypes={name: ("float32",)}),
    "constexpr": lambda name: op(X, axes=(records.Axis(name, (1,), "1"),)),
    "derived": lambda name: op(X, derived=(records.Derived(name, "1"),)),
    "workspace": lambda name: op(X, workspace=(records.Workspace(name, ("1",), "float32"),)),
    "config": lambda name: config({name: 1}),
}
NO_NAMES = ["x):\n import os", "x\n", "", "x y", "x;y", "x=1", "x.y", "*x", "9x", "_x", "x__y", "x_", "__class__"]
NO_NAMES += ["lambda", "None", "True", "import", "stream", "num_cus", "arch", "aligned", "min", "max", "extent"]
NO_NAMES += ["\uff58", "\ufb01"]


@pytest.mark.parametrize("kind", NAMED)
def test_what_is_no_name_is_refused(kind: str):
    assert not faulty(NAMED[kind]("a_Name_9"))
    accepted = [name for name in NO_NAMES if not faulty(NAMED[kind](name))]
    assert accepted == (["x__y", "x_"] if kind == "config" else [])  # kernels may name their constexprs so


def test_every_reserved_name_is_refused_as_a_tensor():
    assert all(faulty(NAMED["tensor"](name)) for name in RESERVED)


@pytest.mark.parametrize("name", sorted(RESERVED_OPS - RESERVED))
def test_an_op_does_not_hide_behind_an_attribute_of_bundles(name: str):
    made = op(X, name=name)
    (fault,) = contract_faults(made)
    assert fault == Fault((), f"an op cannot be called '{name}': open bundles have an attribute of that name")
    assert not faulty(made), "a bundle that was built before there was that attribute opens"


@pytest.mark.parametrize(
    "made",
    [
        contract("x: float32[rows]; x: float32[rows]"),
        contract("x: float32[rows]; x: i32"),
        contract("x: float32[rows]; rows: i32; rows = 2"),
        contract("x: float32[rows]", axes=(records.Axis("rows", (1,), "1"),)),
        contract("x: T[T]", dtypes={"T": ("float32",)}),
        op(X, workspace=(records.Workspace("cols", ("1",), "float32"),)),
        config({"rows": 1}),
        config({"x": 1}),
    ],
)
def test_no_name_means_two_things(made: records.Op):
    assert faulty(made)


UNDECIDED = "no required input has dtype 'T', so no call decides it"


def starts(into: str, longest: str = "", dtype: str = "int32") -> records.Op:
    offsets = tensor("starts", "parts + 1", dtype=dtype, offsets=records.Offsets(into, longest))
    return op(X, offsets, scalars=(records.Scalar("shift", "fp32", "0"),))


@pytest.mark.parametrize(
    ("made", "path", "text"),
    [
        (
            contract("x: float17[n]"),
            "tensors.x.dtype",
            "variable 'float17'; did you mean 'float16'?",
        ),
        (op(tensor("x", "n", dtype="__import__('os')")), "tensors.x.dtype", "unknown dtype or dtype variable"),
        (op(tensor("x", "n", role="victim")), "tensors.x.role", "unknown role 'victim'; allowed: input, output, inout"),
        (op(tensor("x", "n", contiguous=(1,))), "tensors.x.contiguous", "dims [1] are not the tensor's"),
        (op(tensor("x", "n", contiguous=(0, 0))), "tensors.x.contiguous", "dims [0, 0] are not the tensor's"),
        (op(tensor("x", "n", contiguous=(-1,))), "tensors.x.contiguous", "dims [-1] are not the tensor's"),
        (op(tensor("x", "n", innermost=(0,))), "tensors.x.innermost", "not both"),
        (contract("x: float32[n]; k: i33"), "scalars.k.type", "unknown type of a scalar 'i33'"),
        (op(X, axes=(records.Axis("A", (), "1"),)), "constexprs.A", "has no values"),
        (op(X, axes=(records.Axis("A", (1,), "1", "=>"),)), "constexprs.A", "an unknown rule '=>'"),
        (contract("x: T[n]", dtypes={"T": ("float17",)}), "dtypes.T", "['float17'] are not dtypes"),
        (contract("x: T[n]", dtypes={"T": ()}), "dtypes.T", "[] are not dtypes"),
        (contract("x: T[n] optional; y: float32[n]", dtypes={"T": ("int8",)}), "dtypes.T", UNDECIDED),
        (contract("x: T[n] output; y: float32[n]", dtypes={"T": ("int8",)}), "dtypes.T", UNDECIDED),
        (
            op(X, workspace=(records.Workspace("w", ("1",), "void"),)),
            "workspace.w.dtype",
            "dtype variable 'void'",
        ),
        (op(X, launches=(launch("1", configs=()),)), "launches.0", "has no configs"),
        (op(X, launches=(launch("1", kernel="k\nimport os"),)), "launches.0", "or no identifier as its name"),
        (op(X, launches=(launch("1", kernel="a.b"),)), "launches.0", "launch 'a.b' has no configs, or no identifier"),
        (op(X, divisible=(Divisible("depth", 16),)), "divisible.depth", "unknown dim 'depth'; known: cols, rows"),
        (op(X, divisible=(Divisible("cols"),)), "divisible.cols", "expected a positive number of elements, or"),
        (op(X, divisible=(Divisible("cols", 0, ("y",)),)), "divisible.cols", "0 elements, tensors ['y']"),
        (op(X, dims=(records.DimLimit("clos"),)), "dims.clos", "unknown dim 'clos'; did you mean 'cols'?"),
        (op(X, require=("later > 1",)), "require.0", "'later > 1' uses undefined name 'later'"),
        (op(tensor("x", "n", zero=True)), "tensors.x.zero", "only an output is zeroed before the launches; this is"),
        (
            op(X, tensor("out", "rows", "cols", role="output", zero=True, in_place=("x",))),
            "tensors.out.zero",
            "zeroed before the launches, it cannot be 'x' itself",
        ),
        (starts("row"), "tensors.starts.offsets", "'row' is not a dim of a required input, as offsets need"),
        (starts("parts"), "tensors.starts.offsets", "'parts' is not a dim of a required input"),
        (starts("rows", "shift"), "tensors.starts.offsets", "unknown integer scalar 'shift'"),
        (starts("rows", dtype="int8"), "tensors.starts.offsets", "offsets are an input of one dim, of dtype int32 or"),
    ],
)
def test_what_is_not_there_is_refused(made: records.Op, path: str, text: str):
    (fault,) = contract_faults(made)
    found = ".".join(map(str, fault.path))
    assert found.startswith(path) and text in fault.text and str(fault) == f"{found}: {fault.text}"


@pytest.mark.parametrize(
    "text", ["__import__('os').system('true')", "x.__class__", "(lambda: 0)()", "rows)\nimport os", "_rules"]
)
def test_hostile_expressions_make_no_planner(text: str):
    for made in (
        op(tensor("x", text)),
        op(X, tensor("out", "rows", role="output", when=text)),
        op(X, scalars=(records.Scalar("k", "i32", text),)),
        op(X, require=(text,)),
        op(X, derived=(records.Derived("k", text),)),
        op(X, axes=(records.Axis("A", (1,), text),)),
        op(X, workspace=(records.Workspace("w", (text,), "float32"),)),
        op(X, launches=(launch(text),)),
        op(X, launches=(launch("1", when=text),)),
        config({}, text),
        op(X, denied=(records.Denied(text, "slow"),)),
    ):
        with pytest.raises(ExpressionError):
            planner(made)
    with pytest.raises(ExpressionError):
        planner(op(X), f"n: i32 = {text}")


@pytest.mark.parametrize("change", ({"dtype": "uint32"}, {"role": "inout"}, {"contiguous": (0,)}, {"innermost": (0,)}))
def test_only_inputs_of_int32_whose_strides_kernels_know_may_be_int64(change: dict[str, Any]):
    positions = msgspec.structs.replace(tensor("at", "n", dtype="int32", also_int64=True), contiguous=())
    assert not faulty(op(X, positions))
    assert faulty(op(X, msgspec.structs.replace(positions, **change)))
