"""The expression language: accepted and refused texts, values, and safety for any text."""

from __future__ import annotations

import ast
import warnings
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import strategies as st

from aot_runtime.contract.expressions import (
    FUNCTIONS,
    MAX_DEPTH,
    MAX_LENGTH,
    evaluator,
    next_pow2,
    parse,
    python_tree,
    query_name,
)
from aot_runtime.contract.partial_evaluation import UNKNOWN, evaluate, partial_value
from aot_runtime.errors import ExpressionError
from tests.support.fuzzing import fuzz

NAMES = ("batch", "heads", "n")
KEYWORDS = ("not", "and", "or", "if", "else", "await", "yield")


@pytest.mark.parametrize(
    ("text", "env", "value"),
    [
        ("cdiv(n, 16) * 2", {"n": 33}, 6),
        ("n ** -0.5", {"n": 64}, 0.125),
        ("-n // 4 + n % 3", {"n": 7}, -1),
        ("2 <= n < 9", {"n": 9}, False),
        ("1 if n > 4 else 'two'", {"n": 4}, "two"),
        ("mode == 'fast' and not n", {"mode": "fast", "n": 0}, True),
        ("max(n, 3, 5) - min(n, 3) + abs(-n)", {"n": 4}, 6),
        ("next_pow2(n)", {"n": 65}, 128),
        ("given(bias)", {"_given__bias": True}, True),
        ("elsize(x) * stride(x, rows)", {"_elsize__x": 2, "_stride__x__rows": 8}, 16),
        ("1e999 > n", {"n": 10**300}, True),
        ("n or 1", {"n": 0}, True),
        ("n and 4", {"n": 3}, True),
        (" and ".join(["n > 1"] * 80), {"n": 2}, True),
        ("-" * (MAX_DEPTH - 2) + "n", {"n": 5}, 5),
    ],
)
def test_values(text: str, env: dict[str, Any], value: Any):
    found = evaluate(parse(text), env)
    assert (found, type(found)) == (value, type(value))


REFUSED = {
    "is not an expression": ["", "a +", "a; b", "x = 1", "import os", "*a", "a\0b", "(" * 400 + "n" + ")" * 400],
    "' is not part of the expression language": [
        *("a.b", "a[0]", "(a, b)", "[a]", "{a: 1}", "[a for a in n]", "lambda: a", "(a := 1)", "f'{a}'", "None"),
        *("a if b else c.d", "...", "1j", "b'a'", "await a", "~a", "a & b", "a << 70", "a @ b", "a is b", "a in b"),
        *("a.b()", "(min)(1, 2)(3)"),
    ],
    "unknown function": ["__import__('os')", "open('x')"],
    "did you mean 'cdiv'": ["cdif(a, b)"],
    "starts with an underscore": ["__import__", "_x", query_name("given", "bias")],
    "is a function; call it": ["min", "cdiv"],
    "cdiv() takes 2 arguments": ["cdiv(a)"],
    "max() takes 2 to 8 arguments": ["max(a)", "max(*a, 1)"],
    "takes its arguments by position": ["cdiv(a, b=1)"],
    "given() takes names": ["given(a + b)", "given('a')", "given(3)"],
    "given() takes 1": ["given(a, b)"],
    "stride() takes 2": ["stride(x)"],
    "stride() takes names": ["stride(x, -1)", "stride(x, True)"],
    "an exponent is a literal number of at most 16": ["a ** b", "a ** 17", "a ** True", "9 ** 9 ** 9"],
    "a power of a power": ["(a ** 16) ** 16", "(a ** 16 * a) ** 16"],
    "cannot be parsed": ["'\ud800'"],
    "at most 4000 are allowed": ["n" * (MAX_LENGTH + 1)],
    "nested": ["+".join(["n"] * 480), "-" * 900 + "n", "not " * 240 + "n", "n if n else " * 80 + "n"],
}


@pytest.mark.parametrize(("reason", "text"), [(reason, text) for reason, texts in REFUSED.items() for text in texts])
def test_refused(reason: str, text: str):
    with pytest.raises(ExpressionError) as raised:
        parse(text)
    assert reason in str(raised.value) or "cannot be parsed" in str(raised.value), raised.value


SCOPE = {"n": int, "mode": str, "T": str, "flag": bool}
COMPARED = ["mode == 'fast'", "'a' if flag else mode", "n if mode != 'a' else 2", "mode"]
COMPARED += ["('a' if flag else mode) == T", "elsize(T) * n", "given(x)"]
COMPUTED = ["mode * 3", "'a' + mode", "mode < 'b'", "not mode", "mode and flag", "min(mode, 'a')", "n if mode else 2"]
COMPUTED += ["-mode", "mode == 'a' < 'b'", "(mode if flag else 'a') * n", "next_pow2('a')", "mode % n"]
COMPUTED += ["'%99999999d' % n"]


@pytest.mark.parametrize("text", COMPARED)
def test_text_may_be_compared_and_chosen(text: str):
    parse(text).check_names(SCOPE, {"x": object()})


@pytest.mark.parametrize("text", COMPUTED)
def test_text_is_not_computed_with(text: str):
    with pytest.raises(ExpressionError, match="text can only be compared"):
        parse(text).check_names(SCOPE)


UNKNOWN_NAMES = {
    "mod + 1": "undefined name 'mod'; did you mean 'mode'",
    "given(y)": "given(y): unknown tensor 'y'; known: x",
    "elsize(n)": "unknown tensor 'n'",
    "stride(T, 0)": "unknown tensor 'T'",
}


@pytest.mark.parametrize(("text", "reason"), UNKNOWN_NAMES.items())
def test_names_must_be_known(text: str, reason: str):
    with pytest.raises(ExpressionError) as raised:
        parse(text).check_names(SCOPE, {"x": object()})
    assert reason in str(raised.value)


def test_names_and_queries_are_collected():
    found = parse("a + min(b, c) if given(t) else elsize(t) * stride(t, d)")
    assert found.names == {"a", "b", "c"}
    assert found.queries == {("given", "t"), ("elsize", "t"), ("stride", "t", "d")}
    assert found.reads == {"a", "b", "c", "_given__t", "_elsize__t", "_stride__t__d"}


NO_VALUE: list[tuple[str, dict[str, Any]]] = [(text, {"n": 1, "m": 0}) for text in ("n / m", "n % m", "cdiv(n, m)")]
NO_VALUE += [("n ** -0.5", {"n": 0}), ("n ** 0.5 < 2", {"n": -1}), ("n * 1.5 * m", {"n": 10**400, "m": 1})]
NO_VALUE += [("n < m", {"n": 1, "m": "a"}), ("next_pow2(n)", {"n": 1.5}), ("abs(n)", {"n": "a"})]


@pytest.mark.parametrize(("text", "env"), NO_VALUE)
def test_what_has_no_value_is_an_error(text: str, env: dict[str, Any]):
    with pytest.raises(ExpressionError, match="cannot be evaluated"):
        evaluate(parse(text), env)
    with pytest.raises(ExpressionError, match=r"' needs [nm, ]+, which has no value here"):
        evaluate(parse(text), {})


def test_next_pow2():
    for n in (-3, 0, 1, 2, 3, 4, 5, 1023, 1024, 1025, 2**40 + 1):
        found = next_pow2(n)
        assert found >= n and found & (found - 1) == 0 and (found == 1 or found // 2 < n)


integers = st.integers(-100, 100).map(lambda n: str(n) if n >= 0 else f"({n})")
OPERATORS = ("+", "-", "*", "//", "%", "<", "<=", "==", "!=", "and", "or")


def combine(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def made(form: str, *parts: st.SearchStrategy[object]) -> st.SearchStrategy[str]:
        return st.tuples(*parts).map(lambda drawn: form.format(*drawn))

    return st.one_of(
        made("({} {} {})", children, st.sampled_from(OPERATORS), children),
        made("({} if {} else {})", children, children, children),
        made("{}({}, {})", st.sampled_from(["min", "max", "cdiv"]), children, children),
        made("({}{})", st.sampled_from(["-", "not "]), children),
        made("(abs({}) + 1) ** {}", children.filter(lambda text: "**" not in text), st.integers(0, 2)),
    )


expressions = st.recursive(integers | st.sampled_from(NAMES), combine, max_leaves=12)
environments = st.fixed_dictionaries({name: st.integers(-50, 50) for name in NAMES})


def outcome(compute: Any) -> Any:
    """Return the value, or that there is none."""
    try:
        return compute()
    except (ExpressionError, ArithmeticError):
        return "no value"


@fuzz(expressions, environments)
def test_evaluation_is_pythons_and_that_of_what_is_compiled(text: str, env: dict[str, int]):
    expression = parse(text)
    found = outcome(lambda: evaluate(expression, env))
    compiled = outcome(lambda: evaluator(text)(env))
    assert found == compiled and type(found) is type(compiled)
    if " and " not in text and " or " not in text:
        assert found == outcome(lambda: eval(text, {"__builtins__": {}, **FUNCTIONS}, dict(env)))
    again = parse(expression.text)
    assert (again.text, again.names, again.queries) == (expression.text, expression.names, expression.queries)


@fuzz(expressions, environments, st.sets(st.sampled_from(NAMES)))
def test_what_is_decided_in_part_is_decided_as_in_whole(text: str, env: dict[str, int], hidden: set[str]):
    expression = parse(text)
    some = {name: value for name, value in env.items() if name not in hidden}
    part = outcome(lambda: partial_value(expression, some))
    if part is not UNKNOWN and part != "no value":
        whole = outcome(lambda: evaluate(expression, env))
        assert whole in (part, "no value")  # what was never looked at may have none
    if not hidden:
        assert part is not UNKNOWN


DECIDED = [(False, text) for text in ("False and x", "x and False", "2 < 1 < x", "x < 2 < 1")]
DECIDED += [(True, "True or x"), (True, "x or True"), (1, "1 if True else x"), (2, "x if False else 2")]
OPEN = ("x or False", "x and True", "1 if x else 1", "1 < 2 < x", "x * 0", "min(1, x)", "given(x)", "not x")


@pytest.mark.parametrize(("value", "text"), [*DECIDED, *((UNKNOWN, text) for text in OPEN)])
def test_partial(value: Any, text: str):
    assert partial_value(parse(text), {}) == value


HARMLESS = (ast.Expression, ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare)
HARMLESS += (ast.IfExp, ast.Call, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


PIECES = "__import__('os') print ( ) [ ] . a b 1 'x' \" ' , ** * - lambda : = := { } min( given( stride( \\ # 0x 1e j _"
PIECES += " \U0001d51e \ufb01 \0 exec True None ; @ f' {a}"
pieces = st.sampled_from([*PIECES.split(), " ", "\n", "9" * 30, *(f" {word} " for word in KEYWORDS)])


@pytest.mark.filterwarnings("ignore:invalid escape", "ignore:invalid decimal", "ignore:invalid hexadecimal")
@fuzz(st.text(max_size=60) | st.lists(pieces, max_size=14).map("".join))
def test_any_text_is_an_expression_or_an_expression_error(text: str):
    try:
        expression = parse(text)
    except ExpressionError:
        return
    assert parse(expression.text).text == expression.text
    tree = python_tree(text)
    compile(tree, "<test>", "eval")
    for node in ast.walk(tree):
        assert isinstance(node, HARMLESS), ast.dump(tree)
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS
    with suppress(ExpressionError):
        evaluate(expression, dict.fromkeys(expression.reads, 3))


@pytest.mark.parametrize(
    ("text", "value"),
    [(r"mode == '\d'", False), (r"mode != '\777'", True), ("1or n", True), ("1if n else 2", 1)],
)
def test_python_says_nothing_of_an_expression(text: str, value: Any):
    parse.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        assert evaluate(parse(text), {"mode": "x", "n": 2}) == value
        assert evaluator(text)({"mode": "x", "n": 2}) == value
        assert warnings.filters == before
