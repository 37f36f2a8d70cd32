"""Bundles that several suites look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot_runtime.contract import records
from tests.support.hip_double.double import hip_double  # noqa: F401  (a fixture)
from tests.support.sample_index import sample_index
from tests.support.session_builds import build_once


@pytest.fixture(scope="session")
def sample() -> records.Index:
    """An index with some of everything; see `sample_index`."""
    return sample_index()


@pytest.fixture(scope="session")
def rows_bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with bundles of softmax (manifests/rows.yaml) for gfx942 and sm_90, built once a session. Read only."""
    filters = "op=softmax,T=float16|float32,BLOCK=512|1024|4096|32768"
    return build_once(tmp_path_factory, "manifests/rows.yaml", filters, "gfx942", "sm_90")


@pytest.fixture(scope="session")
def rows_bundle(rows_bundles: Path) -> Path:
    """The gfx942 bundle of `rows_bundles`."""
    return rows_bundles / "rows-gfx942"
