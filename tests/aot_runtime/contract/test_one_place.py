"""Names of dtypes and drivers occur only in their tables; other code uses the rows."""

from __future__ import annotations

import ast
from pathlib import Path

from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.device.drivers import DRIVERS
from tests.support.session_builds import ROOT
from tests.support.sources import sources

WITHOUT_TABLES = "aot_capture"
"""The package that runs beside any Triton: it cannot import the tables."""
TABLES = {
    "runtime/aot_runtime/contract/dtypes.py": {*DTYPES},
    "runtime/aot_runtime/contract/arch.py": {"hip", "cuda"},
    "runtime/aot_runtime/device/drivers/__init__.py": {"emulator"},
}
OTHER_MEANINGS = {
    "aot/c/apis.py": {"hip"},  # a package of CMake
    "aot/c/spelling.py": {"bool"},  # a keyword of C++
    "aot/draft/host_torch.py": {"cuda"},  # a method of torch's tensors
    "aot/manifest/yamlfile.py": {"bool"},  # a tag of YAML
    "runtime/aot_emulator/state/numerics.py": {"float32", "float64"},  # how matrix instructions sum
    "runtime/aot_runtime/call/calls_file.py": {"bool"},  # a tag of YAML
    "runtime/aot_bundle/command/diagnosis.py": {"emulator"},  # an extra of the distribution
}
"""File → names in it that mean something else than a dtype or a driver."""


def literals(path: Path) -> set[str]:
    """Return the names of dtypes and drivers that a file's code has as text; docstrings are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documents = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in documents)
    return {node.value for node in texts if isinstance(node.value, str)} & {*DTYPES, *DRIVERS}


def test_dtypes_and_drivers_are_named_in_their_tables():
    files = sorted(sources(ROOT))
    found = {path.relative_to(ROOT).as_posix(): literals(path) for path in files}
    found = {name: texts for name, texts in found.items() if not name.startswith(f"{WITHOUT_TABLES}/")}
    allowed = {**TABLES, **OTHER_MEANINGS}
    assert {name: texts for name, texts in found.items() if texts - allowed.get(name, set())} == {}
    assert {name: found[name] for name in allowed} == allowed, "nothing is allowed that is not there"
