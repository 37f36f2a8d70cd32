"""Instructions of the vector ALU, run on registers that are given."""

from __future__ import annotations

import numpy as np

from tests.support.emulation.machine import DEFAULT_MODE, Machine
from tests.support.emulation.registers import put, spelled


def run(
    name: str, kinds: list[str], sources: list[np.ndarray], result: str, modifiers: str = "", mode: int = DEFAULT_MODE
):
    machine = Machine(mode=mode)
    machine.v[2] = 0x55555555
    for i, source in enumerate(sources):
        put(machine, 8 + 4 * i, source)
    operands = ", ".join(spelled(kind, 8 + 4 * i) for i, kind in enumerate(kinds))
    machine.execute(f"{name} {spelled(result, 2)}, {operands}{modifiers}")
    return machine
