"""A machine of gfx950 whose registers hold a known number."""

from __future__ import annotations

from tests.support.emulation.machine import Machine

OLD = 0xDEADBEEF


def gfx950(**given: int) -> Machine:
    machine = Machine(arch="gfx950", **given)
    machine.v[:] = OLD
    return machine
