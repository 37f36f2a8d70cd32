"""Constants of the time model for each architecture, in one table. Each figure states its origin.

`fitted` figures were chosen so that predictions meet published times of an MI300X (docs/timing.md says which, and how
well others are met); figures that say `assumed` are educated guesses that no measurement here confirms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.errors import DeviceError


@dataclass(frozen=True)
class Machine:
    """Figures of a product. Cycles are those of the compute units' clock.

    Attributes:
        clock_ghz: highest clock.
        throttle_ghz: by how much the clock falls as the matrix pipes of the whole device are always busy (power).
        vector_power: power of a vector pipe that is always busy, as a part of a matrix pipe's.
        launch_us: of a launch, before its first and after its last wavefront.
        stagger: cycles between the starts of a compute unit's workgroups.
        transcendental, conversion: cycles of a SIMD that such a vector instruction takes; others take 4.
        branch: cycles until the wavefront that branched goes on.
        mfma_holds: part of a matrix instruction's passes, after the first, in which its SIMD issues no vector one.
        mfma_result: cycles from the end of a matrix instruction's passes to the first use of its result.
        barrier: cycles from the last wavefront's arrival to all going on.
        lds_latency: cycles from an access of LDS leaving it to its data in registers.
        lds_passes: clocks that a pass of LDS (see `profile.banks`) takes.
        cache_latency: cycles of a load that a cache of the compute unit holds: scratch, and scalar loads.
        memory_latency_ns: of a load that the vector L1 does not hold.
        l1_bytes: that the vector L1 gives a compute unit in a clock.
        missed_bytes: that it gives in a clock of what it has to fetch.
        l2_bytes: bytes per clock from the L2 of an XCD.
        fabric: bytes/ns that an XCD can fetch from outside.
        shared_cache: bytes/ns from the cache behind all XCDs, for all of them together.
        hbm: bytes/ns of device memory.
        usable: part of these four rates that is reached; stores have that of device memory.
        written: bytes that a store writes at least of each cache line that it touches.
    """

    clock_ghz: float
    throttle_ghz: float
    vector_power: float
    launch_us: float
    stagger: float
    transcendental: float
    conversion: float
    branch: float
    mfma_holds: float
    mfma_result: float
    barrier: float
    lds_latency: float
    lds_passes: float
    cache_latency: float
    memory_latency_ns: float
    l1_bytes: float
    missed_bytes: float
    l2_bytes: float
    fabric: float
    shared_cache: float
    hbm: float
    usable: float
    written: float


@dataclass(frozen=True)
class Figure:
    """A value and its source."""

    value: float
    source: str


Table = Mapping[str, Figure]

_SCHEDULE = "LLVM's SISchedule.td, class SIDPGFX940FullSpeedModel: quarter rate"
_PAPER3 = "AMD CDNA 3 white paper"
_GFX942: Table = {
    "clock_ghz": Figure(2.1, "data sheet of the MI300X"),
    "throttle_ghz": Figure(1.1, "fitted"),
    "vector_power": Figure(0.4, "fitted to winners of attention"),
    "launch_us": Figure(1.0, "assumed"),
    "stagger": Figure(37, "assumed: workgroups do not start together"),
    "transcendental": Figure(16, _SCHEDULE),
    "conversion": Figure(4, "assumed: full rate; LLVM's table has quarter rate, as older GPUs did"),
    "branch": Figure(4, "assumed: hidden by the other wavefronts"),
    "mfma_holds": Figure(
        0.5, "fitted to winners of attention; 0 were free, as the CDNA 3 ISA lets independent vector instructions issue"
    ),
    "mfma_result": Figure(4, "CDNA 3 ISA, chapter on dependencies of matrix instructions: one pass at least"),
    "barrier": Figure(16, "assumed"),
    "lds_latency": Figure(100, "assumed: 64 to 128 cycles are usual of CDNA"),
    "lds_passes": Figure(1.0, "AMD ROCm Compute Profiler, its page on LDS: 128 bytes a clock"),
    "cache_latency": Figure(300, "assumed"),
    "memory_latency_ns": Figure(
        220, "Chips and Cheese, 'Testing AMD's Giant MI300X': about that of the Infinity Cache"
    ),
    "l1_bytes": Figure(64, f"{_PAPER3}: 64 bytes a clock"),
    "missed_bytes": Figure(20, "fitted; some 70 lines of 128 bytes on their way for the latency of memory"),
    "l2_bytes": Figure(2048, f"{_PAPER3}: 16 channels of 128 bytes a clock"),
    "fabric": Figure(2150, f"{_PAPER3}: an eighth of the Infinity Cache's peak"),
    "shared_cache": Figure(17200, f"{_PAPER3}: the Infinity Cache's peak of 17.2 TB/s"),
    "hbm": Figure(5300, "data sheet of the MI300X"),
    "usable": Figure(0.8, "assumed: copies reach about 80 % of HBM's peak"),
    "written": Figure(64, "fitted; half a line of the L2, which is what memory is written by"),
}
_AS_GFX942 = "assumed: that of gfx942"


def _like_gfx942(**changes: Figure) -> Table:
    return {name: changes.get(name, Figure(found.value, _AS_GFX942)) for name, found in _GFX942.items()}


CONSTANTS: Mapping[str, Table] = {
    "gfx942": _GFX942,
    "gfx90a": _like_gfx942(
        clock_ghz=Figure(1.7, "data sheet of the MI250X"),
        transcendental=Figure(16, "LLVM's SISchedule.td, class SIDPFullSpeedModel: quarter rate"),
        throttle_ghz=Figure(0.3, "assumed: its matrix pipes are half as wide"),
        l1_bytes=Figure(64, "AMD CDNA 2 white paper: 64 bytes a clock"),
        l2_bytes=Figure(4096, "AMD CDNA 2 white paper: 32 channels of 128 bytes a clock"),
        fabric=Figure(1638.4, "data sheet of the MI250X: one die, which has no cache behind its L2"),
        shared_cache=Figure(1638.4, "data sheet of the MI250X: one die, which has no cache behind its L2"),
        hbm=Figure(1638.4, "data sheet of the MI250X, one die"),
    ),
    "gfx950": _like_gfx942(
        clock_ghz=Figure(2.4, "data sheet of the MI355X"),
        transcendental=Figure(16, "LLVM's SISchedule.td: as gfx940"),
        hbm=Figure(8000, "data sheet of the MI355X"),
    ),
}  # fmt: skip


def machine_of(arch: str) -> Machine:
    """The figures of an architecture. Raises `DeviceError` where none are known."""
    table = CONSTANTS.get(arch)
    if table is None:
        raise DeviceError(f"the model of time does not support {arch}; supported: {', '.join(CONSTANTS)}")
    return Machine(**{item.name: table[item.name].value for item in fields(Machine)})


def compute_units(arch: str) -> tuple[int, int]:
    """(compute units, XCDs) of the architecture's product."""
    row = ARCHITECTURES[arch]
    assert row.product is not None
    return row.product.num_cus, row.num_xcds
