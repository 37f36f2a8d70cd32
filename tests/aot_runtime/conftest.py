"""Bundles that are built once and then only read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.session_builds import ROOT, session_cache, session_folder

BUILDS = (
    ("tests/aot_runtime/fixtures/small.yaml",),
    ("manifests/rows.yaml", "--filter", "op=softmax"),
    (
        "manifests/attention.yaml",
        "--filter",
        "op=flash_attention,HEAD_DIM=64,T=float16,V_ROWS=true,PERSISTENT=false",
    ),
)


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with gfx942 bundles: small-gfx942, rows-gfx942 (softmax), attention-gfx942 (float16, 64, plain)."""
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from click.testing import CliRunner
    from filelock import FileLock

    from aot.cli import main

    folder = session_folder(tmp_path_factory) / "runtime_bundles"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        if not (folder / "built").exists():
            for manifest, *options in BUILDS:
                command = ["--arch", "gfx942", *options, str(ROOT / manifest), "-o", str(folder / "dist"),
                           "--cache-dir", str(session_cache(tmp_path_factory))]  # fmt: skip
                result = CliRunner().invoke(main, command)
                assert result.exit_code == 0, result.output
            (folder / "built").touch()
    return folder / "dist"


@pytest.fixture
def small_copy(bundles: Path, tmp_path: Path) -> Path:
    """A copy of the bundle small-gfx942 that a test may damage."""
    return Path(shutil.copytree(bundles / "small-gfx942", tmp_path / "small-gfx942"))
