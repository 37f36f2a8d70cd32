"""Documents, examples and benchmarks are run as their readers would run them, over the double of libamdhip64."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
for folder in (TESTS / "docs", TESTS / "runtime", TESTS, TESTS.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from hip_double.double import hip_double  # noqa: E402, F401  (a fixture)
from session_builds import build_once  # noqa: E402


@pytest.fixture(scope="session")
def attention_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """manifests/attention.yaml for gfx942, as far as plain attention of head_dim 64 in fp16 needs it."""
    filters = "HEAD_DIM=64,T=float16,PLAIN=true,BOUND_LEFT=false,PERSISTENT=false"
    return build_once(tmp_path_factory, "manifests/attention.yaml", filters) / "attention-gfx942"


@pytest.fixture(scope="session")
def foreign_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/foreign/manifest.yaml for gfx942."""
    return next(build_once(tmp_path_factory, "examples/foreign/manifest.yaml").glob("*-gfx942"))
