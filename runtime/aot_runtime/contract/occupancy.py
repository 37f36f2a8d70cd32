"""Occupancy of a kernel: the waves that fit on a compute unit, from the resources in its code object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .arch import ARCHITECTURES, SIMDS

Limit = Literal["waves", "vgprs", "sgprs", "lds", "workgroups"]


@dataclass(frozen=True)
class Occupancy:
    waves_per_simd: float
    """Resident waves (warps) per SIMD (SM sub-partition), averaged over the four."""
    workgroups: int
    """Resident workgroups per compute unit, work-group processor or SM; 0: the kernel cannot be launched."""
    limit: Limit
    """The resource that runs out first."""


def occupancy(arch: str, *, vgprs: int, sgprs: int, lds_bytes: int, num_warps: int) -> Occupancy:
    """Return the occupancy of a kernel on `arch`.

    Args:
        vgprs: `KernelMetadata.allocated_vgprs`, which includes accumulation registers.
        sgprs: `KernelMetadata.sgprs`.
        lds_bytes: LDS of a workgroup, dynamic and static together.
        num_warps: waves of a workgroup.

    Raises:
        KeyError: `arch` is unknown.
    """
    unit = ARCHITECTURES[arch].unit
    waves: dict[Limit, int] = {"waves": unit.waves, "vgprs": unit.vgprs // _rounded(vgprs, unit.vgpr_granule)}
    if unit.sgprs:
        waves["sgprs"] = unit.sgprs // _rounded(sgprs, 16)
    fits: dict[Limit, int] = {limit: count * SIMDS // num_warps for limit, count in waves.items()}
    if lds := lds_bytes + unit.lds_reserved:
        fits["lds"] = unit.lds // _rounded(lds, unit.lds_granule)
    fits["workgroups"] = unit.barriers if unit.barriers and num_warps > 1 else unit.workgroups
    limit = min(fits, key=lambda name: fits[name])
    return Occupancy(fits[limit] * num_warps / SIMDS, fits[limit], limit)


def _rounded(count: int, granule: int) -> int:
    return max(-(-count // granule), 1) * granule
