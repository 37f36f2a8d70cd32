"""The runtime: opens a bundle and launches its kernels from numpy, without torch or Triton.

    from aot_runtime import open_bundle

    attention = open_bundle("dist/attention-gfx942")
    out = attention.flash_attention(q, k, v, causal=True)

Public names are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .call.recording import Recording, record
    from .device.array import DeviceArray
    from .device.device import Device
    from .device.graph import Graph
    from .device.registry import get_device
    from .device.streams import Event, Stream
    from .errors import (
        AotError,
        ArchMismatchError,
        ArgumentError,
        BundleError,
        CallsFileError,
        CaptureError,
        DeviceError,
        DeviceMemoryError,
        DriverCallError,
        NoVariantError,
        NoVectorsError,
        TrustError,
        VersionMismatchError,
    )  # fmt: skip
    from .opening import Bundle, OpenBundle, open_bundle
    from .trust.policy import TrustedIdentity, TrustedKey, TrustPolicy

__version__ = "0.1.0"
"""Version of `aotbuild`: builder, runtime and emulator are released together."""

__all__ = [
    "AotError", "ArchMismatchError", "ArgumentError", "Bundle", "BundleError", "CallsFileError", "CaptureError",
    "Device", "DeviceArray", "DeviceError", "DeviceMemoryError", "DriverCallError", "Event", "Graph",
    "NoVariantError", "NoVectorsError", "OpenBundle", "Recording", "Stream", "TrustError", "TrustPolicy",
    "TrustedIdentity", "TrustedKey", "VersionMismatchError", "get_device", "open_bundle", "record",
]  # fmt: skip

_HOMES = {
    "Bundle": "opening",
    "Device": "device.device",
    "DeviceArray": "device.array",
    "Event": "device.streams",
    "Graph": "device.graph",
    "OpenBundle": "opening",
    "Recording": "call.recording",
    "Stream": "device.streams",
    "TrustPolicy": "trust.policy",
    "TrustedIdentity": "trust.policy",
    "TrustedKey": "trust.policy",
    "get_device": "device.registry",
    "open_bundle": "opening",
    "record": "call.recording",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES.get(name, 'errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *__all__]
