"""Provenance of a bundle: all inputs, and nothing of the machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import aot_runtime
from tests.support.building.builds import Project
from tests.support.building.projects import KERNELS, SCALE, edit

ONE = ("--filter", "dtype=float16,block=16")
HELPED = edit(
    KERNELS,
    ("import triton.language as tl\n", "import triton.language as tl\n\nfrom helper import twice\n"),
    ("(value * factor)", "twice(value * factor)"),
)
HELPER = "import triton\n\n\n@triton.jit\ndef twice(x):\n    return x + x\n"


def built(project: Project, *options: str) -> dict[str, Any]:
    result = project.build(*options)
    assert result.exit_code == 0, result.output
    return json.loads((project.folder_of() / "bundle.json").read_text())["provenance"]


def digests(provenance: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the digest of each dependency by its name or URI."""
    found = provenance["buildDefinition"]["resolvedDependencies"]
    assert len(found) == len({item.get("name", item.get("uri")) for item in found})
    return {item.get("name") or item["uri"]: item.get("digest", {}) for item in found}


def sha256(path: Path) -> dict[str, str]:
    return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_inputs_by_their_hashes_and_the_command(tmp_path: Path):
    """An included manifest, from a folder within the project's."""
    project = Project(tmp_path, SCALE, HELPED)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "sets").mkdir()
    including = tmp_path / "sets/all.yaml"
    including.write_text(f"bundle: tiny\ninclude:\n  ../{project.manifest.name}: {{scale: {{}}}}\n")
    own, project.manifest = project.manifest, including
    provenance = built(project, *ONE)
    assert provenance["buildDefinition"]["externalParameters"] == {
        "manifest": "sets/all.yaml", "arch": "gfx942", "filter": "block=16,dtype=float16", "lineInfo": False,
    }  # fmt: skip
    found = digests(provenance)
    closure = found.pop("k.py:scale_rows")
    assert found == {
        "sets/all.yaml": sha256(including),
        own.name: sha256(own),
        "k.py": sha256(tmp_path / "k.py"),
        f"pkg:pypi/triton@{importlib.metadata.version('triton')}": {},
    }
    assert closure.keys() == {"sourceClosure"}
    assert provenance["runDetails"]["builder"]["version"] == {"aotbuild": aot_runtime.__version__}
    assert str(tmp_path) not in json.dumps(provenance)


def test_what_a_kernel_calls_is_in_its_closure(tmp_path: Path):
    project = Project(tmp_path, SCALE, HELPED)
    (tmp_path / "helper.py").write_text(HELPER)
    first = digests(built(project, *ONE))
    (tmp_path / "helper.py").write_text(HELPER + "\n\nUNUSED = 1\n")
    assert digests(built(project, *ONE)) == first
    (tmp_path / "helper.py").write_text(HELPER.replace("x + x", "x * 2"))
    second = digests(built(project, *ONE))
    assert {name for name in first if first[name] != second[name]} == {"k.py:scale_rows"}


def test_what_else_is_built_with_it_makes_no_difference(tmp_path: Path):
    project, other = Project(tmp_path / "a"), Project(tmp_path / "b", SCALE.replace("bundle: tiny", "bundle: other"))
    alone = built(project, *ONE)
    (project.folder_of() / "bundle.json").unlink()
    assert built(project, *ONE, str(other.manifest)) == alone
