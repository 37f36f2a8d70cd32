"""Names that a function reads, against Python's own parser."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from aot_capture.names import names_read

PROGRAMS = sorted(Path(__file__).parents[2].glob("kernels/**/*.py"))

HEADER = """def f(x, BLOCK: tl.constexpr = BLOCK, n: "int" = 4, *, other: mod.Type = (A, B)) -> tuple[C, D]:
"""
BODY = """    # a_comment(in_it)
    '''A docstring names: nothing's read in_it'''
    y: constexpr = x.shape + mod.table.rows[0].part
    z = g(x, mask=h, other=mod.value, x=1.5e3) == k
    print(f"{inside:>{width}} outside", "it's {not_read}", 'nor \\\\' + last)
    mod.counter += BLOCK
    return [item for item in later(y)]
"""


def test_reads_of_header_and_body():
    found = names_read(HEADER + BODY, frozenset({"x", "BLOCK", "n", "other"}))
    assert found.keys() - ast_names(HEADER + BODY) == {"in", "for", "return"}
    assert found["mod"] == {"Type": {}, "table": {"rows": {}}, "value": {}, "counter": {}}
    assert found["tl"] == {"constexpr": {}} and found["BLOCK"] == {}
    assert {"A", "B", "C", "D", "constexpr", "g", "h", "k", "inside", "width", "last", "later"} <= found.keys()
    assert found.keys().isdisjoint({"x", "n", "f", "mask", "other", "in_it", "outside", "not_read", "z", "a_comment"})


def test_no_parameter_is_read_by_a_plain_header():
    assert names_read("def f(x, n):\n    return x + n\n", frozenset({"x", "n"})).keys() == {"return"}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_all_that_the_parser_reads_is_found(path: Path):
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.col_offset == 0:
            source = "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
            assert ast_names(source) <= names_read(source, frozenset()).keys()


def ast_names(source: str) -> set[str]:
    """Return the names that are loaded."""
    nodes = ast.walk(ast.parse(source))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
