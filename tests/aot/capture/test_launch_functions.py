"""Grids and heuristics of programs as expressions of a kernel's arguments."""

from __future__ import annotations

from typing import Any

import pytest

from aot.capture.launch_functions import function_expressions

MEANINGS = {"n": "n", "M": "M", "BLOCK": "BLOCK", "bias": "bias"}


def function(source: str, name: str = "<lambda>", parameter: str = "meta", **numbers: Any) -> dict[str, Any]:
    texts = ["n", "BLOCK"] if '"X"' in source else []
    return {"name": name, "source": source, "texts": texts, "parameters": [parameter], "numbers": numbers}


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        ('    grid = lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]), 2)\n    k[grid](x)\n', "<lambda>",
         ["cdiv(n, BLOCK)", "2"]),
        ('k[lambda meta: (meta["n"] // 2,)](\n    x, y)\n', "<lambda>", ["n // 2"]),
        ('    "EVEN": lambda meta: meta["n"] % meta["BLOCK"] == 0\n    and meta["bias"] is not None,\n    "X": 1})\n',
         "<lambda>", ["n % BLOCK == 0 and given(bias)"]),
        ('@triton.heuristics({"X": lambda meta: 3, "EVEN": lambda meta: meta["n"] % meta["BLOCK"] == 0})\n', "<lambda>",
         ["n % BLOCK == 0"]),
        ('    def grid(meta):\n        blocks = triton.cdiv(meta["n"], meta["BLOCK"])\n'
         "        return blocks, blocks + 1\n\n    k[grid](x)\n", "grid", ["cdiv(n, BLOCK)", "cdiv(n, BLOCK) + 1"]),
        ("    def grid(meta):\n        print(meta)\n        return (1,)\n", "grid", []),
        ("    grid = lambda meta: (x.shape[0], meta['M'])\n", "<lambda>", [None, "M"]),
        ("    grid = lambda meta: (open('f').read(), meta['other'])\n", "<lambda>", [None, None]),
        ("    grid = lambda meta: (meta['M'], \n", "<lambda>", []),
        ("", "<lambda>", []),
    ],
)  # fmt: skip
def test_functions(source: str, name: str, expected: list[str | None]):
    assert function_expressions([function(source, name)], [{}], MEANINGS) == expected


def test_numbers_of_the_program_are_arguments_by_name_or_by_value():
    source = "grid = lambda meta: (rows, n)\n"

    def expressions(*launches: tuple[int, int, dict[str, int]]) -> list[str | None]:
        functions = [function(source, rows=rows, n=n) for rows, n, _ in launches]
        return function_expressions(functions, [arguments for *_, arguments in launches], MEANINGS)

    assert expressions((4, 7, {"M": 4, "n": 7})) == [None, "n"]  # one launch: that M is 4 may be by chance
    assert expressions((4, 7, {"M": 4, "n": 7}), (5, 8, {"M": 5, "n": 8})) == ["M", "n"]
    assert expressions((4, 7, {"M": 4, "n": 7}), (5, 8, {"M": 6, "n": 8})) == [None, "n"]
    assert expressions((4, 7, {"M": 4, "n": 9})) == [None, None]


def test_launches_with_several_functions_have_no_expression():
    one, other = function("lambda meta: (meta['n'],)"), function("lambda meta: (meta['M'],)")
    assert function_expressions([one, other], [{}, {}], MEANINGS) == []
    assert function_expressions([[4, 1]], [{}], MEANINGS) == function_expressions([None], [{}], MEANINGS) == []
