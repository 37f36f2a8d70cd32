"""Time of a whole launch: distributes its workgroups to compute units that share clock and memory bandwidth.

Workgroups are dispatched in order to the first free slot. Compute units are fully occupied in all rounds but the last,
whose workgroups are spread evenly. A workgroup that was not sampled takes the time of the nearest sampled one.
Dissimilar workgroups are dispatched individually (`dispatch`).
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
"""Fixed-point iterations between the clock and the pipe utilisation that throttles it."""


class Sample(Protocol):
    """A workgroup that represents others. number: its number in the launch."""

    @property
    def number(self) -> int: ...

    def on(self, conditions: Conditions, resident: int, count: int | None = None) -> Replayed:
        """Replay `count` copies of the workgroup on a compute unit, `resident` at a time; None: as many as resident."""


@dataclass(frozen=True)
class Plan:
    """Distribution of a launch over the device.

    Attributes:
        workgroups: workgroups in the launch.
        resident: maximum number of resident workgroups per compute unit.
        num_cus, num_xcds: compute units and XCDs of the device.
    """

    workgroups: int
    resident: int
    num_cus: int
    num_xcds: int

    @property
    def full(self) -> int:
        """Workgroups in rounds that fully occupy every compute unit."""
        return self.workgroups // (self.num_cus * self.resident) * self.num_cus * self.resident

    @property
    def last(self) -> int:
        """Workgroups per compute unit in the partial last round; 0 if there is none."""
        return -(-(self.workgroups - self.full) // self.num_cus)


@dataclass(frozen=True, eq=False)
class LaunchTime:
    """Modelled time of a launch.

    Attributes:
        seconds, launch_seconds: total time, and the part of it that is launch overhead.
        clock_ghz: modelled clock of the device.
        shares: breakdown of `seconds`, as fractions: launch overhead (`launch`), idle compute units (`occupancy`), and
            the rest in proportion to wavefront cycles by reason.
        used: utilisation of the pipes, LDS and memory paths, as fractions of the total time.
        waited: float64 [instructions, REASONS], average cycles that the wavefronts of a sampled workgroup waited.
        spent: total cycles of these wavefronts, issuing and waiting.
        resident: resident workgroups per compute unit.
        rounds: workgroups on the busiest compute unit, divided by `resident`.
        conditions: memory conditions of most workgroups.
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
    """Return the memory conditions of a compute unit. clock: cycles per ns."""
    per_loaded = max(
        1 / machine.l1_bytes,
        sharing.fullest / machine.l2_bytes / machine.usable,
        sharing.most_by_xcd * clock / machine.fabric / machine.usable,
        sharing.sum_by_xcd * clock / machine.shared_cache / machine.usable,
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
    """Model the time of a launch.

    Args:
        samples: sampled workgroups, sorted by number.
        sharing: sharing of loads in a full round.
        last_sharing: returns the sharing in a round of a number of workgroups; None: scale that of a full round.
        kinds: int [workgroups], index of the sample that represents each workgroup; None: the nearest by number.
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
    """The full rounds, or the last one. found: replay of `workgroups` copies of each sample on a compute unit."""

    found: tuple[Replayed, ...]
    workgroups: int


def _apart(plan: Plan, samples: Sequence[Sample], conditions: Conditions) -> tuple[_Round, _Round]:
    """Replay a fully occupied compute unit for each kind of workgroup."""
    count = plan.resident if plan.full else plan.last
    found = _Round(tuple(sample.on(conditions, count) for sample in samples), count)
    nothing = _Round((), 0)
    return (found, nothing) if plan.full else (nothing, found)


def _in_turn(plan: Plan, sample: Sample, conditions: Sequence[Conditions]) -> tuple[_Round, _Round]:
    """Replay identical workgroups, each starting when another ends: the full rounds, and the increment of the last."""
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
        units,
        *(
            max(1.0, value * part)
            for value in (sharing.fullest, sharing.most_by_xcd, sharing.sum_by_xcd, sharing.distinct)
        ),
    )


def _ends_in_turn(plan: Plan, rounds: tuple[_Round, _Round]) -> tuple[float, float]:
    """Return (finish cycle of the last compute unit, mean over all) for identical workgroups."""
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
    ends = dispatch(alone, together, plan.num_cus, plan.num_xcds, most.workgroups)
    return float(ends.max()), float(ends.mean())


def _total(plan: Plan, kinds: Array, rounds: tuple[_Round, _Round], what: Literal["busy", "spent"]) -> Array:
    """Sum `Replayed.busy` or `spent` over the workgroups of the full rounds and of the last."""
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
