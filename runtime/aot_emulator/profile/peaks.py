"""What the hardware does at best, and the lower bounds of time that follow: a roofline. Nothing here is a measurement.

The peaks are those of the product that an architecture's row names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aot_emulator.isa.archs import Arch


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


def lower_bounds(arch: Arch, work: Work) -> Bounds:
    """The times that `work` takes at least."""
    peaks = arch.peaks
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
    peaks = arch.peaks
    return peaks.matrix.get(kind, max(peaks.matrix.values())) * arch.num_cus * peaks.clock / peaks.bandwidth
