"""Documents, examples and benchmarks are run as their readers would run them, over the double of libamdhip64."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.emulation.bundling import PLAIN_ATTENTION
from tests.support.session_builds import ROOT, build_once


@pytest.fixture(scope="session")
def attention_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return manifests/attention.yaml for gfx942, as far as plain attention of head_dim 64 in fp16 needs it."""
    return build_once(tmp_path_factory, ROOT / "manifests/attention.yaml", PLAIN_ATTENTION) / "attention-gfx942"


@pytest.fixture(scope="session")
def foreign_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return examples/foreign/manifest.yaml for gfx942."""
    return next(build_once(tmp_path_factory, "examples/foreign/manifest.yaml").glob("*-gfx942"))
