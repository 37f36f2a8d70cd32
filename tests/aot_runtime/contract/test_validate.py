"""Contracts that are not sound are refused before anything is made of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aot_runtime.contract import records
from aot_runtime.contract.names import RESERVED, Scope, axis_rule, stride_position
from aot_runtime.contract.validate import Fault, contract_faults, structure_faults
from aot_runtime.errors import ArgumentError, ExpressionError
from tests.support.contracts import decide, dims, launch, layout, op, planner, tensor

X = tensor("x", "rows", "cols")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("smallest >= head_dim", (">=", "head_dim")),
        ("smallest > n + 1", (">", "n + 1")),
        ("largest <= n", ("<=", "n")),
        ("largest<n", ("<", "n")),
        (" causal ", ("equal", " causal ")),
        ("smallest < n", ("equal", "smallest < n")),
        ("smallest", ("equal", "smallest")),
    ],
)
def test_axis_rules(text: str, rule: tuple[str, str]):
    assert axis_rule(text) == rule


def inverse(extent: str, *others: str) -> str:
    return Scope.of(op(tensor("x", extent, *others))).dims["d"].inverse


@pytest.mark.parametrize(
    ("extent", "solved"),
    [("d", "extent"), ("d + 1", "extent - 1"), ("1 + d", "extent - 1"), ("d - 2", "extent + 2"), ("d * 4",
     "extent // 4"),
     ("4 * d", "extent // 4"), ("d // 8", "extent * 8"), ("d * n", "extent // n"), ("d + (n - 1)", "extent - (n - 1)")],
)  # fmt: skip
def test_a_dim_is_solved(extent: str, solved: str):
    assert inverse(extent, "n") == solved


@pytest.mark.parametrize("extent", ["d % 2", "2 - d", "8 // d", "d * d", "d + d", "min(d, 2)", "d ** 2", "d + e", "-d"])
def test_what_is_not_solved_is_refused(extent: str):
    with pytest.raises(ExpressionError, match=r"nothing gives the extent '[de]'"):
        Scope.of(op(tensor("x", extent)))


def test_a_plain_dim_is_preferred_to_a_solved_one_and_a_required_tensor_to_an_optional_one():
    contract = op(
        tensor("maybe", "n", optional=True),
        tensor("starts", "batch + 1", "n + 2"),
        tensor("y", "n"),
        tensor("z", "batch"),
    )
    found = Scope.of(contract).dims
    assert (found["batch"].tensor, found["batch"].inverse) == ("z", "extent")
    assert (found["n"].tensor, found["n"].optional) == ("y", False)


def test_scalars_and_lets_are_no_source_of_a_dim():
    """They are computed from the dims, so a dim cannot be computed from them."""
    for fields in ({"scalars": (records.Scalar("k", "i32", "2"),)}, {"derived": (records.Derived("k", "2"),)}):
        with pytest.raises(ExpressionError, match="nothing gives the extent 'd'"):
            Scope.of(op(tensor("x", "d * k"), **fields))


def test_an_extent_of_known_dims_and_scalars_is_checked():
    contract = op(tensor("x", "n"), tensor("y", "n + k"), scalars=(records.Scalar("k", "i32"),))
    planned = planner(contract)
    decide(planned, x=layout(2), y=layout(5), k=3)
    with pytest.raises(ArgumentError, match=r"dim 0 \(n \+ k\) is 5, but must be 6"):
        decide(planned, x=layout(2), y=layout(5), k=4)


def test_an_extent_that_a_let_names_is_checked_against_it():
    blocks = records.Derived("blocks", "cdiv(cols, 16)")
    contract = op(tensor("x", "rows", "cols"), tensor("sums", "blocks"), derived=(blocks,))
    planned = planner(contract)
    decide(planned, x=layout(2, 40), sums=layout(3))
    with pytest.raises(ArgumentError, match=r"argument 'sums' has shape .4.: dim 0 .blocks. is 4, but must be 3"):
        decide(planned, x=layout(2, 40), sums=layout(4))


def test_the_dims_of_an_output_alone_come_from_nowhere():
    with pytest.raises(ExpressionError, match="tensor 'out': nothing gives the extent 'cols'"):
        Scope.of(op(tensor("x", "rows"), tensor("out", "rows", "cols", role="output")))


def test_strides_are_named_by_dim_or_position():
    t = tensor("t", "rows", "cols", "cols", "4")
    assert [stride_position(t, dim) for dim in ("rows", 1, "3")] == [0, 1, 3]
    for dim in ("cols", "depth", 4, "4"):
        with pytest.raises(ExpressionError, match="names no single dim of 't'"):
            stride_position(t, dim)


BAD_NAMES = ["x):\n import os", "x y", "", "_x", "x__y", "x_", "9x", "x;y", "x=1", "lambda", "None", "True", "stream",
             "num_cus", "min", "given", "extent", "\uff58", "\ufb01",
             "x\n", "import", "x.y", "*x", "__class__"]  # fmt: skip


def with_name(kind: str, name: str) -> records.Op:
    contracts: dict[str, Any] = {
        "op": lambda: op(X, name=name),
        "tensor": lambda: op(X, tensor(name, "rows")),
        "scalar": lambda: op(X, scalars=(records.Scalar(name, "i32"),)),
        "dtype variable": lambda: op(tensor("x", "n", dtype=name), dtypes={name: ("float32",)}),
        "constexpr": lambda: op(X, axes=(records.Axis(name, (1,), "1"),)),
        "derived": lambda: op(X, derived=(records.Derived(name, "1"),)),
        "workspace": lambda: op(X, workspace=(records.Workspace(name, ("1",), "float32"),)),
        "config": lambda: op(X, launches=(launch("1", configs=(records.Config("a", {name: 1}, {}),)),)),
        "divisible": lambda: op(X, divisible=(name,)),
    }
    return contracts[kind]()


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize(
    "kind", ["op", "tensor", "scalar", "dtype variable", "constexpr", "derived", "workspace", "config", "divisible"]
)
def test_what_is_no_name_is_refused(kind: str, name: str):
    accepted = kind == "config" and name in ("x__y", "x_")  # kernels may name their constexprs so
    assert bool(list(structure_faults(with_name(kind, name)))) != accepted


@pytest.mark.parametrize(
    "kind", ["op", "tensor", "scalar", "dtype variable", "constexpr", "derived", "workspace", "config"]
)
def test_ordinary_names_are_accepted(kind: str):
    assert not list(structure_faults(with_name(kind, "a_Name_9")))


@pytest.mark.parametrize("name", ["lambda", "None", "num_cus", "arch", "aligned", "d):\n import os", "_d", "d__e"])
def test_a_dim_has_a_proper_name(name: str):
    assert list(structure_faults(op(tensor("x", name))))


@pytest.mark.parametrize("kernel", ["k\nimport os", "k'", "a.b", "", "{x}"])
def test_a_kernel_has_a_proper_name(kernel: str):
    (fault,) = structure_faults(op(X, launches=(launch("1", kernel=kernel),)))
    assert fault == Fault(("launches", 0), f"launch '{kernel}' has no configs, or no identifier as its name")


@pytest.mark.parametrize(
    "contract",
    [
        op(X, tensor("x", "rows")),
        op(X, scalars=(records.Scalar("x", "i32"),)),
        op(X, scalars=(records.Scalar("rows", "i32"),), derived=(records.Derived("rows", "2"),)),
        op(tensor("x", "rows"), axes=(records.Axis("rows", (1,), "1"),)),
        op(tensor("x", "T", dtype="T"), dtypes={"T": ("float32",)}),
        op(X, workspace=(records.Workspace("cols", ("1",), "float32"),)),
        op(X, launches=(launch("1", configs=(records.Config("a", {"rows": 1}, {}),)),)),
        op(X, launches=(launch("1", configs=(records.Config("a", {"x": 1}, {}),)),)),
    ],
)
def test_no_name_means_two_things(contract: records.Op):
    assert list(structure_faults(contract))


@pytest.mark.parametrize(
    ("contract", "path", "text"),
    [
        (op(tensor("x", "n", dtype="float17")), "tensors.x.dtype",
         "'float17' is no dtype and no dtype variable; did you mean 'float16'?"),
        (op(tensor("x", "n", dtype="__import__('os')")), "tensors.x.dtype", "is no dtype and no dtype variable"),
        (op(tensor("x", "n", role="victim")), "tensors.x.role", "'victim' is no role; allowed: input, output, inout"),
        (op(tensor("x", "n", contiguous=(1,))), "tensors.x.contiguous", "dims [1] are not the tensor's"),
        (op(tensor("x", "n", contiguous=(0, 0))), "tensors.x.contiguous", "dims [0, 0] are not the tensor's"),
        (op(tensor("x", "n", contiguous=(-1,))), "tensors.x.contiguous", "dims [-1] are not the tensor's"),
        (op(tensor("x", "n", innermost=(0,))), "tensors.x.innermost", "not both"),
        (op(X, scalars=(records.Scalar("k", "i33"),)), "scalars.k.type", "'i33' is no type of a scalar"),
        (op(X, axes=(records.Axis("A", (), "1"),)), "constexprs.A", "has no values"),
        (op(X, axes=(records.Axis("A", (1,), "1", "=>"),)), "constexprs.A", "an unknown rule '=>'"),
        (op(tensor("x", "n", dtype="T"), dtypes={"T": ("float17",)}), "dtypes.T", "['float17'] are not dtypes"),
        (op(tensor("x", "n", dtype="T"), dtypes={"T": ()}), "dtypes.T", "[] are not dtypes"),
        (op(tensor("x", "n", dtype="T", optional=True), tensor("y", "n"), dtypes={"T": ("int8",)}), "dtypes.T",
         "no required input has dtype 'T', so no call decides it"),
        (op(tensor("x", "n", dtype="T", role="output"), tensor("y", "n"), dtypes={"T": ("int8",)}), "dtypes.T",
         "no required input has dtype 'T', so no call decides it"),
        (op(X, workspace=(records.Workspace("w", ("1",), "void"),)), "workspace.w.dtype", "'void' is no dtype"),
        (op(X, launches=(launch("1", configs=()),)), "launches.0", "has no configs"),
        (op(X, divisible=("depth",)), "divisible.depth", "'depth' is no dim of a tensor; known: cols, rows"),
        (op(X, dims=(records.DimLimit("clos"),)), "dims.clos", "'clos' is no dim of a tensor; did you mean 'cols'?"),
        (op(X, require=("later > 1",)), "require.0", "'later > 1' uses undefined name 'later'"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused(contract: records.Op, path: str, text: str):
    (fault,) = contract_faults(contract)
    assert ".".join(map(str, fault.path)) == path and text in fault.text and str(fault) == f"{path}: {fault.text}"


@pytest.mark.parametrize("name", ["path", "load", "ops", "index", "device", "explain", "preload"])
def test_an_op_does_not_hide_behind_an_attribute_of_bundles(name: str):
    (fault,) = structure_faults(op(X, name=name))
    assert fault == Fault((), f"an op cannot be called '{name}': open bundles have an attribute of that name")


HOSTILE = ["__import__('os').system('true')", "x.__class__", "(lambda: 0)()", "rows)\nimport os", "_rules"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "make",
    [
        lambda text: op(tensor("x", text)),
        lambda text: op(X, tensor("out", "rows", role="output", when=text)),
        lambda text: op(X, scalars=(records.Scalar("k", "i32", text),)),
        lambda text: op(X, require=(text,)),
        lambda text: op(X, derived=(records.Derived("k", text),)),
        lambda text: op(X, axes=(records.Axis("A", (1,), text),)),
        lambda text: op(X, workspace=(records.Workspace("w", (text,), "float32"),)),
        lambda text: op(X, launches=(launch(text),)),
        lambda text: op(X, launches=(launch("1", when=text),)),
        lambda text: op(
            X, launches=(launch("1", configs=(records.Config("a", {}, {}, text), records.Config("b", {}, {}))),)
        ),
        lambda text: op(X, denied=(records.Denied(text, "slow"),)),
    ],
)
def test_hostile_expressions_make_no_planner(make: Any, text: str):
    with pytest.raises(ExpressionError):
        planner(make(text))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_kernargs_make_no_planner(text: str):
    with pytest.raises(ExpressionError):
        planner(op(X), {"n": ("i32", text)})


def test_every_reserved_name_is_refused_as_a_tensor():
    for name in sorted(RESERVED):
        assert list(structure_faults(op(X, tensor(name, "rows"))))


def test_dims_helper_marks_broadcasts():
    assert dims("n|1", "m") == (records.Dim("n", True), records.Dim("m"))
    assert msgspec.json.encode(dims("n")[0]) == b'{"extent":"n"}'
