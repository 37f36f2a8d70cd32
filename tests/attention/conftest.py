"""The attention ops with all that their manifest says, on the emulator."""

from __future__ import annotations

import pytest
from emulator.bundling import on_demand

from aot_runtime import Bundle


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Of gfx942, in strict mode."""
    return on_demand(tmp_path_factory, "attention", full=True)
