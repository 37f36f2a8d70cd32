"""Bundles that are built once for all workers of a test session, out of one cache of compiled variants."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def session_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of a session share."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "builds"
    folder.mkdir(exist_ok=True)
    return folder


def session_cache(factory: pytest.TempPathFactory) -> Path:
    """The cache of compiled variants that all builds of a session share."""
    folder = session_folder(factory) / "cache"
    folder.mkdir(exist_ok=True)
    return folder


def build_once(factory: pytest.TempPathFactory, manifest: str | Path, filters: str = "", *archs: str) -> Path:
    """The folder with the bundles of a manifest, by a path below the project's root. Read only.

    filters: as for `--filter`. archs: gfx942 by default.
    """
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from click.testing import CliRunner
    from filelock import FileLock

    from aot.cli import main

    wanted = [f"--arch={arch}" for arch in archs or ("gfx942",)] + [f"--filter={filters}"] * bool(filters)
    name = hashlib.sha256(" ".join((str(manifest), *wanted)).encode()).hexdigest()[:16]
    folder = session_folder(factory) / name
    command = [str(ROOT / manifest), *wanted, "-o", str(folder), "--cache-dir", str(session_cache(factory))]
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "built").exists():
            result = CliRunner().invoke(main, command)
            assert result.exit_code == 0, result.output
            (folder / "built").touch()
    return folder
