"""Expressions in C against the runtime's evaluator: the shipped ones, and random ones."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aot.manifest.loading import load_manifest
from aot.plan.bundles import all_option_names
from aot.plan.contract import build_contract
from aot_runtime.contract.expressions import FUNCTIONS, evaluator, parse, query_name
from aot_runtime.contract.names import Scope
from aot_runtime.errors import ExpressionError
from tests.support.c_interface.evaluating import EvaluatedInC, FaultError

ROOT = Path(__file__).parents[3]
INTEGERS = (0, 1, -1, 2, 3, 7, 16, 64, 100, 128, 4096, 65536, 2**31 - 1, 2**31, 2**53 + 1, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, 0.5, -2.5, 64.0, 1e-30, 3e300, 2.0**53, 2.0**63, -(2.0**63), math.inf, -math.inf, math.nan)
HARD = (
    "a // b", "a % b", "a / b", "a + b", "a - b", "a * b", "cdiv(a, b)", "min(a, b, c)", "max(a, b, c)", "abs(a)", "-a",
    "+a", "not a", "a and b", "a or b", "a if b else c", "a < b <= c", "a == b != c", "a > b >= c", "a ** 3", "a ** -2",
    "a ** 0.5", "a ** (-0.5)", "a ** 0", "next_pow2(a)", "9223372036854775807 + a", "-9223372036854775808 // a",
    "18446744073709551616 > a", "1e400 > a", "(a < b) + (b < c)", "a < (b < c) < (c < a)", "s == 'x' or s == a",
    "'x' if a else 'y'", "s != s", "True and a", "1 < 2 < 3",
)  # fmt: skip


def outcome(evaluate: Any) -> Any:
    """Return a value with its type, or None where there is none, or none of 64 bits."""
    try:
        value = evaluate()
    except (ArithmeticError, TypeError, ExpressionError, FaultError):
        return None
    if isinstance(value, complex) or (isinstance(value, int) and not -(2**63) <= value < 2**63):
        return None
    return type(value), repr(value)


def compare(found: EvaluatedInC, text: str, names: dict[str, Any]) -> bool:
    """Assert that C has Python's value, or none if 64 bits cannot hold it."""
    ours = outcome(lambda: found.value(text, names))
    theirs = outcome(lambda: evaluator(text)(names))
    assert ours is None or ours == theirs, (text, names, ours, theirs)
    return ours is not None or theirs is None


@pytest.fixture(scope="module")
def hard(tmp_path_factory: pytest.TempPathFactory) -> EvaluatedInC:
    return EvaluatedInC(HARD, "abcs", tmp_path_factory.mktemp("hard"))


BEYOND = {"a / b", "cdiv(a, b)", "18446744073709551616 > a", "9223372036854775807 + a", "-9223372036854775808 // a"}
"""Expressions that C refuses: an intermediate value needs more than 64 bits, or a dividend is not a float."""


@pytest.mark.parametrize("text", HARD)
def test_every_operator_is_pythons(hard: EvaluatedInC, text: str):
    values = (*INTEGERS, *FLOATS, True, False)
    drawn = random.Random(text)
    refused = 0
    for a in values:
        for b in values:
            names = {"a": a, "b": b, "c": drawn.choice(values), "s": drawn.choice("xyz")}
            refused += not compare(hard, text, {name: names[name] for name in parse(text).names})
    assert refused == 0 or text in BEYOND


def test_integers_beyond_64_bits_are_faults(hard: EvaluatedInC):
    for text, names in (
        ("a + b", {"a": 2**63 - 1, "b": 1}),
        ("a * b", {"a": 2**32, "b": 2**31}),
        ("-a", {"a": -(2**63)}),
        ("a // b", {"a": -(2**63), "b": -1}),
        ("a ** 3", {"a": 2**21}),
        ("next_pow2(a)", {"a": 2**62 + 1}),
        ("a / b", {"a": 2**53 + 1, "b": 3}),
        ("a // b", {"a": 1, "b": 0}),
        ("a ** 0.5", {"a": -1}),
    ):
        with pytest.raises(FaultError):
            hard.value(text, names)
    assert hard.value("a and b", {"a": 0, "b": 5}) is False


def shipped(*manifests: str) -> dict[str, dict[str, type]]:
    """Return expression → the names that it reads with their types, of every contract of these manifests."""
    found: dict[str, dict[str, type]] = {}
    for manifest in manifests:
        for source in load_manifest(ROOT / f"manifests/{manifest}.yaml").sources:
            op = build_contract(source.manifest, source.name, "gfx942", all_option_names())
            for _, text, known in Scope.of(op).expressions(op):
                read = parse(text)
                queries = {
                    query_name(*query): bool if query[0] in ("given", "innermost") else int for query in read.queries
                }
                found.setdefault(read.text, {name: known[name] for name in read.names} | queries)
    return found


@pytest.mark.parametrize(
    "manifests",
    [
        ("attention", "gemm"),
        pytest.param([path.stem for path in (ROOT / "manifests").glob("*.yaml")], marks=pytest.mark.slow),
    ],
    ids=["two", "all"],
)
def test_every_shipped_expression_over_many_values(tmp_path: Path, manifests: Sequence[str]):
    texts = shipped(*manifests)
    assert len(texts) > 100
    names = dict.fromkeys(name for read in texts.values() for name in read)
    found = EvaluatedInC(texts, names, tmp_path)
    drawn = random.Random(1)
    words = ("none", "auto", "float16", "float32", "gelu", "bottom_right", "zeros", "fnuz", "other")
    valued = refused = 0
    for text, read in texts.items():
        for _ in range(60):
            values = {
                name: drawn.choice(words) if kind is str else bool(drawn.getrandbits(1)) if kind is bool
                else drawn.choice(FLOATS) if kind is float
                else drawn.choice(INTEGERS[:13]) if drawn.random() < 0.8 else drawn.randrange(2**31)
                for name, kind in read.items()
            }  # fmt: skip
            refused += not compare(found, text, values)
            valued += outcome(lambda text=text, values=values: found.value(text, values)) is not None
    assert valued > 50 * len(texts) and refused < len(texts)
    assert {name for name in FUNCTIONS if any(name in text for text in texts)} >= {"cdiv", "max", "min"}
