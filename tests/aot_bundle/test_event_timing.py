"""Rounds of device times, with a device whose clock is advanced by the work itself."""

from __future__ import annotations

from typing import Any

from aot_bundle.event_timing import MAX_CALLS, calls_per_round, device_rounds, take_turns


class Clock:
    """A device whose events note `now`, in milliseconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def event(self) -> Any:
        return Event(self.now)

    def takes(self, milliseconds: float) -> Any:
        def work() -> None:
            self.now += milliseconds

        return work


class Event:
    def __init__(self, at: float):
        self.at = at

    def elapsed_ms(self, start: Event) -> float:
        return self.at - start.at


def test_measurements_take_turns_and_the_first_round_is_thrown_away():
    order: list[str] = []
    found = take_turns({name: lambda name=name: order.append(name) or float(len(order)) for name in "ab"}, 2)
    assert order == ["a", "b"] * 3
    assert found == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_calls_fill_a_round():
    clock: Any = Clock()
    assert [calls_per_round(clock, clock.takes(ms)) for ms in (1.0, 50.0, 0.0)] == [20, 1, MAX_CALLS]


def test_seconds_are_those_of_one_call():
    clock: Any = Clock()
    found = device_rounds(clock, {"fast": clock.takes(0.5), "slow": clock.takes(4.0)}, 3)
    assert {name: [round(seconds, 9) for seconds in taken] for name, taken in found.items()} == {
        "fast": [0.0005] * 3,
        "slow": [0.004] * 3,
    }
