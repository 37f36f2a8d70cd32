"""The runtime: opens a bundle and launches its kernels from numpy, with no torch and no Triton.

from aot_runtime import open_bundle

attention = open_bundle("dist/attention-gfx942")
out = attention.flash_attention(q, k, v, causal=True)
"""

from .array import DeviceArray
from .bundle import Bundle, open_bundle
from .device import Device, Event, Graph, Stream, get_device
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
)

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
    "Stream",
    "get_device",
    "open_bundle",
]
