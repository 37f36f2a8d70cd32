"""Workgroups that differ, dealt to the compute units of a device, which share their time between those they hold.

A die has the workgroups whose numbers are its own modulo the dies, and gives them out in their order, each to the
compute unit that has a place first. A workgroup beside others goes on at the rate that it has beside others like it:
one that is long goes on faster when its neighbours have ended and no workgroup is left to take their places.
"""

from __future__ import annotations

import numpy as np

from aot_emulator.state.arrays import Array


def dispatch(alone: Array, together: Array, num_cus: int, dies: int, resident: int) -> Array:
    """The cycle at which each compute unit is done, float64 [num_cus]; 0: it never had a workgroup.

    Args:
        alone: of each workgroup, by number, the cycles that it takes with a compute unit to itself.
        together: of each, the cycles in which `resident` workgroups like it end on one compute unit.
    """
    each = num_cus // dies
    found = [_of_die(alone[die::dies], together[die::dies], each, resident) for die in range(dies)]
    return np.concatenate(found)


def _of_die(alone: Array, together: Array, units: int, resident: int) -> Array:
    grows = (together - alone) / max(1, resident - 1)
    now, ends, following = np.zeros(units), np.zeros(units), np.full(units, np.inf)
    held: list[dict[int, float]] = [{} for _ in range(units)]

    def take(unit: int, number: int) -> None:
        held[unit][number] = 1.0  # what is left of it

    def cycles(unit: int, number: int) -> float:
        return float(alone[number] + grows[number] * (len(held[unit]) - 1))

    def look_ahead(unit: int) -> None:
        left = (part * cycles(unit, number) for number, part in held[unit].items())
        following[unit] = now[unit] + min(left, default=np.inf)

    started = min(len(alone), units * resident)
    for number in range(started):
        take(number % units, number)
    for unit in range(units):
        look_ahead(unit)
    while np.isfinite(time := following[unit := int(np.argmin(following))]):
        passed = time - now[unit]
        left = {number: part - passed / cycles(unit, number) for number, part in held[unit].items()}
        now[unit] = ends[unit] = time
        held[unit] = {number: part for number, part in left.items() if part > 1e-9}
        while len(held[unit]) < resident and started < len(alone):
            take(unit, started)
            started += 1
        look_ahead(unit)
    return ends
