"""Bundles that are built once and then only read, and copies of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aot_runtime.contract import records
from aot_runtime.contract.index_file import encode_index
from tests.support.session_builds import build_once


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The gfx942 bundle of small.yaml: it has a bit of everything."""
    return build_once(tmp_path_factory, "tests/support/small/small.yaml") / "small-gfx942"


@pytest.fixture
def sample_folder(sample: records.Index, tmp_path: Path) -> Path:
    """The sample index on its own, in a bundle's folder."""
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / records.INDEX).write_bytes(encode_index(sample))
    return tmp_path / "sample"


@pytest.fixture
def small_copy(small_bundle: Path, tmp_path: Path) -> Path:
    """A copy of `small_bundle` that a test may damage."""
    return Path(shutil.copytree(small_bundle, tmp_path / "dist/small-gfx942"))


@pytest.fixture
def rows_copy(rows_bundle: Path, tmp_path: Path) -> Path:
    """A copy of `rows_bundle` that a test may damage."""
    return Path(shutil.copytree(rows_bundle, tmp_path / "dist/rows-gfx942"))
