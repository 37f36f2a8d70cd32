"""Fill in a launch's kernarg segment from the bundle's index alone, as a program without the runtime would."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from aot_runtime.call.choosing import LaunchDecision
from aot_runtime.contract.dtypes import SCALAR_TYPES


def kernarg_segment(launch: LaunchDecision, addresses: Mapping[str, int]) -> bytes:
    """Return the segment with every value of a launch and the addresses of its tensors, for a kernel without scratch
    and tensor maps."""
    variant = launch.variant
    assert all(arg.map is None for arg in variant.kernargs), "the kernel takes tensor maps"
    assert not variant.global_scratch.bytes and not variant.profile_scratch.bytes, "the kernel needs scratch memory"
    segment = bytearray(variant.kernarg_bytes)
    for arg in variant.kernargs:
        if arg.type.startswith("*"):
            code, value = "Q", addresses.get(arg.value, 0)  # a tensor that is absent, or no scratch: null
        else:
            code, value = SCALAR_TYPES[arg.type].format, launch.values[arg.value]
        struct.pack_into(f"<{code}", segment, arg.offset, value)
    return bytes(segment)
