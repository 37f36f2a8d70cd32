"""The attention ops with all that their manifests say, on the emulator: gfx942, in strict mode."""

from __future__ import annotations

import pytest

from aot_runtime import Bundle
from tests.support.emulation.bundling import on_demand


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return on_demand(tmp_path_factory, "attention")


@pytest.fixture(scope="session")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return on_demand(tmp_path_factory, "attention_quantised")


@pytest.fixture(scope="session")
def latent(bundle: Bundle) -> Bundle:
    return bundle
