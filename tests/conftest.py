"""Bundles that several suites look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_index import sample_index

from aot_runtime import format as fmt

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def sample() -> fmt.Index:
    """An index with some of everything; see `sample_index`."""
    return sample_index()


@pytest.fixture(scope="session")
def rows_bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with bundles of softmax (manifests/rows.yaml) for gfx942 and sm_90, built once a session. Read only."""
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from click.testing import CliRunner

    from aot.cli import main

    folder = tmp_path_factory.mktemp("bundles")
    filters = "op=softmax,T=float16|float32,BLOCK=512|1024|4096|32768"
    command = ["--arch", "gfx942", "--arch", "sm_90", "--filter", filters,
               str(ROOT / "manifests/rows.yaml"), "-o", str(folder), "--cache-dir", str(folder / "cache")]  # fmt: skip
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="session")
def rows_bundle(rows_bundles: Path) -> Path:
    """The gfx942 bundle of `rows_bundles`."""
    return rows_bundles / "rows-gfx942"
