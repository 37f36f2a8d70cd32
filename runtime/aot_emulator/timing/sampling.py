"""Which workgroups of a launch stand for all, and a runner of launches that runs and times those alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from aot_emulator.machine.execution import execute
from aot_emulator.machine.launch_options import Options
from aot_emulator.machine.launch_records import Launch
from aot_emulator.profile.counters import Statistics
from aot_emulator.state.device_memory import Memory
from aot_runtime.contract.occupancy import occupancy
from aot_runtime.errors import DeviceError, InstructionBudgetError

from .compute_unit import Workgroup
from .constants import Machine, compute_units, machine_of
from .launch_time import LaunchTime, Plan, time_launch
from .sharing import Sharing, shared_loads
from .trace import Trace, record

FEW_SAMPLES, MORE_SAMPLES = 4, 16
"""Workgroups that are run of a launch, and of one whose workgroups differ in what they execute."""
MOST_INSTRUCTIONS = 2_000_000
"""Of a sampled wavefront, on average."""
MOST_OF_A_SHORT_LAUNCH = 5_000_000
"""Instructions of all its wavefronts."""
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, eq=False)
class Sampled:
    """A launch that was timed.

    Attributes:
        workgroups: of the launch.
        run: numbers of those that were run; `trace` has the first one alone where they are alike.
        flops: of the launch's matrix instructions.
        bytes: of device memory that it reads and writes.
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
    """Numbers of `count` of a launch's workgroups, one of each part, so that they keep no step with the grid."""
    if workgroups <= count:
        return tuple(range(workgroups))
    return tuple(sorted({int(workgroups * (place + (place * _GOLDEN) % 1) / count) for place in range(count)}))


class SamplingRunner:
    """Runs a few workgroups of each launch in place of all. found: what came of the launches.

    Of a short launch without matrix instructions the others are run as well, before the next launch is: that one may
    go by what they write, as the products of experts go by the order of the tokens.
    """

    def __init__(self) -> None:
        self.found: list[Sampled] = []
        self._rest: Callable[[], object] | None = None

    def __call__(self, launch: Launch, memory: Memory, options: Options) -> Statistics:
        """Raises `EmulationError`; `UnsupportedInstructionError` of an instruction that has no cost."""
        if not options.strict:
            memory.stop_tracking()
        if self._rest is not None:
            self._rest()
        sampled = sample_launch(launch, memory, options)
        self.found.append(sampled)
        self._rest = _rest(sampled, launch, memory, options)
        return sampled.trace.statistics


def _rest(sampled: Sampled, launch: Launch, memory: Memory, options: Options) -> Callable[[], object] | None:
    """What runs the workgroups that were not sampled, of a launch of which all are to be run."""
    instructions = sampled.trace.statistics.instructions / len(sampled.run) * launch.workgroups
    if sampled.flops or instructions > MOST_OF_A_SHORT_LAUNCH:
        return None
    left = sorted(set(range(launch.workgroups)).difference(sampled.run))
    return partial(execute, launch, memory, options, (), left) if left else None


def sample_launch(launch: Launch, memory: Memory, options: Options, device: tuple[int, int] | None = None) -> Sampled:
    """Run some workgroups of a launch, and model the time of all. Raises as `SamplingRunner` does.

    device: its compute units and dies; None: those of the architecture's product.
    """
    arch = launch.kernel.program.arch.name
    machine = machine_of(arch)
    plan = _plan(launch, device or compute_units(arch))
    run = _run(launch, memory, options, machine)
    trace = run.first() if len(_lengths(run)) == 1 else run
    sharing = shared_loads(launch, memory, options, trace, plan.resident, (plan.num_cus, plan.dies))
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
        error.message += "; a workgroup that waits for another one of its launch cannot be sampled"
        raise
    return trace


def _lengths(trace: Trace) -> set[tuple[int, ...]]:
    """What wavefronts execute, in instructions, of each workgroup that differs in it."""
    return {tuple(wave.length for wave in waves) for waves in trace.waves}


def _plan(launch: Launch, device: tuple[int, int]) -> Plan:
    kernel, arch = launch.kernel, launch.kernel.program.arch
    fits = occupancy(
        arch.name, vgprs=kernel.metadata.allocated_vgprs, sgprs=kernel.metadata.sgprs, lds_bytes=launch.lds_bytes,
        num_warps=launch.wavefronts,
    )  # fmt: skip
    if not fits.workgroups:
        raise DeviceError(f"kernel {kernel.symbol} does not fit a compute unit of {arch.name}: too much {fits.limit}")
    return Plan(launch.workgroups, fits.workgroups, *device)


def _executed(trace: Trace, column: int) -> list[float]:
    amounts = trace.amounts[:, column]
    return [
        float(sum(amounts[part].sum() * count for wave in waves for part, count in wave.parts)) for waves in trace.waves
    ]
