"""Sampling: runs and times a few workgroups of a launch that represent all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from aot_emulator.errors import InstructionBudgetError
from aot_emulator.machine.execution import execute
from aot_emulator.machine.launch_options import Options
from aot_emulator.machine.launch_records import Launch
from aot_emulator.profile.counters import Statistics
from aot_emulator.state.device_memory import Memory
from aot_runtime.contract.occupancy import occupancy
from aot_runtime.errors import DeviceError

from .compute_unit import Workgroup
from .constants import Machine, compute_units, machine_of
from .launch_time import LaunchTime, Plan, time_launch
from .sharing import Sharing, shared_loads
from .trace import Trace, record

FEW_SAMPLES, MORE_SAMPLES = 4, 16
"""Workgroups sampled from a launch, and from a launch whose workgroups execute different instructions."""
MOST_INSTRUCTIONS = 2_000_000
"""Average instruction budget of a sampled wavefront."""
MOST_OF_A_SHORT_LAUNCH = 5_000_000
"""Total instructions below which a launch without matrix instructions is also run in full."""
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, eq=False)
class Sampled:
    """A timed launch.

    Attributes:
        workgroups: total workgroups of the launch.
        run: numbers of the sampled workgroups; if they are alike, `trace` holds only the first.
        flops: matrix operations of the launch.
        bytes: device memory bytes that it reads and writes.
    """

    workgroups: int
    run: tuple[int, ...]
    trace: Trace
    plan: Plan
    sharing: Sharing
    samples: tuple[Workgroup, ...]
    time: LaunchTime
    flops: float
    bytes: float


def chosen(workgroups: int, count: int) -> tuple[int, ...]:
    """Choose `count` workgroup numbers, one in each equal part of the launch, without aliasing with the grid."""
    if workgroups <= count:
        return tuple(range(workgroups))
    return tuple(sorted({int(workgroups * (place + (place * _GOLDEN) % 1) / count) for place in range(count)}))


class SamplingRunner:
    """Launch runner that runs only a sample of each launch's workgroups.

    The remaining workgroups of short launches without matrix instructions are run before the next launch, which may
    depend on their output. For example, expert GEMMs depend on the token order.

    Attributes:
        device: numbers of compute units and XCDs; None: those of the architecture's product.
        found: results of the launches.
    """

    def __init__(self, device: tuple[int, int] | None = None) -> None:
        self.device = device
        self.found: list[Sampled] = []
        self._rest: Callable[[], object] | None = None

    def __call__(self, launch: Launch, memory: Memory, options: Options) -> Statistics:
        """Sample and time a launch.

        Raises:
            EmulationError: a kernel fails.
            UnsupportedInstructionError: the time model has no cost for an instruction.
        """
        if not options.strict:
            memory.stop_tracking()
        if self._rest is not None:
            self._rest()
        sampled = sample_launch(launch, memory, options, self.device)
        self.found.append(sampled)
        self._rest = _rest(sampled, launch, memory, options)
        return sampled.trace.statistics


def _rest(sampled: Sampled, launch: Launch, memory: Memory, options: Options) -> Callable[[], object] | None:
    """Return a function that runs the workgroups that were not sampled, or None if they need not run."""
    instructions = sampled.trace.statistics.instructions / len(sampled.run) * launch.workgroups
    if sampled.flops or instructions > MOST_OF_A_SHORT_LAUNCH:
        return None
    left = sorted(set(range(launch.workgroups)).difference(sampled.run))
    return partial(execute, launch, memory, options, (), left) if left else None


def sample_launch(launch: Launch, memory: Memory, options: Options, device: tuple[int, int] | None = None) -> Sampled:
    """Run a sample of a launch's workgroups and model the time of the launch. Raises like `SamplingRunner`.

    Args:
        device: numbers of compute units and XCDs; None: those of the architecture's product.
    """
    arch = launch.kernel.program.arch.name
    machine = machine_of(arch)
    plan = _plan(launch, device or compute_units(arch))
    run = _run(launch, memory, options, machine)
    trace = run.first() if len(_lengths(run)) == 1 else run
    sharing = shared_loads(launch, memory, options, trace, plan.resident, (plan.num_cus, plan.num_xcds))
    samples = tuple(Workgroup(trace, place, machine) for place in range(len(trace.waves)))
    time = time_launch(machine, plan, samples, sharing)
    scale = plan.workgroups / trace.statistics.workgroups
    loaded, stored = (sum(_executed(trace, column)) * plan.workgroups / len(trace.waves) for column in (1, 2))
    return Sampled(
        plan.workgroups, run.workgroups, trace, plan, sharing, samples, time,
        sum(trace.statistics.summary.flops.values()) * scale,
        loaded * sharing.distinct / sharing.units + stored,
    )  # fmt: skip


def _run(launch: Launch, memory: Memory, options: Options, machine: Machine) -> Trace:
    few = replace(options, budget=min(options.budget, MOST_INSTRUCTIONS))
    try:
        trace = record(launch, memory, few, chosen(launch.workgroups, FEW_SAMPLES), machine)
        if len(_lengths(trace)) > 1 and launch.workgroups > FEW_SAMPLES:
            trace = record(launch, memory, few, chosen(launch.workgroups, MORE_SAMPLES), machine)
    except InstructionBudgetError as error:
        error.message += "; workgroups that wait for each other cannot be sampled"
        raise
    return trace


def _lengths(trace: Trace) -> set[tuple[int, ...]]:
    """Return the distinct tuples of instruction counts per wavefront among the workgroups."""
    return {tuple(wave.length for wave in waves) for waves in trace.waves}


def _plan(launch: Launch, device: tuple[int, int]) -> Plan:
    kernel, arch = launch.kernel, launch.kernel.program.arch
    fits = occupancy(
        arch.name, vgprs=kernel.metadata.allocated_vgprs, sgprs=kernel.metadata.sgprs, lds_bytes=launch.lds_bytes,
        num_warps=launch.wavefronts,
    )  # fmt: skip
    if not fits.workgroups:
        raise DeviceError(
            f"kernel {kernel.symbol} does not fit a compute unit of {arch.name}: it needs too much {fits.limit}"
        )
    return Plan(launch.workgroups, fits.workgroups, *device)


def _executed(trace: Trace, column: int) -> list[float]:
    amounts = trace.amounts[:, column]
    return [
        float(sum(amounts[part].sum() * count for wave in waves for part, count in wave.parts)) for waves in trace.waves
    ]
