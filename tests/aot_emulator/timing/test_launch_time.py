"""Distribution of workgroups among compute units: rounds, the last round, and shared data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from aot_emulator.timing.compute_unit import PIPES, REASONS, Conditions, Replayed
from aot_emulator.timing.constants import machine_of
from aot_emulator.timing.launch_time import LaunchTime, Plan, conditions_of, time_launch
from aot_emulator.timing.sharing import unshared

MACHINE = replace(machine_of("gfx942"), clock_ghz=1, throttle_ghz=0, launch_us=0)
CUS, NUM_XCDS = 304, 8


@dataclass(frozen=True)
class Fixed:
    """A workgroup that takes `cycles` alone, and twice as many beside another, half of them in the matrix pipe."""

    number: int
    cycles: float

    def on(self, conditions: Conditions, resident: int, count: int | None = None) -> Replayed:
        resident = count or resident
        busy, spent = np.zeros(len(PIPES)), np.zeros(len(REASONS))
        busy[PIPES.index("matrix")], spent[REASONS.index("matrix")] = 2 * self.cycles * resident, self.cycles * resident
        return Replayed(self.cycles * resident, busy, spent, np.zeros((1, len(REASONS))))


@dataclass(frozen=True)
class Given:
    """A workgroup whose replay always has the given result."""

    number: int
    found: Replayed

    def on(self, conditions: Conditions, resident: int, count: int | None = None) -> Replayed:
        return self.found


def timed(workgroups: int, resident: int, *samples: Fixed) -> LaunchTime:
    plan = Plan(workgroups, resident, CUS, NUM_XCDS)
    return time_launch(MACHINE, plan, samples, unshared(min(workgroups, CUS), NUM_XCDS))


@pytest.mark.parametrize(
    "workgroups, resident, cycles",
    [(1, 1, 1000), (304, 1, 1000), (305, 1, 2000), (608, 2, 2000), (305, 2, 2000), (609, 2, 3000), (1216, 2, 4000)],
)
def test_rounds(workgroups: int, resident: int, cycles: float):
    assert timed(workgroups, resident, Fixed(0, 1000)).seconds == pytest.approx(cycles * 1e-9)


def test_compute_units_without_work():
    found = timed(76, 1, Fixed(0, 1000))
    assert found.shares["occupancy"] == pytest.approx(0.75) and found.used["matrix"] == pytest.approx(0.125)
    assert timed(304, 1, Fixed(0, 1000)).shares["occupancy"] == 0


def test_workgroups_that_differ_go_to_what_is_free_first():
    """A sample stands for the numbers next to it: for 304 of 608, and for 200, 600 and 416 of 1216."""
    assert timed(608, 1, Fixed(0, 1000), Fixed(607, 5000)).seconds == pytest.approx(6000e-9)
    whole, mean = timed(1216, 1, Fixed(0, 1000), Fixed(400, 3000), Fixed(1200, 500)), 2208e3 / CUS
    assert mean <= whole.seconds * 1e9 <= mean + 3000
    assert whole.shares["occupancy"] == pytest.approx(1 - mean / (whole.seconds * 1e9), abs=0.01)
    last = timed(305, 1, Fixed(0, 1000), Fixed(304, 7000))  # the last of two rounds: some are long in both
    assert last.seconds == pytest.approx(8000e-9)


def test_kinds_say_what_each_workgroup_is_like():
    """Long workgroups have odd numbers, so they go to odd XCDs, which no other XCD relieves."""
    samples, plan = [Fixed(0, 1000), Fixed(0, 5000)], Plan(608, 1, CUS, NUM_XCDS)
    found = time_launch(MACHINE, plan, samples, unshared(CUS, NUM_XCDS), kinds=np.arange(608) % 2)
    assert found.seconds == pytest.approx(10000e-9) and found.shares["occupancy"] == pytest.approx(0.4)
    # What they did is counted by kind: half of all cycles of the matrix pipes of compute units that are in use.
    assert found.used["matrix"] == pytest.approx(0.5 * (304 * 1000 + 304 * 5000) / CUS / 10000)


def test_the_slowest_resource_is_what_a_compute_unit_gets():
    alone, all_ = (conditions_of(MACHINE, unshared(units, NUM_XCDS), 2.0) for units in (1, CUS))
    assert alone.per_loaded == pytest.approx(1 / MACHINE.l1_bytes, rel=0.03)
    assert all_.per_loaded == pytest.approx(CUS * 2.0 / MACHINE.hbm / MACHINE.usable, rel=0.03)
    shared = replace(unshared(CUS, NUM_XCDS), most_by_xcd=1.0, sum_by_xcd=8.0, distinct=1.0)
    assert conditions_of(MACHINE, shared, 2.0).per_loaded == pytest.approx(
        CUS / NUM_XCDS / MACHINE.l2_bytes / MACHINE.usable, rel=0.03
    )


def test_the_clock_falls_with_the_matrix_pipes():
    machine = replace(MACHINE, clock_ghz=2.1, throttle_ghz=1.2)
    plan, sharing = Plan(304, 1, CUS, NUM_XCDS), unshared(CUS, NUM_XCDS)
    assert time_launch(machine, plan, [Fixed(0, 1000)], sharing).clock_ghz == pytest.approx(1.5)
    idle = Replayed(1000, np.array([2000.0, 0, 0, 0]), np.zeros(len(REASONS)), np.zeros((1, len(REASONS))))
    vector = time_launch(replace(machine, vector_power=0.5), plan, [Given(0, idle)], sharing)
    assert vector.clock_ghz == pytest.approx(2.1 - 1.2 * 0.5 * 0.5)
    few = time_launch(machine, Plan(4, 1, CUS, NUM_XCDS), [Fixed(0, 1000)], unshared(4, NUM_XCDS))
    assert few.clock_ghz == pytest.approx(2.1, abs=0.01)
