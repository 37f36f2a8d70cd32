"""What the hardware does at best, and the lower bounds of time that follow: a roofline. Nothing here is a measurement.

**Sources.** Clock, compute units and bandwidth: AMD's data sheets of the products that `archs` names. Rates of matrix
instructions: "AMD CDNA 2", "CDNA 3" and "CDNA 4" white papers, and for RDNA the data sheets' peaks divided by compute
units and clock. LDS: 32 banks of 4 bytes a compute unit (ISA documents, chapter "Data Share Operations"; RDNA's
work-group processor has two such sets), 64 of them and twice the bandwidth on CDNA 4 (its white paper). Cache lines of
the vector L1 cache: 64 bytes on MI200, 128 on MI300 and later (ROCm Compute Profiler's performance model, CDNA 3 white
paper), 128 on RDNA (its white paper; taken for gfx12 too). Vector ALU: a SIMD of gfx9 has 16 lanes, and 4 for
transcendental functions ("quarter rate"); one of RDNA has 32, and a separate unit for transcendental functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aot_emulator.isa.archs import Arch
from aot_runtime.errors import DeviceError


@dataclass(frozen=True)
class Peaks:
    """Rates of an arch's product.

    Attributes:
        clock: highest clock of the engine, Hz.
        bandwidth: of device memory, bytes/s.
        matrix: operations that a compute unit's matrix instructions do in a clock, by type of their first operand.
        simds: of a compute unit.
        valu_cycles, transcendental_cycles: that a SIMD is taken by a vector instruction of a wavefront, at least.
        lds_banks: of a compute unit's LDS, 4 bytes wide; each serves one address a clock.
        line_bytes: of the vector L1 cache's lines.
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
    """Rates by type; keywords are types joined by `_`."""
    return {name: rate for names, rate in by_types.items() for name in names.split("_")}


PEAKS: Mapping[str, Peaks] = {
    "gfx90a": Peaks(  # one of the two dies of an MI250X: a device of its own
        1.7e9, 1.6384e12, _rates(f64_f32=256, f16_bf16_i8=1024), 4, 4, 16, lds_banks=32, line_bytes=64
    ),
    "gfx942": Peaks(  # MI300X
        2.1e9, 5.3e12, _rates(f64_f32=256, xf32=1024, f16_bf16=2048, fp8_bf8_i8=4096), 4, 4, 16, 32, 128
    ),
    "gfx950": Peaks(  # MI355X
        2.4e9,
        8e12,
        _rates(f64=128, f32=256, f16_bf16=4096, fp8_bf8_i8=8192, fp6_bf6_fp4=16384),
        4,
        4,
        16,
        64,
        128,
    ),
    "gfx1100": Peaks(  # RX 7900 XTX
        2.5e9, 0.96e12, _rates(f16_bf16_iu8=512, iu4=1024), 2, 1, 1, 32, 128
    ),
    "gfx1201": Peaks(  # RX 9070 XT
        2.97e9, 0.64e12, _rates(f16_bf16=1024, fp8_bf8_iu8=2048, iu4=4096), 2, 1, 1, 32, 128
    ),
}
"""By arch."""


@dataclass(frozen=True)
class Work:
    """What a launch asks of the hardware.

    Attributes:
        workgroups: how many; no more compute units than that are busy.
        matrix: operations of matrix instructions by type of their first operand.
        valu, transcendental: vector instructions by wavefront; transcendental ones are not in `valu`.
        lds_passes: see `banks`.
        memory_bytes: of device memory, each byte that is read once, and each that is written once.
    """

    workgroups: int
    matrix: Mapping[str, int]
    valu: int
    transcendental: int
    lds_passes: int
    memory_bytes: int


@dataclass(frozen=True)
class Bounds:
    """Times in seconds that a launch takes at least, by what it keeps busy.

    Each is that of one resource at its peak, with the work spread evenly over the compute units that have any, the
    caches holding all that is used again, and everything else for nothing. Work that overlaps takes the longest of
    them; nothing takes less.
    """

    matrix: float
    valu: float
    lds: float
    memory: float

    @property
    def limit(self) -> str:
        """The resource whose bound is the longest."""
        times = self.times
        return max(times, key=lambda name: times[name])

    @property
    def seconds(self) -> float:
        return max(self.times.values())

    @property
    def times(self) -> dict[str, float]:
        return {"matrix": self.matrix, "valu": self.valu, "lds": self.lds, "memory": self.memory}


def peaks_of(arch: Arch) -> Peaks:
    """Raises `DeviceError` where an arch's figures are not known."""
    if arch.name not in PEAKS:
        raise DeviceError(f"no peak rates are known for {arch.name}; known: {', '.join(PEAKS)}")
    return PEAKS[arch.name]


def lower_bounds(arch: Arch, work: Work) -> Bounds:
    """The times that `work` takes at least. Raises `DeviceError` where an arch's figures are not known."""
    peaks = peaks_of(arch)
    clocks = peaks.clock * max(1, min(arch.num_cus, work.workgroups))
    valu = work.valu * peaks.valu_cycles + work.transcendental * peaks.transcendental_cycles
    # A type without a rate of its own counts as the fastest: the bound stays a bound.
    fastest = max(peaks.matrix.values())
    return Bounds(
        matrix=sum(flops / peaks.matrix.get(kind, fastest) for kind, flops in work.matrix.items()) / clocks,
        valu=valu / peaks.simds / clocks,
        lds=work.lds_passes / clocks,
        memory=work.memory_bytes / peaks.bandwidth,
    )


def ridge(arch: Arch, kind: str) -> float:
    """Operations of a type for each byte of memory from which on the matrix units are the limit, not the memory."""
    peaks = peaks_of(arch)
    return peaks.matrix.get(kind, max(peaks.matrix.values())) * arch.num_cus * peaks.clock / peaks.bandwidth
