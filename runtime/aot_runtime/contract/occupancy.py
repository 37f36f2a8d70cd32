"""How many waves of a kernel fit on a compute unit at once, from what its code object records.

Register files, granules and wave slots are those of LLVM's AMDGPU target description (`GCNSubtarget`,
`AMDGPUBaseInfo`) and of the "Technical Specifications per Compute Capability" table in the CUDA programming guide.
A gfx9 compute unit has four SIMDs, and so has an RDNA work-group processor (Triton compiles for WGP mode) and an
NVIDIA SM; that unit is what a workgroup's waves and its LDS must fit in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Limit = Literal["waves", "vgprs", "sgprs", "lds", "workgroups"]

_SIMDS = 4


@dataclass(frozen=True)
class _Unit:
    """One unit of four SIMDs. Vector registers are per lane of a SIMD, scalar ones per SIMD; LDS is in bytes."""

    waves: int
    """Wave slots of a SIMD."""
    vgprs: int
    vgpr_granule: int
    lds: int
    lds_granule: int
    workgroups: int
    barriers: int | None = None
    """Workgroups of more than one wave, which is what takes a barrier; None: no limit of their own."""
    sgprs: int | None = None
    """None: scalar registers never limit."""
    lds_reserved: int = 0
    """LDS that the system takes from every workgroup and that its code object does not count."""


def _cdna(waves: int, vgprs: int, vgpr_granule: int, lds_kib: int, lds_granule: int = 512) -> _Unit:
    return _Unit(waves, vgprs, vgpr_granule, lds_kib * 1024, lds_granule, waves * _SIMDS, barriers=16, sgprs=800)


def _rdna(vgprs: int, vgpr_granule: int, lds_kib: int = 128) -> _Unit:
    return _Unit(16, vgprs, vgpr_granule, lds_kib * 1024, 1024, 16 * _SIMDS, barriers=32)


def _sm(warps: int, blocks: int, shared_kib: int, reserved: int = 0) -> _Unit:
    # 64 K registers an SM, handed out to a warp in 256s: 512 a lane and SIMD, in granules of 8.
    return _Unit(warps // _SIMDS, 512, 8, shared_kib * 1024, 128, blocks, lds_reserved=reserved)


_UNITS = {
    "gfx908": _cdna(10, 256, 4, 64),
    "gfx90a": _cdna(8, 512, 8, 64),
    "gfx942": _cdna(8, 512, 8, 64),
    "gfx950": _cdna(8, 512, 8, 160, lds_granule=1280),
    **{arch: _rdna(1536, 24) for arch in ("gfx1100", "gfx1101", "gfx1151", "gfx1200", "gfx1201")},
    **{arch: _rdna(1024, 16) for arch in ("gfx1102", "gfx1103", "gfx1150", "gfx1152", "gfx1153")},
    "gfx1250": _rdna(1024, 16, 320),
    "sm_75": _sm(32, 16, 64),
    "sm_80": _sm(64, 32, 164, reserved=1024),
    "sm_86": _sm(48, 16, 100, reserved=1024),
    "sm_87": _sm(48, 16, 164, reserved=1024),
    "sm_89": _sm(48, 24, 100, reserved=1024),
    "sm_90": _sm(64, 32, 228),
    "sm_100": _sm(64, 32, 228),
    "sm_103": _sm(64, 32, 228),
    "sm_110": _sm(48, 24, 228),
    "sm_120": _sm(48, 24, 100),
    "sm_121": _sm(48, 24, 100),
}


@dataclass(frozen=True)
class Occupancy:
    waves_per_simd: float
    """Resident waves (warps) per SIMD (SM sub-partition), averaged over the four."""
    workgroups: int
    """Resident workgroups per compute unit, work-group processor or SM; 0: the kernel cannot be launched."""
    limit: Limit
    """The resource that runs out first."""


def occupancy(arch: str, *, vgprs: int, sgprs: int, lds_bytes: int, num_warps: int) -> Occupancy:
    """Occupancy of a kernel on `arch` (KeyError if unknown).

    Args:
        vgprs: `KernelMetadata.allocated_vgprs`, in which accumulation registers are counted already.
        sgprs: `KernelMetadata.sgprs`.
        lds_bytes: LDS of a workgroup, dynamic and static together.
        num_warps: waves of a workgroup.
    """
    unit = _UNITS[arch]
    waves: dict[Limit, int] = {"waves": unit.waves, "vgprs": unit.vgprs // _rounded(vgprs, unit.vgpr_granule)}
    if unit.sgprs:
        waves["sgprs"] = unit.sgprs // _rounded(sgprs, 16)
    fits: dict[Limit, int] = {limit: count * _SIMDS // num_warps for limit, count in waves.items()}
    if lds := lds_bytes + unit.lds_reserved:
        fits["lds"] = unit.lds // _rounded(lds, unit.lds_granule)
    fits["workgroups"] = unit.barriers if unit.barriers and num_warps > 1 else unit.workgroups
    limit = min(fits, key=lambda name: fits[name])
    return Occupancy(fits[limit] * num_warps / _SIMDS, fits[limit], limit)


def _rounded(count: int, granule: int) -> int:
    return max(-(-count // granule), 1) * granule
