"""The packages of `examples` know each other in one direction, and the host needs numpy and the files' libraries."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ORDER = ("checkpoints", "models", "generation")
LIBRARIES = {"numpy", "ml_dtypes", "safetensors", "tokenizers", "jinja2", "aot_runtime"}


@pytest.mark.parametrize("package", ORDER)
def test_imports(package: str):
    below = set(ORDER[: ORDER.index(package) + 1])
    imported = {name for path in (EXAMPLES / package).glob("*.py") for name in imports(path)}
    assert imported - set(sys.stdlib_module_names) <= below | LIBRARIES


def imports(path: Path) -> set[str]:
    """The packages that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in plain | named}
