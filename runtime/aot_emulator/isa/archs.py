"""The GPUs that are emulated: what their instruction sets and compute units differ in.

Compute units and LDS are those of the product named, from AMD's data sheets and ISA documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Isa = Literal["cdna", "rdna3", "rdna4"]


@dataclass(frozen=True)
class Arch:
    """An architecture.

    Attributes:
        name: bare, as in `gfx942`.
        title: of the product that the device passes for.
        isa: name of the instruction set in the decoder's tables.
        lanes: of a wavefront.
        num_cus: compute units of the product, or workgroup processors' halves.
        lds_bytes: that a workgroup can have.
        ocp_fp8: fp8 numbers are those of the OCP; else the FNUZ ones.
        lds_alignment: the most that strict mode asks of an access of LDS, bytes. The mode that the HSA ABI prescribes
            needs none; gfx950 is given 16 bytes at multiples of 8 by Triton's padded layouts.
        scratch_resource: scratch is a buffer whose resource a kernel gets in SGPRs; else the hardware knows its base.
    """

    name: str
    title: str
    isa: Isa
    lanes: Literal[32, 64]
    num_cus: int
    lds_bytes: int
    ocp_fp8: bool
    lds_alignment: int = 16
    scratch_resource: bool = False


ARCHS: Mapping[str, Arch] = {
    arch.name: arch
    for arch in (
        Arch("gfx942", "AMD Instinct MI300X, emulated", "cdna", 64, 304, 64 << 10, ocp_fp8=False),
        Arch("gfx950", "AMD Instinct MI355X, emulated", "cdna", 64, 256, 160 << 10, ocp_fp8=True, lds_alignment=8),
        Arch(
            "gfx90a", "AMD Instinct MI250X, one die, emulated", "cdna", 64, 110, 64 << 10, False, scratch_resource=True
        ),
        Arch("gfx1100", "AMD Radeon RX 7900 XTX, emulated", "rdna3", 32, 96, 64 << 10, ocp_fp8=True),
        Arch("gfx1201", "AMD Radeon RX 9070 XT, emulated", "rdna4", 32, 64, 64 << 10, ocp_fp8=True),
    )
}
"""By name. The device for an arch has its place here as its number."""
