"""Artificial traces: instructions by name, with the units that they occupy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from aot_emulator import Statistics
from aot_emulator.timing.compute_unit import Conditions, Workgroup
from aot_emulator.timing.constants import machine_of
from aot_emulator.timing.costs import Cost, Unit
from aot_emulator.timing.folding import fold
from aot_emulator.timing.trace import Line, Trace

MACHINE = replace(machine_of("gfx942"), stagger=0, lds_passes=1, missed_bytes=64, mfma_holds=0)
NEAR = Conditions(memory_latency=500, per_loaded=1 / 64, per_stored=1 / 64)
_PLAIN = Cost(Unit.VECTOR, 4, -1, -1, False, False, False, -1, (), ())
COSTS = {
    "valu": (_PLAIN, (0, 0, 0, 0)),
    "exp": (replace(_PLAIN, cycles=16), (0, 0, 0, 0)),
    "mfma": (replace(_PLAIN, unit=Unit.MATRIX, cycles=32, reads=(8,), writes=(0, 1)), (0, 0, 0, 0)),
    "chained mfma": (replace(_PLAIN, unit=Unit.MATRIX, cycles=32, reads=(0, 1), writes=(0, 1)), (0, 0, 0, 0)),
    "use": (replace(_PLAIN, reads=(1,)), (0, 0, 0, 0)),
    "lds": (replace(_PLAIN, unit=Unit.LDS, counts_lgkm=True), (8, 0, 0, 0)),
    "conflict": (replace(_PLAIN, unit=Unit.LDS, counts_lgkm=True), (32, 0, 0, 0)),
    "wait lds": (replace(_PLAIN, unit=Unit.WAIT, lgkm=0), (0, 0, 0, 0)),
    "load": (replace(_PLAIN, unit=Unit.LOAD, counts_vm=True), (0, 1024, 0, 8)),
    "scattered": (replace(_PLAIN, unit=Unit.LOAD, counts_vm=True), (0, 256, 0, 64)),
    "scratch": (replace(_PLAIN, unit=Unit.LOAD, counts_vm=True, near=True), (0, 256, 0, 0)),
    "wait load": (replace(_PLAIN, unit=Unit.WAIT, vm=0), (0, 0, 0, 0)),
    "wait but one": (replace(_PLAIN, unit=Unit.WAIT, vm=1), (0, 0, 0, 0)),
    "barrier": (replace(_PLAIN, unit=Unit.BARRIER), (0, 0, 0, 0)),
    "raise": (replace(_PLAIN, unit=Unit.SCALAR, priority=3), (0, 0, 0, 0)),
    "head": (replace(_PLAIN, unit=Unit.SCALAR), (0, 0, 0, 0)),
}
"""By name: cost, and amounts as `Trace` has them."""
_NAMES = tuple(COSTS)


def workgroup(*waves: Sequence[str]) -> Workgroup:
    """Return a workgroup whose wavefronts execute these; loops begin with `head`."""
    lines = tuple(Line(4 * place, name, name, "") for place, name in enumerate(_NAMES))
    amounts = np.array([amounts for _, amounts in COSTS.values()], float)
    head = _NAMES.index("head")
    folded = tuple(fold(np.array([_NAMES.index(name) for name in wave], np.int32), head) for wave in waves)
    costs = tuple(cost for cost, _ in COSTS.values())
    return Workgroup(Trace(lines, costs, amounts, (0,), (folded,), head, Statistics()), 0, MACHINE)


def cycles(*waves: Sequence[str], resident: int = 1) -> float:
    return workgroup(*waves).on(NEAR, resident).cycles


def index(name: str) -> int:
    """Return an instruction's position in the traces."""
    return _NAMES.index(name)
