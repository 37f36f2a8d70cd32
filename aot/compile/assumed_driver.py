"""Which GPU Triton says there is, while the decorators of a kernel are read: the one that is built for.

A file may choose its configs by `triton.runtime.driver.active.get_current_target()`; a build has no driver to ask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aot.targets import Target


class _Driver:
    """A driver that knows its target, and has no device."""

    def __init__(self, target: Target):
        self._target = target

    def get_current_target(self) -> Any:
        return self._target.gpu_target()

    def get_current_device(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"a build for {self._target.arch} has no device to ask: driver.{name}")


@contextmanager
def assumed_driver(target: Target) -> Iterator[None]:
    """Have Triton's active driver be one of this target."""
    from triton.runtime.driver import driver

    before = driver._active
    driver.set_active(_Driver(target))
    try:
        yield
    finally:
        driver._active = before
