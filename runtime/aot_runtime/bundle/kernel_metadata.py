"""What a code object records of each kernel: its arguments and the resources that it takes."""

from __future__ import annotations

import msgspec


class KernelArg(msgspec.Struct, frozen=True):
    """One explicit or hidden argument of a kernel."""

    offset: int
    """Bytes from the start of the kernarg segment."""
    size: int
    kind: str
    """`pointer`, `value`, or the code object's own name of a hidden argument (`hidden_block_count_x`, …)."""


class KernelMetadata(msgspec.Struct, frozen=True):
    """What a code object records of one kernel. Registers are per lane, bytes of scratch too."""

    symbol: str
    args: tuple[KernelArg, ...]
    kernarg_bytes: int
    max_workgroup_size: int
    """Work-items (threads) that the kernel was compiled for, at most."""
    warp_size: int
    vgprs: int
    """Vector registers that the code uses; on gfx90a, gfx942 and gfx950 accumulation registers are included."""
    agprs: int
    """Accumulation registers (AMD matrix cores); 0 elsewhere."""
    sgprs: int
    """Scalar registers per wavefront; 0 for a cubin, which does not record uniform registers."""
    allocated_vgprs: int
    """Vector registers that the hardware sets aside. More than `vgprs` where the compiler was told to hold the
    number of waves down (Triton's `waves_per_eu`), so occupancy follows from this and not from `vgprs`."""
    vgpr_spills: int | None
    """Vector registers spilled to scratch; None for a cubin, where spills can be told only from `scratch_bytes`."""
    sgpr_spills: int | None
    scratch_bytes: int
    """Private (stack and spill) memory."""
    static_lds_bytes: int
    """LDS fixed in the code object, on top of what a launch asks for; from sm_90 on the system's own 1 KiB."""
    code_bytes: int
    """Size of the kernel's machine code."""
