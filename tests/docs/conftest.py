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
from scripts import ROOT, build  # noqa: E402


@pytest.fixture(scope="session")
def attention_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """manifests/attention.yaml for gfx942, as far as head_dim 64 in fp16 needs it."""
    return build(
        ROOT / "manifests/attention.yaml",
        tmp_path_factory.mktemp("attention"),
        "HEAD_DIM=64,T=float16,PERSISTENT=false,op=flash_attention|flash_attention_varlen",
    )


@pytest.fixture(scope="session")
def foreign_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/foreign/manifest.yaml for gfx942."""
    return build(ROOT / "examples/foreign/manifest.yaml", tmp_path_factory.mktemp("foreign"))
