"""The runtime: opens a bundle and launches its kernels from numpy, with no torch and no Triton.

    from aot_runtime import open_bundle

    attention = open_bundle("dist/attention-gfx942")
    out = attention.flash_attention(q, k, v, causal=True)

Names are imported when they are first used (see `opening`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aot_runtime.device.array import DeviceArray
    from aot_runtime.device.device import Device, Event, Graph, Stream, get_device
    from aot_runtime.opened import Bundle

    from .errors import (
        AotError,
        ArchMismatchError,
        ArgumentError,
        BundleError,
        CaptureError,
        DeviceError,
        DeviceMemoryError,
        DriverCallError,
        NoVariantError,
        NoVectorsError,
    )
    from .opening import open_bundle

__all__ = [
    "AotError",
    "ArchMismatchError",
    "ArgumentError",
    "Bundle",
    "BundleError",
    "CaptureError",
    "Device",
    "DeviceArray",
    "DeviceError",
    "DeviceMemoryError",
    "DriverCallError",
    "Event",
    "Graph",
    "NoVariantError",
    "NoVectorsError",
    "Stream",
    "get_device",
    "open_bundle",
]

_HOMES = {
    "Bundle": "opened",
    "DeviceArray": "device.array",
    "open_bundle": "opening",
    **dict.fromkeys(("Device", "Event", "Graph", "Stream", "get_device"), "device.device"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES.get(name, 'errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
