"""Kernels are loaded as on a machine without a GPU, so that they are the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _NoDriver:
    """What Triton's driver is while kernels are loaded: whoever asks it is told that there is none."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no driver is active: kernels are built for an architecture, not for the GPU of a machine")


@contextmanager
def no_driver() -> Iterator[None]:
    """Let code that asks Triton for the GPU of the machine find none."""
    from triton.runtime.driver import driver

    before = driver._active
    driver.set_active(_NoDriver())
    try:
        yield
    finally:
        driver._active = before
