"""A driver for Triton while kernels are loaded: it names the GPU that is built for, never that of the machine.

A file may choose constants or configs by `triton.runtime.driver.active.get_current_target()`; a build has no driver to
ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aot.targets import Target


class _Driver:
    """A driver that knows its target, and has no device.

    Args:
        asked: called when it is asked for anything. A file that asks is loaded anew for another target.
    """

    def __init__(self, target: Target | None, asked: Callable[[], None]):
        self._target, self._asked = target, asked

    def get_current_target(self) -> Any:
        if self._target is None:
            return self.__getattr__("get_current_target")
        self._asked()
        return self._target.gpu_target()

    def get_current_device(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        self._asked()
        build = f"a build for {self._target.arch}" if self._target else "whoever reads a kernel"
        raise RuntimeError(f"{build} has no device to ask: driver.{name}")


@contextmanager
def assumed_driver(target: Target | None, asked: Callable[[], None]) -> Iterator[None]:
    """Have Triton's active driver be one of this target; of none, one that cannot be asked."""
    from triton.runtime.driver import driver

    before = driver._active
    driver.set_active(_Driver(target, asked))
    try:
        yield
    finally:
        driver._active = before
