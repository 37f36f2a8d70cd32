"""Names of a contract: rules of axes, solved dims, strides."""

from __future__ import annotations

import pytest

from aot_runtime.contract.manifest_rules import axis_rule
from aot_runtime.contract.names import Scope, stride_position
from aot_runtime.errors import ExpressionError
from tests.support.contracts import contract, op, tensor

RULES = {
    ("equal", " causal "): " causal ",
    (">=", "head_dim"): "smallest >= head_dim",
    (">", "n + 1"): "smallest > n + 1",
    ("<=", "n"): "largest <= n",
    ("<", "n"): "largest<n",
    ("equal", "smallest < n"): "smallest < n",
    ("equal", "smallest"): "smallest",
}


def test_axis_rules():
    assert {axis_rule(text): text for text in RULES.values()} == RULES


SOLVED = {
    "extent": ["d"],
    "extent - 1": ["d + 1", "1 + d"],
    "extent + 2": ["d - 2"],
    "extent // 4": ["d * 4", "4 * d"],
    "extent * 8": ["d // 8"],
    "extent // n": ["d * n"],
    "extent - (n - 1)": ["d + (n - 1)"],
}


@pytest.mark.parametrize(("solved", "extent"), [(solved, extent) for solved in SOLVED for extent in SOLVED[solved]])
def test_a_dim_is_solved(solved: str, extent: str):
    assert Scope.of(op(tensor("x", extent, "n"))).dims["d"].inverse == solved


NOWHERE = [f"x: float32[{extent}]" for extent in ("d % 2", "2 - d", "8 // d", "d * d", "d + d", "min(d, 2)", "d ** 2")]
NOWHERE += ["x: float32[d + e]", "x: float32[-d]", "x: float32[rows]; out: float32[rows, d] output"]
NOWHERE += ["x: float32[d * k]; k: i32 = 2", "x: float32[d * k]; k = 2"]  # which are computed from the dims


@pytest.mark.parametrize("text", NOWHERE)
def test_a_dim_that_comes_from_nowhere_is_refused(text: str):
    with pytest.raises(ExpressionError, match=r"nothing gives the extent '[de]'"):
        Scope.of(contract(text))


def test_a_plain_dim_is_preferred_to_a_solved_one_and_a_required_tensor_to_an_optional_one():
    text = "maybe: float32[n] optional; starts: float32[batch + 1, n + 2]; y: float32[n]; z: float32[batch]"
    found = Scope.of(contract(text)).dims
    assert (found["batch"].tensor, found["batch"].inverse) == ("z", "extent")
    assert (found["n"].tensor, found["n"].optional) == ("y", False)


def test_strides_are_named_by_dim_or_position():
    t = tensor("t", "rows", "cols", "cols", "4")
    assert [stride_position(t, dim) for dim in ("rows", 1, "3")] == [0, 1, 3]
    for dim in ("cols", "depth", 4, "4"):
        with pytest.raises(ExpressionError, match="is not a single dim of 't'"):
            stride_position(t, dim)
