"""Peak rates of the products that the emulator models, for rooflines and bounds. `arch.py` names the sources."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Peaks(msgspec.Struct, frozen=True):
    """Peak rates of a product.

    Attributes:
        clock: highest engine clock, Hz (data sheets).
        bandwidth: bandwidth of device memory, bytes/s (data sheets).
        matrix: type of the first operand → matrix operations of a compute unit per clock (white papers; for RDNA the
            data sheets' peaks divided by compute units and clock).
        simds: SIMDs of a compute unit. An RDNA compute unit is half a work-group processor.
        valu_cycles, transcendental_cycles: minimum cycles for which a wavefront's vector instruction occupies a SIMD.
            A gfx9 SIMD has 16 lanes, and 4 for transcendental functions ("quarter rate"). An RDNA SIMD has 32 lanes
            and a separate transcendental unit.
        lds_banks: 4-byte banks of a compute unit's LDS; each serves one address per clock (ISA, chapter "Data Share
            Operations"; CDNA 4's white paper for its 64).
        line_bytes: line size of the vector L1 cache (ROCm Compute Profiler's performance model, white papers; gfx12
            is assumed to be like RDNA 3).
    """

    clock: float
    bandwidth: float
    matrix: Mapping[str, int]
    simds: int
    valu_cycles: int
    transcendental_cycles: int
    lds_banks: int
    line_bytes: int


def _rates(**by_types: int) -> dict[str, int]:
    return {name: rate for names, rate in by_types.items() for name in names.split("_")}


PEAKS: Mapping[str, Peaks] = {
    "gfx90a": Peaks(1.7e9, 1.6384e12, _rates(f64_f32=256, f16_bf16_i8=1024), 4, 4, 16, lds_banks=32, line_bytes=64),
    "gfx942": Peaks(2.1e9, 5.3e12, _rates(f64_f32=256, xf32=1024, f16_bf16=2048, fp8_bf8_i8=4096), 4, 4, 16, 32, 128),
    "gfx950": Peaks(
        2.4e9, 8e12, _rates(f64=128, f32=256, f16_bf16=4096, fp8_bf8_i8=8192, fp6_bf6_fp4=16384), 4, 4, 16, 64, 128
    ),
    "gfx1100": Peaks(2.5e9, 0.96e12, _rates(f16_bf16_iu8=512, iu4=1024), 2, 1, 1, 32, 128),
    # By AMD's specifications of the Ryzen AI Max+ 395: compute units, graphics clock, 256 bits of LPDDR5X-8000. Matrix
    # rates are assumed to be those of RDNA 3.
    "gfx1151": Peaks(2.9e9, 0.256e12, _rates(f16_bf16_iu8=512, iu4=1024), 2, 1, 1, 32, 128),
    "gfx1201": Peaks(2.97e9, 0.64e12, _rates(f16_bf16=1024, fp8_bf8_iu8=2048, iu4=4096), 2, 1, 1, 32, 128),
}
"""Architecture → peak rates of its product."""
