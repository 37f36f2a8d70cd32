"""A Triton driver for loading kernels, whose target is the GPU that is built for.

Files may choose constants or configs by `triton.runtime.driver.active.get_current_target()`. A build has no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aot.targets import Target


class _Driver:
    """A driver with a target and without devices.

    Args:
        asked: called at each use of the driver. A file that uses it is loaded anew for another target.
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
    """Return a context in which Triton's active driver has this target. Without a target, its use is an error."""
    from triton.runtime.driver import driver

    before = driver._active
    driver.set_active(_Driver(target, asked))
    try:
        yield
    finally:
        driver._active = before
