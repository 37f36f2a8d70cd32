"""Roofline: lower bounds of execution time from peak hardware rates. Nothing here is measured.

The peaks are those of the product named in the architecture's row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aot_emulator.isa.archs import Arch


@dataclass(frozen=True)
class Work:
    """Hardware work of a launch.

    Attributes:
        workgroups: number of workgroups, which limits the number of busy compute units.
        matrix: operations of matrix instructions, by type of the first operand.
        valu, transcendental: VALU wavefront instructions; `valu` excludes transcendental ones.
        lds_passes: LDS passes (see `banks`).
        memory_bytes: distinct bytes of device memory read, plus distinct bytes written.
    """

    workgroups: int
    matrix: Mapping[str, int]
    valu: int
    transcendental: int
    lds_passes: int
    memory_bytes: int


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of a launch's time in seconds, by resource.

    Each bound assumes that the resource runs at its peak, work is spread evenly over the busy compute units, all reuse
    hits in caches, and everything else is free. With perfect overlap, a launch takes the longest of them.
    """

    matrix: float
    valu: float
    lds: float
    memory: float

    @property
    def limit(self) -> str:
        """The resource with the longest bound."""
        times = self.times
        return max(times, key=lambda name: times[name])

    @property
    def seconds(self) -> float:
        return max(self.times.values())

    @property
    def times(self) -> dict[str, float]:
        return {"matrix": self.matrix, "valu": self.valu, "lds": self.lds, "memory": self.memory}


def lower_bounds(arch: Arch, work: Work) -> Bounds:
    """Return lower bounds of the time of `work`."""
    peaks = arch.peaks
    clocks = peaks.clock * max(1, min(arch.num_cus, work.workgroups))
    valu = work.valu * peaks.valu_cycles + work.transcendental * peaks.transcendental_cycles
    # Types without a known rate use the fastest rate, so that the result remains a lower bound.
    fastest = max(peaks.matrix.values())
    return Bounds(
        matrix=sum(flops / peaks.matrix.get(kind, fastest) for kind, flops in work.matrix.items()) / clocks,
        valu=valu / peaks.simds / clocks,
        lds=work.lds_passes / clocks,
        memory=work.memory_bytes / peaks.bandwidth,
    )


def ridge(arch: Arch, kind: str) -> float:
    """Return the arithmetic intensity (operations per byte) above which matrix units limit, rather than memory."""
    peaks = arch.peaks
    return peaks.matrix.get(kind, max(peaks.matrix.values())) * arch.num_cus * peaks.clock / peaks.bandwidth
