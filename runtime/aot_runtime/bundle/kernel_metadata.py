"""A kernel's metadata in a code object: arguments and resources."""

from __future__ import annotations

import msgspec


class KernelArg(msgspec.Struct, frozen=True):
    """An explicit or hidden argument of a kernel."""

    offset: int
    """Offset in the kernarg segment, in bytes."""
    size: int
    kind: str
    """`pointer`, `value`, or the code object's name of a hidden argument (`hidden_block_count_x`, …)."""


class KernelMetadata(msgspec.Struct, frozen=True):
    """Arguments and resources of a kernel. Vector registers and scratch bytes are per lane."""

    symbol: str
    args: tuple[KernelArg, ...]
    kernarg_bytes: int
    max_workgroup_size: int
    """Maximum number of work-items (threads) per workgroup that the kernel was compiled for."""
    warp_size: int
    vgprs: int
    """Vector registers used, including accumulation registers on gfx90a, gfx942 and gfx950."""
    agprs: int
    """Accumulation registers of AMD matrix cores; 0 on other hardware."""
    sgprs: int
    """Scalar registers per wavefront; 0 for a cubin, which does not record uniform registers."""
    allocated_vgprs: int
    """Vector registers allocated by the hardware, which determine occupancy. More than `vgprs` if the compiler was
    asked to limit the number of waves (Triton's `waves_per_eu`)."""
    vgpr_spills: int | None
    """Vector registers spilled to scratch; None for a cubin, where only `scratch_bytes` hints at spills."""
    sgpr_spills: int | None
    scratch_bytes: int
    """Private (stack and spill) memory."""
    static_lds_bytes: int
    """LDS fixed in the code object, in addition to a launch's request; from sm_90 on, 1 KiB used by the system."""
    code_bytes: int
    """Size of the kernel's machine code."""
