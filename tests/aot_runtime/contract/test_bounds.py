"""Numbers are bounded in expressions and messages, and planning takes time in proportion to an op's names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from aot_runtime import ArgumentError, BundleError
from aot_runtime.bundle.reading import _check_references
from aot_runtime.call.planner import Planner
from aot_runtime.contract import records
from aot_runtime.contract.expressions import MAX_BITS, nearest, parse
from aot_runtime.contract.partial_evaluation import evaluate
from aot_runtime.contract.validate import expression_faults, structure_faults
from aot_runtime.errors import ExpressionError
from aot_runtime.texts import shown
from tests.support.contracts import HERE, launch, layout, op, planner, tensor, variants

MANY_DIGITS = 10**5000

# Expressions.


@pytest.mark.parametrize(
    "text",
    ["n ** 16 * n", "next_pow2(n ** 16)", "*".join(["n"] * 17), "9" * 400, "(9 ** 16) * n ** 16", "cdiv(n ** 16, 2)",
     "0 if n > 1 else n ** 16 + 1", "min(1, -(n ** 16 * 2))", "elsize(x) ** 16 * stride(x, 0)"],
)  # fmt: skip
def test_long_integers_are_refused(text: str):
    with pytest.raises(ExpressionError, match=f"it can come to an integer of more than {MAX_BITS} bits"):
        parse(text)


@pytest.mark.parametrize(
    "text", ["n ** 16", "*".join(["n"] * 16), "n ** 15 + n ** 15 // 3", "n % (n ** 15) - 1", "n ** -16"]
)
def test_what_is_below_the_limit(text: str):
    value = evaluate(parse(text), {"n": 2**64 - 1})
    assert not isinstance(value, int) or value.bit_length() <= MAX_BITS


# Messages.


def test_a_message_shows_any_value():
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    for value in (
        MANY_DIGITS,
        "x" * 10_000,
        [MANY_DIGITS] * 1000,
        {MANY_DIGITS: 1},
        Silent(),
        type("N", (int,), {})(9),
    ):
        assert len(shown(value)) < 400
    assert shown(MANY_DIGITS) == "<an integer of 16610 bits>"
    assert (shown(2**100), shown("a"), shown((1, None))) == (repr(2**100), "'a'", "(1, None)")


SCALARS = (
    records.Scalar("count", "i64"),
    records.Scalar("wide", "i64", default="0", max=1e300),
    records.Scalar("mode", "choice", default="'a'", choices=("a",)),
    records.Scalar("causal", "flag", default="False"),
    records.Scalar("scale", "fp32", default="1"),
)
SCALED = op(tensor("x", "n"), tensor("out", "n", role="output"), scalars=SCALARS)


@pytest.mark.parametrize("name", ["count", "wide", "mode", "causal", "scale"])
def test_arguments_of_many_digits(name: str):
    """Python refuses to write an integer of over 4300 digits, with a ValueError of its own."""
    arguments = {"count": 1, name: MANY_DIGITS}
    with pytest.raises(ArgumentError) as raised:
        planner(SCALED).decide({"x": layout(4)}, arguments, HERE, 304, "gfx942")
    assert len(str(raised.value)) < 400
    assert name in str(raised.value) or name == "scale"


def test_extents_of_many_digits():
    contract = op(tensor("x", "2 * n"), tensor("out", "n", role="output"))
    with pytest.raises(ArgumentError, match="n is <an integer of 16609 bits>; allowed: 1 to"):
        planner(contract).decide({"x": layout(MANY_DIGITS)}, {}, HERE, 304, "gfx942")


def test_the_nearest_name_of_many():
    known = [f"name{number}" for number in range(1000)]
    assert nearest("name1x", known).startswith("; did you mean 'name1")
    assert nearest("zzz", known).count(",") == 20 and nearest("zzz", known).endswith(", …")
    assert nearest("zzz", {"b": 1, "a": 1}) == "; known: a, b"


# Time.


def steps(work: Callable[[], object]) -> int:
    """Return how many of Python's instructions, and calls of C, some work takes."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "c_call"

    before = sys.gettrace()
    sys.settrace(trace)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        sys.settrace(before)
    return count


X, OUT = tensor("x", "n"), tensor("out", "n", role="output")
GROWING: dict[str, Callable[[range], records.Op]] = {
    "derived": lambda many: op(X, OUT, derived=tuple(records.Derived(f"d{i}", f"n + {i}") for i in many)),
    "scalars": lambda many: op(X, OUT, scalars=tuple(records.Scalar(f"s{i}", "i32", f"n + {i}") for i in many)),
    "tensors": lambda many: op(X, *(tensor(f"x{i}", f"n{i}") for i in many), OUT),
    "solved": lambda many: op(X, *(tensor(f"x{i}", f"m{i} + 1") for i in many), OUT),
    "dtypes": lambda many: op(
        X, *(tensor(f"x{i}", "n", dtype=f"T{i}") for i in many), OUT, dtypes={f"T{i}": ("float32",) for i in many}
    ),
    "ranges": lambda many: op(
        X,
        *(tensor(f"x{i}", "n", dtype="int32", range=("0", "s0")) for i in many),
        scalars=tuple(records.Scalar(f"s{i}", "i32", "n") for i in many),
    ),
    "launches": lambda many: op(X, OUT, launches=tuple(launch(f"n + {i}") for i in many)),
    "requirements": lambda many: op(X, OUT, require=tuple(f"n < {i}" for i in many)),
}


ALSO_GROWING: dict[str, Callable[[range], records.Op]] = {
    "inputs of expressions": lambda many: op(X, *(tensor(f"x{i}", f"n + {i}") for i in many), OUT),
    "outputs in place": lambda many: op(
        X,
        *(tensor(f"x{i}", "n") for i in many),
        OUT,
        *(tensor(f"y{i}", "n", role="output", in_place=(f"x{i}",)) for i in many),
    ),
    "optional inputs": lambda many: op(
        X,
        *(tensor(f"x{i}", "n", optional=True) for i in many),
        OUT,
        require=tuple(f"given(x{i}) or n > 0" for i in many),
    ),
    "workspaces": lambda many: op(
        X, OUT, workspace=tuple(records.Workspace(f"w{i}", (f"n + {i}",), "float32") for i in many)
    ),
    "configs": lambda many: op(
        X, OUT, launches=(launch("n", configs=tuple(records.Config(f"c{i}", {f"B{i}": 1}, {}) for i in many)),)
    ),
    "left out": lambda many: op(X, OUT, denied=tuple(records.Denied(f"n == {i}", "slow") for i in many)),
}


@pytest.mark.parametrize("kind", [*GROWING, *ALSO_GROWING])
def test_a_contract_is_checked_in_proportion_to_what_it_has(kind: str):
    def check(count: int, offset: int) -> int:
        contract = (GROWING | ALSO_GROWING)[kind](range(offset, offset + count))  # parsed expressions are kept
        return steps(lambda: [*structure_faults(contract), *expression_faults(contract)])

    offset = 0 if kind == "ranges" else 20_000
    few, many = check(100, offset), check(400, offset and 2 * offset)
    assert many < 6 * few, f"{many / few:.1f} times the work for 4 times as much"


@pytest.mark.parametrize("kind", GROWING)
def test_planning_takes_time_in_proportion_to_the_names(kind: str):
    def prepare(count: int, offset: int) -> int:
        contract = GROWING[kind](range(offset, offset + count))  # parsed expressions are kept
        built = variants(contract)
        layouts = {t.name: layout(4, dtype="int32" if t.range else "float32") for t in contract.tensors if t is not OUT}
        scalars = {scalar.name: 1 for scalar in contract.scalars}

        def work() -> None:
            assert not [*structure_faults(contract), *expression_faults(contract, built)]
            Planner(contract, built, "hip").decide(layouts, scalars, HERE, 304, "gfx942")

        return steps(work)

    offset = 0 if kind == "ranges" else 10_000
    few, many = prepare(100, offset), prepare(400, offset and 2 * offset)
    assert many < 6 * few, f"{many / few:.1f} times the work for 4 times the names"


def test_a_suggestion_takes_the_same_time_among_any_number_of_names():
    few, many = ([f"name{number}" for number in range(count)] for count in (1000, 10_000))
    assert steps(lambda: nearest("name", many)) < 1.1 * steps(lambda: nearest("name", few))


def test_an_index_with_many_ops_is_checked_in_proportion(sample: records.Index):
    def check(count: int) -> int:
        ops = tuple(msgspec.structs.replace(SCALED, name=f"op{i}") for i in range(count))
        index = msgspec.structs.replace(sample, ops=ops, variants=(), selftest=())
        return steps(lambda: _check_references(index))

    assert check(400) < 5 * check(100)


def test_a_fault_of_the_reader_is_still_a_bundle_error(sample: records.Index):
    index = msgspec.structs.replace(sample, ops=(GROWING["dtypes"](range(3)), SCALED), variants=(), selftest=())
    with pytest.raises(BundleError, match="an op is listed twice"):
        _check_references(index)
