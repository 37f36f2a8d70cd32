"""The spaces and shortlists that are shipped: their groups fit the ops, and their calls reach them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from aot.cli import main
from aot.manifest.loading import OpSource, load_manifest
from aot.manifest.shipped import shipped_manifests
from aot.manifest.spaces import load_space
from aot.tune.candidates import read_groups
from tests.support.session_builds import ROOT

FILES = sorted((ROOT / "manifests/tuning").glob("s*/*.yaml"))


def archs(path: Path) -> list[str]:
    return sorted({arch for group in load_space(path).spec.groups for arch in group.arch})


@cache
def sources(path: Path) -> dict[str, OpSource]:
    return {source.name: source for source in load_manifest(path).sources}


def declared(op: str) -> OpSource:
    """Return the op of the manifest that declares it."""
    key = re.compile(rf"^  {op}:(?: &\w+)?$", re.MULTILINE)
    (path,) = (path for path in shipped_manifests().values() if key.search(path.read_text(encoding="utf-8")))
    return sources(path)[op]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_groups(path: Path):
    space = load_space(path)
    op = declared(space.spec.op)
    assert path.stem == space.spec.op or path.stem in [f"{space.spec.op}-{arch}" for arch in archs(path)]
    assert all(group.candidates for arch in archs(path) for group in read_groups(space, op, arch))
    if path.parent.name == "shortlists":
        assert shipped_manifests()[space.spec.manifest] == op.manifest.file.path and space.spec.modelled
        assert all(len(group.candidates) <= 20 for group in space.spec.groups)


@pytest.mark.slow
@pytest.mark.parametrize("path, arch", [(path, arch) for path in FILES for arch in archs(path)])
def test_calls_reach_their_groups(path: Path, arch: str):
    op = load_space(path).spec.op
    result = CliRunner().invoke(main, ["tune", op, "--space", str(path), "--arch", arch, "--dry-run"])
    assert result.exit_code == 0 and "left out" not in result.output, result.output
