"""Which workgroups of a launch stand for all, and a runner of launches that runs and times those alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, eq=False)
class Sampled:
    """A launch that was timed.

    Attributes:
        workgroups: of the launch; `trace.workgroups` has those that were run.
        flops: of the launch's matrix instructions.
        bytes: of device memory that it reads and writes.
    """

    workgroups: int
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
    """Runs a few workgroups of each launch in place of all. found: what came of the launches."""

    def __init__(self) -> None:
        self.found: list[Sampled] = []

    def __call__(self, launch: Launch, memory: Memory, options: Options) -> Statistics:
        """Raises `EmulationError`; `UnsupportedInstructionError` of an instruction that has no cost."""
        if not options.strict:
            memory.stop_tracking()
        sampled = sample_launch(launch, memory, options)
        self.found.append(sampled)
        return sampled.trace.statistics


def sample_launch(launch: Launch, memory: Memory, options: Options) -> Sampled:
    """Run some workgroups of a launch, and model the time of all. Raises as `SamplingRunner` does."""
    machine = machine_of(launch.kernel.program.arch.name)
    plan = _plan(launch)
    trace = _sampled(launch, memory, options, machine)
    sharing = shared_loads(launch, memory, options, trace, plan.resident)
    samples = tuple(Workgroup(trace, place, machine) for place in range(len(trace.waves)))
    time = time_launch(machine, plan, samples, sharing)
    scale = plan.workgroups / trace.statistics.workgroups
    loaded, stored = (sum(_executed(trace, column)) * plan.workgroups / len(trace.waves) for column in (1, 2))
    return Sampled(
        plan.workgroups, trace, plan, sharing, samples, time,
        sum(trace.statistics.summary.flops.values()) * scale,
        loaded * sharing.distinct / sharing.units + stored,
    )  # fmt: skip


def _sampled(launch: Launch, memory: Memory, options: Options, machine: Machine) -> Trace:
    """The trace of a few workgroups; of one, if these are alike, and of more, if they are not."""
    few = replace(options, budget=min(options.budget, MOST_INSTRUCTIONS))
    try:
        trace = record(launch, memory, few, chosen(launch.workgroups, FEW_SAMPLES), machine)
        lengths = {tuple(wave.length for wave in waves) for waves in trace.waves}
        if len(lengths) > 1 and launch.workgroups > FEW_SAMPLES:
            trace = record(launch, memory, few, chosen(launch.workgroups, MORE_SAMPLES), machine)
    except InstructionBudgetError as error:
        error.message += "; a workgroup that waits for another one of its launch cannot be sampled"
        raise
    return trace.first() if len(lengths) == 1 else trace


def _plan(launch: Launch) -> Plan:
    kernel, arch = launch.kernel, launch.kernel.program.arch
    fits = occupancy(
        arch.name, vgprs=kernel.metadata.allocated_vgprs, sgprs=kernel.metadata.sgprs, lds_bytes=launch.lds_bytes,
        num_warps=launch.wavefronts,
    )  # fmt: skip
    if not fits.workgroups:
        raise DeviceError(f"kernel {kernel.symbol} does not fit a compute unit of {arch.name}: too much {fits.limit}")
    return Plan(launch.workgroups, fits.workgroups, *compute_units(arch.name))


def _executed(trace: Trace, column: int) -> list[float]:
    """An amount, by workgroup."""
    amounts = trace.amounts[:, column]
    return [
        float(sum(amounts[part].sum() * count for wave in waves for part, count in wave.parts)) for waves in trace.waves
    ]
