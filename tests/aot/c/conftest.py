"""A bundle with a bit of everything, and its dispatcher as a shared library; built once a session."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.c_interface.calling import compile_library
from tests.support.session_builds import build_once


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The gfx942 bundle of tests/support/small/small.yaml. Read only."""
    return build_once(tmp_path_factory, "tests/support/small/small.yaml") / "small-gfx942"


@pytest.fixture(scope="session")
def small_library(small_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared library of `small_bundle`'s source, compiled as C++."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler (c++)")
    return compile_library(tmp_path_factory.mktemp("c"), small_bundle / "src/small.c", language="c++17")
