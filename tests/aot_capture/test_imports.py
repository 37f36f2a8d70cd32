"""`aot_capture` runs in any user's process: Python 3.9 and later, the standard library and Triton only."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import aot_capture

FILES = sorted(Path(aot_capture.__file__).parent.rglob("*.py"))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield str(node.module)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_imports_and_syntax(path: Path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    foreign = {name.split(".")[0] for name in _imported(tree)} - sys.stdlib_module_names
    assert foreign <= {"triton", "aot_capture", "torch"}
    at_top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert "torch" not in {name for node in at_top for name in _imported(node)}
