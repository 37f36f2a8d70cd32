"""Kernels run in strict mode, without findings."""

from __future__ import annotations

import pytest

from aot_emulator.machine.launch_options import STRICT_VARIABLE


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT_VARIABLE, "1")
