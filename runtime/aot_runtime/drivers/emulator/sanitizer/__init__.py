"""Strict emulation: stops at what a GPU lets pass, and names the place. `docs/emulator.md` says what counts as a fault.

`Sanitizer` is a monitor of a launch. Each sort of fault has its module: `waits` registers used before their loads have
come back, `races` unordered accesses, of which `shadow` keeps the records; here are the alignment of addresses, what
was never written, and barriers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from aot_runtime.errors import DivergentBarrierError, MisalignedAccessError, UninitializedReadError

from ..counters import is_coherent
from ..decode import Instruction
from ..disassembly import disassemble
from ..memory import Place, gather, scatter
from ..monitor import Monitor, Touch, Watch
from ..wavefronts import Array, Wavefronts
from .races import Order, Races
from .reached import Reached
from .shadow import Cells, pieces
from .waits import Waits

if TYPE_CHECKING:
    from ..scheduler import Launch

_LDS_ALIGNMENT = {1: 1, 2: 2, 4: 4, 8: 8, 12: 16, 16: 16}
"""Of an access's bytes: what needs no unaligned access mode."""


class Sanitizer(Monitor):
    """Watches one launch. Raises a `SanitizerError` of the kind that it finds."""

    def __init__(self, launch: Launch):
        self._launch, self._program = launch, launch.kernel.program
        self._waits = Waits(self._program)
        self._order = Order(math.prod(launch.grid), launch.wavefronts)
        self._races = Races(self._order, self._describe_access, self._describe_wavefront)
        self._pcs = [0]  # of the access of each time; there is none at time 0
        self._is_coherent = False
        self._global_cells: dict[int, Cells] = {}

    def begin(self, access: Any, first: int) -> None:
        self._access, self._first = access, first
        for allocation in (access.lds, access.scratch):
            allocation.unwritten = np.ones(allocation.nbytes, np.uint8)
        self._lds_cells = Cells(access.lds.nbytes)
        self._ended: set[int] = set()

    @property
    def _time(self) -> int:
        return len(self._pcs) - 1

    def _numbers(self, waves: Wavefronts) -> Array:
        """Of wavefronts in the launch: uint32 [wavefronts]."""
        wavefronts = waves.slot % self._launch.wavefronts
        return np.asarray(self._order.number(self._first + waves.workgroup, wavefronts), np.uint32)

    # Registers

    def instruction(self, waves: Wavefronts, instruction: Instruction) -> None:
        effect = self._waits.effect(instruction)
        if effect.counted:
            self._pcs.append(instruction.pc)
            self._is_coherent = is_coherent(instruction)
        self._waits.execute(waves, instruction, effect, self._time)

    def derive(self, part: Wavefronts, sources: tuple[Wavefronts, ...]) -> None:
        self._waits.derive(part, sources)

    # Accesses

    def reach(self, waves: Wavefronts, touch: Touch, place: Place) -> Watch | None:
        own_bytes = {"lds": self._access.lds_bytes, "scratch": self._access.scratch_bytes}.get(touch.space, 0)
        reached = Reached(waves, touch, place, self._numbers(waves), own_bytes)
        _check_alignment(reached)
        _check_written(reached)
        if touch.space == "scratch":
            return None
        is_atomic, time = touch.action == "atomic" or self._is_coherent, self._time
        if is_atomic and touch.action != "load":
            self._order.release(reached.wavefronts, time)
        if is_atomic and touch.action != "store":
            self._order.acquire(reached.wavefronts, time)
        cells = self._cells(reached)
        if touch.action == "load":
            self._races.read(cells, reached, time)
            return None
        return self._races.write(cells, reached, time, is_atomic)

    def _cells(self, reached: Reached) -> Cells:
        if reached.is_lds:
            return self._lds_cells
        allocation = reached.allocation
        found = self._global_cells.get(allocation.base)
        if found is None:
            found = self._global_cells[allocation.base] = Cells(allocation.data.size)
        return found

    # Barriers

    def release(self, groups: list[Wavefronts]) -> None:
        self._check_barrier(groups)
        for waves in groups:
            since = self._waits.of(waves).lds_since
            now = self._time + 1
            self._order.barrier(self._numbers(waves), now, now if since is None else since)

    def end(self, waves: Wavefronts) -> None:
        self._ended.update(waves.workgroup.tolist())

    def _check_barrier(self, groups: list[Wavefronts]) -> None:
        where: dict[int, Wavefronts] = {}
        for waves in groups:
            for workgroup in set(waves.workgroup.tolist()):
                other = where.setdefault(workgroup, waves)
                if other.pc != waves.pc:
                    what = f"others of its workgroup wait at pc {self._barrier_before(other).pc:#x}"
                    raise self._diverged(waves, workgroup, what)
                if workgroup in self._ended:
                    raise self._diverged(waves, workgroup, "others of its workgroup have ended")

    def _barrier_before(self, waves: Wavefronts) -> Instruction:
        """The barrier that wavefronts wait at."""
        instructions = self._program.instructions
        return next(found for pc in (waves.pc - 4, waves.pc - 8) if (found := instructions.get(pc)) is not None)

    def _diverged(self, waves: Wavefronts, workgroup: int, what: str) -> DivergentBarrierError:
        barrier, error = self._barrier_before(waves), DivergentBarrierError(f"waits here, but {what}")
        text, code = disassemble(barrier), self._launch.kernel.module.name
        error.locate(self._program.kernel, barrier.pc, barrier.mnemonic, text, code)
        member = int(np.argmax(waves.workgroup == workgroup))
        x, y, z, error.wavefront = self._place_of(int(self._numbers(waves)[member]))
        error.workgroup = (x, y, z)
        return error

    # Words

    def _place_of(self, number: int) -> tuple[int, int, int, int]:
        """Coordinates of a wavefront's workgroup, and its number there."""
        x, y, z = self._launch.coordinates(np.array([self._order.workgroup(number)]))[0].tolist()
        return x, y, z, self._order.wavefront(number)

    def _describe_wavefront(self, number: int) -> str:
        *workgroup, wavefront = self._place_of(number)
        return f"wavefront {wavefront} of workgroup {tuple(workgroup)}"

    def _describe_access(self, time: int) -> str:
        pc = self._pcs[time]
        return f"`{disassemble(self._program.instructions[pc])}` at pc {pc:#x}"


def _check_alignment(reached: Reached) -> None:
    nbytes = reached.nbytes
    needed = _LDS_ALIGNMENT[nbytes] if reached.is_lds else min(nbytes, 4)
    if reached.offset_bits & (needed - 1):
        index = int(np.argmax((reached.offsets & (needed - 1)) != 0))
        raise reached.error(MisalignedAccessError, index, f"an access that must be aligned to {needed} bytes")


def _check_written(reached: Reached) -> None:
    """Stores write; whatever else reads what has been written."""
    unwritten = reached.allocation.unwritten
    if unwritten is None:
        return
    offsets = reached.offsets
    for at, size in pieces(offsets, reached.nbytes):
        if reached.touch.action == "store":
            dtype = {1: np.uint8, 2: np.uint16}.get(size, np.uint32)
            scatter(unwritten, at, size, np.zeros(offsets.shape if size < 4 else (size // 4, len(offsets)), dtype))
        elif (found := gather(unwritten, at, size)).any():
            index = int(np.argmax(found.any(0) if found.ndim > 1 else found))
            raise reached.error(UninitializedReadError, index, "reads what nothing has written")


__all__ = ["Sanitizer"]
