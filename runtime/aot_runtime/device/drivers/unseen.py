"""Diagnose AMD GPUs that Linux has and HIP does not show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from aot_runtime.contract.arch import HIP

_NODES = Path("/sys/devices/virtual/kfd/kfd/topology/nodes")
"""GPUs of Linux's driver. A node's `gfx_target_version` is 90402 for gfx942, and 0 for a CPU."""
_DEVICE = Path("/dev/kfd")
_HIDING = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


def gpus_of_linux(nodes: Path = _NODES) -> list[str]:
    """Return the architectures of the GPUs of Linux's driver."""
    try:
        texts = [(node / "properties").read_text() for node in sorted(nodes.iterdir())]
    except OSError:
        return []
    found = (dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line) for text in texts)
    versions = (int(properties.get("gfx_target_version", "0")) for properties in found)
    return [f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" for version in versions if version]


def why_unseen(driver: str, environment: Mapping[str, str] = os.environ, nodes: Path = _NODES) -> str:
    """Return advice on GPUs that Linux has and the driver does not show, as the end of an error; else empty."""
    gpus = gpus_of_linux(nodes) if driver == HIP.name else []
    if not gpus:
        return ""
    hiding = [f"{name}={environment[name]}" for name in _HIDING if name in environment]
    if hiding:
        reason = f"{', '.join(hiding)} may hide it"
    elif _DEVICE.exists() and not os.access(_DEVICE, os.R_OK | os.W_OK):
        reason = f"{_DEVICE} is not to be opened: the user has to be in the groups render and video"
    else:
        reason = "this HIP seems not to know it, as AMD_LOG_LEVEL=1 would tell: install a newer ROCm"
    return f"; Linux shows {', '.join(gpus)}: {reason}"
