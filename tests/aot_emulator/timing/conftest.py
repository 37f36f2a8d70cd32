"""Replays run in Python: compiling with numba would take longer. `test_numba` compares both."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from aot_emulator.timing import compute_unit, replay


def plain_replay() -> ModuleType:
    """Return the module `replay` as it is where numba is not installed."""
    assert replay.__spec__ and replay.__spec__.origin
    spec = importlib.util.spec_from_file_location("aot_emulator.timing.replay_in_python", replay.__spec__.origin)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numba", None)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def in_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "slow" not in request.keywords:
        monkeypatch.setattr(compute_unit, "numbers", plain_replay())
