"""Dispatch of dissimilar workgroups to the compute units of a device, which share their time among residents.

Workgroups are assigned to XCDs round-robin. Each XCD dispatches its workgroups in order, to the first compute unit with
a free slot. A resident workgroup progresses at the rate that it would have beside copies of itself. A long one speeds
up when its neighbours have ended and no workgroup is left to replace them.
"""

from __future__ import annotations

import numpy as np

from aot_emulator.state.arrays import Array


def dispatch(alone: Array, together: Array, num_cus: int, xcds: int, resident: int) -> Array:
    """Return the cycle at which each compute unit finishes, float64 [num_cus]; 0 if it received no workgroup.

    Args:
        alone: cycles that each workgroup takes alone on a compute unit, by number.
        together: cycles that `resident` copies of each workgroup take together on a compute unit.
        xcds: number of XCDs.
        resident: maximum number of resident workgroups per compute unit.
    """
    each = num_cus // xcds
    found = [_of_xcd(alone[xcd::xcds], together[xcd::xcds], each, resident) for xcd in range(xcds)]
    return np.concatenate(found)


def _of_xcd(alone: Array, together: Array, units: int, resident: int) -> Array:
    grows = (together - alone) / max(1, resident - 1)
    now, ends, following = np.zeros(units), np.zeros(units), np.full(units, np.inf)
    held: list[dict[int, float]] = [{} for _ in range(units)]

    def take(unit: int, number: int) -> None:
        held[unit][number] = 1.0  # fraction left

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
