"""The expression language: what it takes, what it refuses, what it gives, and that no text harms whoever reads it."""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import strategies as st

from aot_runtime.contract.evaluation import evaluator, python_tree
from aot_runtime.contract.expressions import FUNCTIONS, MAX_DEPTH, MAX_LENGTH, UNKNOWN, next_pow2, parse, query_name
from aot_runtime.errors import ExpressionError
from tests.support.fuzzing import fuzz

NAMES = ("batch", "heads", "n")


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
        ("elsize(x) * stride(x, rows) + stride(x, 1)", {"_elsize__x": 2, "_stride__x__rows": 8, "_stride__x__1": 1},
        17),
        ("1e999 > n", {"n": 10**300}, True),
        ("n or 1", {"n": 0}, True),
        ("n and 4", {"n": 3}, True),
    ],
)  # fmt: skip
def test_values(text: str, env: dict[str, Any], value: Any):
    found = parse(text).evaluate(env)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not an expression"),
        ("a +", "is not an expression"),
        ("a; b", "is not an expression"),
        ("x = 1", "is not an expression"),
        ("import os", "is not an expression"),
        ("a.b", "'a.b' is not part of the expression language"),
        ("a[0]", "'a[0]' is not part"),
        ("(a, b)", "'(a, b)' is not part"),
        ("[a]", "is not part"),
        ("{a: 1}", "is not part"),
        ("[a for a in n]", "is not part"),
        ("lambda: a", "is not part"),
        ("(a := 1)", "is not part"),
        ("f'{a}'", "is not part"),
        ("a if b else c.d", "'c.d' is not part"),
        ("None", "'None' is not part"),
        ("...", "is not part"),
        ("1j", "'1j' is not part"),
        ("b'a'", "is not part"),
        ("await a", "is not part"),
        ("*a", "is not an expression | is not part"),
        ("~a", "'~a' is not part"),
        ("a & b", "is not part"),
        ("a << 70", "is not part"),
        ("a @ b", "is not part"),
        ("a is b", "is not part"),
        ("a in b", "is not part"),
        ("__import__('os')", "unknown function '__import__'"),
        ("__import__", "name '__import__' starts with an underscore"),
        ("_x", "starts with an underscore"),
        ("open('x')", "unknown function 'open'"),
        ("cdif(a, b)", "did you mean 'cdiv'"),
        ("a.b()", "is not part"),
        ("(min)(1, 2)(3)", "is not part"),
        ("min", "'min' is a function; call it"),
        ("given", "'given' is a function"),
        ("cdiv(a)", "cdiv() takes 2 arguments"),
        ("max(a)", "max() takes 2 to 8 arguments"),
        ("max(*a, 1)", "max() takes"),
        ("cdiv(a, b=1)", "takes its arguments by position"),
        ("given(a + b)", "given() takes names"),
        ("given('a')", "given() takes names"),
        ("given(3)", "given() takes names"),
        ("given(a, b)", "given() takes 1"),
        ("stride(x)", "stride() takes 2"),
        ("stride(x, -1)", "stride() takes names"),
        ("stride(x, True)", "stride() takes names"),
        ("a ** b", "an exponent is a literal number of at most 16"),
        ("a ** 17", "at most 16"),
        ("a ** True", "literal number"),
        ("9 ** 9 ** 9", "literal number | power of a power"),
        ("(a ** 16) ** 16", "a power of a power"),
        ("(a ** 16 * a) ** 16", "a power of a power"),
        ("a\0b", "is not an expression | cannot be parsed"),
        ("'\ud800'", "cannot be parsed"),
        ("n" * (MAX_LENGTH + 1), "at most 1000 are allowed"),
        ("+".join(["n"] * 480), "nested | at most 1000"),
        ("-" * 900 + "n", "nested"),
        ("not " * 240 + "n", "nested"),
        ("(" * 400 + "n" + ")" * 400, "is not an expression | nested"),
        ("n if n else " * 80 + "n", "nested"),
    ],
)  # fmt: skip
def test_refused(text: str, reason: str):
    with pytest.raises(ExpressionError) as raised:
        parse(text)
    assert any(words in str(raised.value) for words in reason.split(" | ")), raised.value


def test_a_flat_list_of_conditions_may_be_long():
    text = " and ".join(["n > 1"] * 80)
    assert parse(text).evaluate({"n": 2}) is True


def test_nesting_below_the_limit_is_evaluated():
    assert parse("-" * (MAX_DEPTH - 2) + "n").evaluate({"n": 5}) == 5


# Names and types.

SCOPE = {"n": int, "mode": str, "T": str, "flag": bool}


@pytest.mark.parametrize("text", ["mode == 'fast'", "'a' if flag else mode", "n if mode != 'a' else 2", "mode",
                                  "('a' if flag else mode) == T", "elsize(T) * n", "given(x)"])  # fmt: skip
def test_text_may_be_compared_and_chosen(text: str):
    parse(text).check_names(SCOPE, {"x": object()})


@pytest.mark.parametrize(
    "text",
    ["mode * 3", "'a' + mode", "mode < 'b'", "not mode", "mode and flag", "min(mode, 'a')", "n if mode else 2", "-mode",
     "mode == 'a' < 'b'", "(mode if flag else 'a') * n", "next_pow2('a')", "mode % n", "'%99999999d' % n"],
)  # fmt: skip
def test_text_is_not_computed_with(text: str):
    with pytest.raises(ExpressionError, match="text can only be compared"):
        parse(text).check_names(SCOPE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mod + 1", "undefined name 'mod'; did you mean 'mode'"),
        ("given(y)", "given(y): 'y' is no tensor; known: x"),
        ("elsize(n)", "'n' is no tensor"),
        ("stride(T, 0)", "'T' is no tensor"),
    ],
)
def test_names_must_be_known(text: str, reason: str):
    with pytest.raises(ExpressionError) as raised:
        parse(text).check_names(SCOPE, {"x": object()})
    assert reason in str(raised.value)


def test_names_and_queries_are_collected():
    found = parse("a + min(b, c) if given(t) else elsize(t) * stride(t, d)")
    assert found.names == {"a", "b", "c"}
    assert found.queries == {("given", "t"), ("elsize", "t"), ("stride", "t", "d")}
    assert found.reads == {"a", "b", "c", "_given__t", "_elsize__t", "_stride__t__d"}


# Errors of evaluation.


@pytest.mark.parametrize(
    ("text", "env"),
    [("n / m", {"n": 1, "m": 0}), ("n % m", {"n": 1, "m": 0}), ("cdiv(n, m)", {"n": 1, "m": 0}), ("n ** -0.5",
     {"n": 0}),
     ("n * 1.5 * m", {"n": 10**400, "m": 1}), ("n < m", {"n": 1, "m": "a"}), ("n ** 0.5 < 2", {"n": -1}),
     ("next_pow2(n)", {"n": 1.5}), ("abs(n)", {"n": "a"})],
)  # fmt: skip
def test_what_has_no_value_is_an_error(text: str, env: dict[str, Any]):
    with pytest.raises(ExpressionError, match="cannot be evaluated"):
        parse(text).evaluate(env)


def test_missing_values_are_named():
    with pytest.raises(ExpressionError, match="'a \\+ b' needs b, which has no value here"):
        parse("a + b").evaluate({"a": 1})


@pytest.mark.parametrize("n", [-3, 0, 1, 2, 3, 4, 5, 1023, 1024, 1025, 2**40 + 1])
def test_next_pow2(n: int):
    found = next_pow2(n)
    assert found >= n and found & (found - 1) == 0
    assert found == 1 or found // 2 < n


# Generated expressions.

integers = st.integers(-100, 100).map(lambda n: str(n) if n >= 0 else f"({n})")


def combine(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(children, st.sampled_from(["+", "-", "*", "//", "%", "<", "<=", "==", "!="]), children).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        st.tuples(children, st.sampled_from(["and", "or"]), children).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        st.tuples(children, children, children).map(lambda p: f"({p[0]} if {p[1]} else {p[2]})"),
        st.tuples(st.sampled_from(["min", "max", "cdiv"]), children, children).map(lambda p: f"{p[0]}({p[1]}, {p[2]})"),
        st.tuples(st.sampled_from(["-", "not "]), children).map(lambda p: f"({p[0]}{p[1]})"),
        st.tuples(children, st.integers(0, 2)).map(lambda p: "1" if "**" in p[0] else f"(abs({p[0]}) + 1) ** {p[1]}"
        ),
    )  # fmt: skip


expressions = st.recursive(integers | st.sampled_from(NAMES), combine, max_leaves=12)
environments = st.fixed_dictionaries({name: st.integers(-50, 50) for name in NAMES})


def outcome(compute: Any) -> Any:
    """The value, or that there is none."""
    try:
        return compute()
    except (ExpressionError, ArithmeticError):
        return "no value"


@fuzz(expressions, environments)
def test_evaluation_agrees_with_what_is_compiled(text: str, env: dict[str, int]):
    compiled = outcome(lambda: evaluator(text)(env))
    found = outcome(lambda: parse(text).evaluate(env))
    assert found == compiled and type(found) is type(compiled)


@fuzz(expressions.filter(lambda text: " and " not in text and " or " not in text), environments)
def test_evaluation_is_pythons(text: str, env: dict[str, int]):
    python = outcome(lambda: eval(text, {"__builtins__": {}, **FUNCTIONS}, dict(env)))
    assert outcome(lambda: parse(text).evaluate(env)) == python


@fuzz(expressions)
def test_the_canonical_spelling_is_stable(text: str):
    once = parse(text)
    again = parse(once.text)
    assert (again.text, again.names, again.queries) == (once.text, once.names, once.queries)


@fuzz(expressions, environments, st.sets(st.sampled_from(NAMES)))
def test_what_is_decided_in_part_is_decided_as_in_whole(text: str, env: dict[str, int], hidden: set[str]):
    expression = parse(text)
    some = {name: value for name, value in env.items() if name not in hidden}
    part = outcome(lambda: expression.partial(some))
    if part is not UNKNOWN and part != "no value":
        whole = outcome(lambda: expression.evaluate(env))
        assert whole in (part, "no value")  # what was never looked at may have none
    if not hidden:
        assert part is not UNKNOWN


@pytest.mark.parametrize(
    ("text", "value"),
    [("False and x", False), ("x and False", False), ("True or x", True), ("x or True", True), ("x or False", UNKNOWN),
     ("x and True", UNKNOWN), ("1 if True else x", 1), ("x if False else 2", 2), ("1 if x else 1", UNKNOWN),
     ("2 < 1 < x", False), ("x < 2 < 1", False), ("1 < 2 < x", UNKNOWN), ("x * 0", UNKNOWN), ("min(1, x)", UNKNOWN),
     ("given(x)", UNKNOWN), ("not x", UNKNOWN)],
)  # fmt: skip
def test_partial(text: str, value: Any):
    assert parse(text).partial({}) is value or parse(text).partial({}) == value


# Hostile text.

HARMLESS = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp,
    ast.Call, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip


def harmless(text: str) -> None:
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
        expression.evaluate(dict.fromkeys(expression.reads, 3))


@fuzz(st.text(max_size=60))
def test_any_text_is_an_expression_or_an_expression_error(text: str):
    harmless(text)


pieces = st.sampled_from(
    ["__import__('os')", "print", "(", ")", "[", "]", ".", "a", "b", "1", "'x'", '"', "'", ",", "**", "*", "-", "not ",
     " and ", " or ", " if ", " else ", "lambda", ":", "=", ":=", "{", "}", "min(", "given(", "stride(", "\n", "\\",
     "#",
     "9" * 30,
     "0x", "1e", "j", "_", "\U0001d51e", "\ufb01", "\0", "exec", "True", "None", "await ", "yield ", ";", "@", "f'",
     "{a}"]
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:invalid escape", "ignore:invalid decimal", "ignore:invalid hexadecimal")
@fuzz(st.lists(pieces, max_size=14).map("".join))
def test_pieces_of_python_are_an_expression_or_an_expression_error(text: str):
    harmless(text)


def test_query_names_are_no_names_of_the_language():
    with pytest.raises(ExpressionError, match="underscore"):
        parse(query_name("given", "bias"))
