"""The time of a whole launch: its workgroups dealt to compute units, under what these share of clock and memory.

Workgroups are given out in their order, each to the place that is free first. While there are enough of them a compute
unit has as many as fit it at once; those of the last round are spread. A workgroup that was not sampled takes as long
as the sampled one of the nearest number; those that differ are dealt out one by one (`dispatch`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from aot_emulator.state.arrays import Array

from .compute_unit import PIPES, REASONS, Conditions, Replayed
from .constants import Machine
from .dispatch import dispatch
from .sharing import Sharing

SIMDS = 4
_ROUNDS = 3
"""Times that the clock is found from the use of the pipes that it leads to."""


class Sample(Protocol):
    """A workgroup that stands for others. number: in the launch."""

    @property
    def number(self) -> int: ...

    def on(self, conditions: Conditions, resident: int, count: int | None = None) -> Replayed:
        """So many workgroups like this one on a compute unit that holds `resident` at once; None: so many."""


@dataclass(frozen=True)
class Plan:
    """How a launch meets the device.

    Attributes:
        workgroups: of the launch.
        resident: that fit a compute unit at once.
        num_cus, dies: of the device.
    """

    workgroups: int
    resident: int
    num_cus: int
    dies: int

    @property
    def full(self) -> int:
        """Workgroups of rounds in which every compute unit has as many as fit it."""
        return self.workgroups // (self.num_cus * self.resident) * self.num_cus * self.resident

    @property
    def last(self) -> int:
        """Workgroups of a compute unit in the last round, if it is not full; 0: it is."""
        return -(-(self.workgroups - self.full) // self.num_cus)


@dataclass(frozen=True, eq=False)
class LaunchTime:
    """What the model says of a launch.

    Attributes:
        seconds: all of it; launch_seconds: of them, what is not work of compute units.
        clock_ghz: that the device runs at.
        shares: parts of `seconds` by what the time goes to: the launch, compute units without work (`occupancy`), and
            else what wavefronts did or waited for, in proportion.
        used: parts of the time, launch included, that the device's pipes, LDS and paths to memory are busy.
        waited: float64 [instructions, REASONS]: cycles that a sampled workgroup's wavefronts waited, on average.
        spent: cycles of these wavefronts, issuing and waiting.
        resident: workgroups on a compute unit.
        rounds: workgroups of the busiest compute unit, divided by those.
        conditions: of most workgroups.
    """

    seconds: float
    launch_seconds: float
    clock_ghz: float
    shares: dict[str, float]
    used: dict[str, float]
    waited: Array
    spent: float
    resident: int
    rounds: float
    conditions: Conditions


def conditions_of(machine: Machine, sharing: Sharing, clock: float) -> Conditions:
    """What a compute unit has of the memory. clock: cycles a ns."""
    per_loaded = max(
        1 / machine.l1_bytes,
        sharing.fullest / machine.l2_bytes / machine.usable,
        sharing.die * clock / machine.fabric / machine.usable,
        sharing.dies * clock / machine.shared_cache / machine.usable,
        sharing.distinct * clock / machine.hbm / machine.usable,
    )
    per_stored = max(1 / machine.l1_bytes, sharing.units * clock / machine.hbm / machine.usable)
    per_scratch = max(1 / machine.l1_bytes, sharing.fullest / machine.l2_bytes / machine.usable)
    latency = round(machine.memory_latency_ns * clock)
    return Conditions(latency, *(_rounded(value) for value in (per_loaded, per_stored, per_scratch)))


def _rounded(value: float) -> float:
    return float(f"{1.05 ** round(math.log(value, 1.05)):.4g}")


def time_launch(
    machine: Machine,
    plan: Plan,
    samples: Sequence[Sample],
    sharing: Sharing,
    last_sharing: Callable[[int], Sharing] | None = None,
    kinds: Array | None = None,
) -> LaunchTime:
    """The time of a launch.

    Args:
        samples: of its workgroups, by their numbers.
        sharing: of a full round.
        last_sharing: of a round of so many workgroups; None: as a part of a full one.
        kinds: int [workgroups], the sample that each is like; None: the one of the nearest number.
    """
    if kinds is None:
        numbers = np.array([sample.number for sample in samples])
        kinds = np.searchsorted((numbers[1:] + numbers[:-1]) / 2, np.arange(plan.workgroups))
    rest = plan.workgroups - plan.full
    in_last = _scaled(sharing, min(rest, plan.num_cus)) if last_sharing is None else last_sharing(rest)
    clock = machine.clock_ghz - machine.throttle_ghz / 2
    for _ in range(_ROUNDS):
        conditions = tuple(conditions_of(machine, shared, round(clock, 1)) for shared in (sharing, in_last))
        if len(samples) == 1:
            rounds = _in_turn(plan, samples[0], conditions)
            end, mean_end = _ends_in_turn(plan, rounds)
        else:
            most = conditions[0 if plan.full else 1]
            rounds = _apart(plan, samples, most)
            end, mean_end = _ends_apart(plan, samples, kinds, most, rounds)
        busy = _total(plan, kinds, rounds, "busy") / SIMDS / plan.num_cus / end
        power = busy[PIPES.index("matrix")] + machine.vector_power * busy[PIPES.index("vector")]
        clock = machine.clock_ghz - machine.throttle_ghz * min(1.0, float(power))
    return _result(machine, plan, kinds, rounds, (end, mean_end), clock, conditions[0 if plan.full else 1])


@dataclass(frozen=True)
class _Round:
    """Of the full rounds, or of the last. found: what so many workgroups like each sample do on a compute unit."""

    found: tuple[Replayed, ...]
    workgroups: int


def _apart(plan: Plan, samples: Sequence[Sample], conditions: Conditions) -> tuple[_Round, _Round]:
    """Of workgroups that differ, as many of each kind on a compute unit as it holds at most."""
    count = plan.resident if plan.full else plan.last
    found = _Round(tuple(sample.on(conditions, count) for sample in samples), count)
    nothing = _Round((), 0)
    return (found, nothing) if plan.full else (nothing, found)


def _in_turn(plan: Plan, sample: Sample, conditions: Sequence[Conditions]) -> tuple[_Round, _Round]:
    """Of workgroups that are alike, each of which begins as another ends: the full rounds, and what the last adds."""
    resident, count = plan.resident, plan.full // plan.num_cus
    full = (sample.on(conditions[0], resident, count),) if count else ()
    if not count or not plan.last:
        last = (sample.on(conditions[1], plan.last),) if plan.last else ()
    else:
        last = (sample.on(conditions[1], resident, resident + plan.last).beyond(sample.on(conditions[1], resident)),)
    return _Round(full, count), _Round(last, plan.last)


def _scaled(sharing: Sharing, units: int) -> Sharing:
    part = units / sharing.units if sharing.units else 1.0
    return Sharing(
        units, *(max(1.0, value * part) for value in (sharing.fullest, sharing.die, sharing.dies, sharing.distinct))
    )


def _ends_in_turn(plan: Plan, rounds: tuple[_Round, _Round]) -> tuple[float, float]:
    """(cycle at which the last compute unit is done, mean of all) of workgroups that are alike."""
    full, last = (sum(found.cycles for found in part.found) for part in rounds)
    used = (plan.workgroups - plan.full) / (plan.num_cus * plan.last) if plan.last else 0.0
    return full + last, full + last * min(1.0, used)


def _ends_apart(
    plan: Plan, samples: Sequence[Sample], kinds: Array, conditions: Conditions, rounds: tuple[_Round, _Round]
) -> tuple[float, float]:
    (most,) = (part for part in rounds if part.workgroups)
    alone, together = (
        np.array([found.cycles for found in of_each])[kinds]
        for of_each in ([sample.on(conditions, 1) for sample in samples], most.found)
    )
    ends = dispatch(alone, together, plan.num_cus, plan.dies, most.workgroups)
    return float(ends.max()), float(ends.mean())


def _total(plan: Plan, kinds: Array, rounds: tuple[_Round, _Round], what: Literal["busy", "spent"]) -> Array:
    """`Replayed.busy` or `spent`, summed over the workgroups of full rounds and of the last."""
    total: Array = np.zeros(len(PIPES if what == "busy" else REASONS))
    alike = all(len(round_.found) <= 1 for round_ in rounds)
    parts = (kinds[: plan.full], kinds[plan.full :]) if alike else (kinds, kinds)
    for part, round_ in zip(parts, rounds, strict=True):
        for count, replayed in zip(np.bincount(part, minlength=len(round_.found)), round_.found, strict=False):
            total += getattr(replayed, what) * (count / round_.workgroups)
    return total


def _result(
    machine: Machine, plan: Plan, kinds: Array, rounds: tuple[_Round, _Round], ends: tuple[float, float],
    clock: float, conditions: Conditions,
) -> LaunchTime:  # fmt: skip
    end, mean_end = ends
    seconds = end / clock * 1e-9 + machine.launch_us * 1e-6
    work = end / clock * 1e-9 / seconds
    spent = _total(plan, kinds, rounds, "spent")
    total = float(spent.sum()) or 1.0
    used = {}
    for name, busy in zip(PIPES, _total(plan, kinds, rounds, "busy"), strict=True):
        units = plan.num_cus * (SIMDS if name in ("vector", "matrix") else 1)
        used[name] = float(busy) / units / end * work
    shares = {name: float(cycles) / total * work * mean_end / end for name, cycles in zip(REASONS, spent, strict=True)}
    shares |= {"occupancy": work * (1 - mean_end / end), "launch": 1 - work}
    most = rounds[0 if plan.full else 1]
    waited: Array = np.sum([found.waited for found in most.found], axis=0) / len(most.found) / most.workgroups
    of_one = sum(float(found.spent.sum()) for found in most.found) / len(most.found) / most.workgroups
    turns = plan.full / (plan.num_cus * plan.resident) + (plan.last / plan.resident)
    return LaunchTime(
        seconds,
        machine.launch_us * 1e-6,
        clock,
        shares,
        used,
        waited,
        of_one,
        plan.resident if plan.full else plan.last,
        turns,
        conditions,
    )
