"""Launches through CUDA's `cuLaunchKernelEx`, which takes most of its arguments in a struct."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any


class LaunchConfig(ctypes.Structure):
    """CUDA's CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("lds_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("num_attributes", ctypes.c_uint),
    )  # fmt: skip


_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class LaunchAttribute(ctypes.Structure):
    """CUDA's CUlaunchAttribute with an int value."""

    _fields_ = (("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_int * 16))


def config_launch(
    function: Any, kernel: ctypes.c_void_p, grid: tuple[int, int, int], block: int, lds_bytes: int, extra: Any,
    early: bool,
) -> tuple[Callable[[int], None], Callable[[], int]]:  # fmt: skip
    """Return (function that sets the stream, launch). See `KernelLaunch` for the arguments."""
    config = LaunchConfig(grid, (block, 1, 1), lds_bytes)
    if early:
        attribute = LaunchAttribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, (1,))
        config.attributes, config.num_attributes = ctypes.addressof(attribute), 1
        extra.kept = *extra.kept, attribute
    return partial(setattr, config, "stream"), partial(function, ctypes.pointer(config), kernel, None, extra)
