"""Strict mode: reports faults that GPUs do not detect. Each fault stops the launch with a `SanitizerError`.

- bounds: an access outside of an allocation, or past the LDS or scratch of the kernel;
- alignment: a misaligned LDS access, scalar load or atomic;
- uninitialised: a load from memory or LDS that was never written. Scratch is not checked, as compilers reload whole
  spilled registers of which only some lanes were written;
- half: use of a register half that a 16-bit load into the other half leaves undefined (`half_loads`);
- wait: use of a register before the load or atomic that writes it was waited for (`waits`);
- hazard: an instruction issued too soon after one that it depends on, without a hardware interlock (`wait_states`);
- race: unordered accesses to the same bytes by two wavefronts, at least one of them a store (`races`);
- barrier: a barrier that some wavefronts of the workgroup never reach, or reach at another instruction, unless the
  kernel shifts barriers on purpose (`Program.shifts_barriers`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from aot_emulator.errors import MemoryAccessError, SanitizerError
from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.disassembly import disassemble
from aot_emulator.isa.wait_counters import is_coherent
from aot_emulator.machine.launch_records import Launch
from aot_emulator.machine.monitor import BatchView, Monitor
from aot_emulator.state.access import Touch
from aot_emulator.state.arrays import Array
from aot_emulator.state.device_memory import gather, scatter
from aot_emulator.state.wavefronts import Wavefronts

from .half_loads import HalfLoads
from .races import Accesses, HappensBefore, Races
from .shadow import Cells
from .wait_states import WaitStates
from .waits import Waits

_ONES = 0x01010101
"""Initialisation marks of four written bytes."""
_LDS_ALIGNMENT = {1: 1, 2: 2, 4: 4, 8: 8, 12: 16, 16: 16}
"""Alignment that an LDS access of a size needs in every alignment mode. Memory needs a dword at most."""


class Sanitizer(Monitor):
    """Monitor that checks one launch.

    Args:
        ignored: kinds of faults that are not reported.
    """

    def __init__(self, launch: Launch, ignored: frozenset[str] = frozenset()) -> None:
        self._ignored = ignored
        self._program = launch.kernel.program
        self._waits = Waits(self._program)
        self._wait_states = WaitStates(self._program) if self._program.arch.isa == "cdna" else None
        self._half_loads = HalfLoads(self._program) if self._program.arch.isa == "cdna" else None
        self._order = HappensBefore(launch.workgroups, launch.wavefronts)
        self._races = Races(self._order, self._describe_access, self._describe_wavefront)
        self._memory_cells: dict[int, Cells] = {}
        self._pcs = [0]  # pc of the access at each time; times start at 1
        self._coherent = self._to_lds = False

    def begin(self, batch: BatchView) -> None:
        self._batch = batch
        access = batch.access
        self._lds_written = np.zeros(access.lds.size, np.uint8)
        self._lds_cells = Cells(access.lds.size)

    @property
    def _time(self) -> int:
        return len(self._pcs) - 1

    def _numbers(self, waves: Wavefronts) -> Array:
        ranks = waves.slot % self._batch.wavefronts
        return np.asarray(self._order.number(self._batch.numbers[waves.workgroup], ranks), np.uint32)

    # Registers that wait for memory

    def instruction(self, waves: Wavefronts, instruction: Instruction) -> None:
        effect = self._waits.effect(instruction)
        if effect.counted:
            self._pcs.append(instruction.pc)
            self._coherent = is_coherent(instruction)
            self._to_lds = effect.to_lds
            if effect.to_lds:
                self._order.load_to_lds(self._time)
        wrong = self._waits.execute(waves, instruction, effect, self._time)
        if wrong:
            self._stop(self._error("wait", wrong, waves, 0, None))
        if self._wait_states is not None and (wrong := self._wait_states.execute(waves, instruction)):
            self._stop(self._error("hazard", wrong, waves, 0, None))
        if self._half_loads is not None and (wrong := self._half_loads.execute(waves, instruction)):
            self._stop(self._error("half", wrong, waves, 0, None))

    def divide(self, waves: Wavefronts, part: Wavefronts) -> None:
        self._derive(part, (waves,))

    def join(self, first: Wavefronts, second: Wavefronts, joined: Wavefronts) -> None:
        self._derive(joined, (first, second))

    def _derive(self, part: Wavefronts, sources: tuple[Wavefronts, ...]) -> None:
        self._waits.derive(part, sources)
        if self._wait_states is not None:
            self._wait_states.derive(part, sources)
        if self._half_loads is not None:
            self._half_loads.derive(part, sources)

    # Barriers

    def barrier(self, groups: list[Wavefronts]) -> None:
        workgroups = np.concatenate([group.workgroup for group in groups])
        places = np.repeat([group.pc for group in groups], [group.count for group in groups])
        arrived = np.bincount(workgroups, minlength=self._batch.workgroups)
        lowest = np.full(self._batch.workgroups, np.iinfo(np.int64).max)
        highest = np.full(self._batch.workgroups, -1)
        np.minimum.at(lowest, workgroups, places)
        np.maximum.at(highest, workgroups, places)
        for group in groups:
            apart = (lowest[group.workgroup] != highest[group.workgroup]) & (not self._program.shifts_barriers)
            alone = arrived[group.workgroup] != self._batch.wavefronts
            if apart.any():
                wave = int(np.flatnonzero(apart)[0])
                workgroup = group.workgroup[wave]
                other = int((highest if lowest[workgroup] == group.pc else lowest)[workgroup])
                text = f"this wavefront waits here, another at the barrier at pc {self._barrier_before(other).pc:#x}"
                self._stop(self._barrier_error(text, group, wave))
            if alone.any():
                wave = int(np.flatnonzero(alone)[0])
                ended = self._batch.wavefronts - int(arrived[group.workgroup[wave]])
                text = f"{ended} of the workgroup's wavefronts have ended and never come to the barrier"
                self._stop(self._barrier_error(text, group, wave))
        for group in groups:
            outstanding, now = self._waits.of(group), self._time + 1
            since = outstanding.lds_since
            load_time = min(outstanding.loads_to_lds, default=now)
            self._order.barrier(self._numbers(group), now, now if since is None else since, load_time)

    def _barrier_before(self, pc: int) -> Instruction:
        return next(found for size in (4, 8) if (found := self._program.instructions.get(pc - size)) is not None)

    def _barrier_error(self, text: str, group: Wavefronts, wave: int) -> SanitizerError:
        error = self._error("barrier", text, group, wave, None)
        self._batch.locate(error, self._barrier_before(group.pc))
        return error

    # Memory

    def access(self, waves: Wavefronts, touch: Touch) -> None:
        reached = _Reached(waves, touch)
        addresses = reached.addresses
        if not addresses.size:
            return
        self._check_alignment(reached)
        if touch.space in ("global", "scalar"):
            self._check_memory(reached)
        elif touch.space == "lds":
            name = "LDS of the workgroup"
            if not self._check_bounds(reached, self._batch.access.lds_bytes, name):
                return  # no records exist outside of the LDS
            offsets = addresses + (waves.workgroup * self._batch.access.lds_stride)[reached.waves]
            self._check_written(reached, self._lds_written, offsets, name)
            self._check_races(self._lds_cells, reached, offsets, self._batch.access.lds, "LDS")
        else:
            self._check_bounds(reached, self._batch.access.scratch_bytes, "scratch")

    def _check_alignment(self, reached: _Reached) -> None:
        unit = 1  # amdhsa enables unaligned access to memory
        if reached.touch.space == "lds":
            unit = min(_LDS_ALIGNMENT[reached.nbytes], self._program.arch.lds_alignment)
        elif reached.touch.space == "scalar" or reached.touch.action == "atomic":
            unit = min(reached.nbytes, 4)
        wrong = (reached.addresses & reached.addresses.dtype.type(unit - 1)) != 0
        if wrong.any():
            text = f"{reached.nbytes} bytes at an address that is not a multiple of {unit}"
            self._stop(self._fault("alignment", text, reached, wrong))

    def _check_memory(self, reached: _Reached) -> None:
        memory = self._batch.access.memory
        try:
            spans = memory.spans(reached.addresses, reached.nbytes)
        except MemoryAccessError as error:
            wrong = reached.addresses == np.uint64(error.address)
            self._stop(self._fault("bounds", error.message, reached, wrong))
            return  # the access itself is an error
        for allocation, mine in spans:
            part = reached if mine is None else reached.only(mine)
            offsets = (part.addresses - np.uint64(allocation.base)).view(np.int64)
            if allocation.written is not None:
                self._check_written(part, allocation.written, offsets, allocation.text)
            cells = self._memory_cells.get(allocation.base)
            if cells is None:
                cells = self._memory_cells[allocation.base] = Cells(allocation.data.size)
            self._check_races(cells, part, offsets, allocation.data, allocation.text)

    def _check_bounds(self, reached: _Reached, size: int, name: str) -> bool:
        wrong = (reached.addresses < 0) | (reached.addresses > size - reached.nbytes)
        if wrong.any():
            text = f"{reached.nbytes} bytes outside the {size} bytes of {name}"
            self._stop(self._fault("bounds", text, reached, wrong))
        return not wrong.any()

    def _check_written(self, reached: _Reached, written: Array, offsets: Array, name: str) -> None:
        for at in range(0, reached.nbytes, 16):
            places, nbytes = offsets + at, min(16, reached.nbytes - at)
            known = gather(written, places, nbytes)
            ones = known.dtype.type(_ONES & (1 << 8 * known.itemsize) - 1)
            if reached.touch.action != "store" and not (known == ones).all():
                wrong = known != ones
                text = f"{reached.nbytes} bytes of {name} are read, and were never written"
                self._stop(self._fault("uninitialised", text, reached, wrong.any(0) if wrong.ndim > 1 else wrong))
            if reached.touch.action != "load":
                scatter(written, places, nbytes, np.full_like(known, ones))

    def _check_races(self, cells: Cells, reached: _Reached, offsets: Array, data: Array, name: str) -> None:
        action, time, numbers = reached.touch.action, self._time, self._numbers(reached.group)
        values = reached.values if action == "store" else None
        by, is_lds = numbers[reached.waves], reached.touch.space == "lds"
        accesses = Accesses(data, offsets, reached.nbytes, by, numbers, is_lds, values)
        loads = self._waits.of(reached.group).loads_to_lds if is_lds and not self._to_lds else None
        race = self._races.unwaited(cells, accesses, loads) if loads else None
        is_atomic = action == "atomic" or self._coherent
        if is_atomic and action != "load":
            self._order.release(by, time)
        if is_atomic and action != "store":
            self._order.acquire(by, time)
        if race is not None:
            pass
        elif action == "load":
            race = self._races.load(cells, accesses, time)
        elif is_atomic:
            race = self._races.atomic(cells, accesses, time)
        else:
            race = self._races.store(cells, accesses, time)
        if race is not None:
            text = f"{reached.nbytes} bytes of {name} are {_PAST[action]}, and were {race.text}"
            self._stop(self._fault("wait" if race.unwaited else "race", text, reached, race.wrong))

    def _stop(self, error: SanitizerError) -> None:
        if error.kind not in self._ignored:
            raise error

    def _fault(self, kind: str, text: str, reached: _Reached, wrong: Array) -> SanitizerError:
        first = int(np.flatnonzero(wrong)[0])
        lane = None if reached.touch.space == "scalar" else int(reached.lanes[first])
        error = self._error(kind, text, reached.group, int(reached.waves[first]), lane)
        error.address, error.nbytes = int(reached.addresses[first]), reached.nbytes
        return error

    def _error(self, kind: str, text: str, waves: Wavefronts, wave: int, lane: int | None) -> SanitizerError:
        return SanitizerError(kind, text, self._batch.thread(waves, wave, lane))

    def _describe_wavefront(self, number: int) -> str:
        workgroup, wavefront = self._order.workgroup(number), self._order.wavefront(number)
        return f"wavefront {wavefront} of workgroup {self._batch.place(workgroup)}"

    def _describe_access(self, time: int) -> str:
        pc = self._pcs[time]
        return f"`{disassemble(self._program.instructions[pc])}` at pc {pc:#x}"


_PAST = {"load": "loaded", "store": "stored", "atomic": "changed by an atomic"}


@lru_cache(maxsize=64)
def _everyone(shape: tuple[int, ...]) -> tuple[Array, ...]:
    return np.nonzero(np.ones(shape, bool))


class _Reached:
    """The accesses of an instruction's active lanes, flattened.

    Attributes:
        addresses: [n], address of each access.
        waves, lanes: int64 [n], its wavefront in the group and its lane in the wavefront.
    """

    def __init__(self, group: Wavefronts, touch: Touch):
        self.group, self.touch, self.nbytes = group, touch, touch.nbytes
        shape = touch.addresses.shape
        found = _everyone(shape) if touch.lanes is None else np.nonzero(touch.lanes)
        self.addresses = touch.addresses.ravel() if touch.lanes is None else touch.addresses[touch.lanes]
        self.waves: Array = found[0]
        self.lanes: Array = found[-1]
        self._mine: Array | slice = slice(None)

    @property
    def values(self) -> Array:
        assert self.touch.values is not None
        values, lanes = self.touch.values, self.touch.lanes
        chosen = values.reshape(*values.shape[:-2], -1) if lanes is None else values[..., lanes]
        return np.ascontiguousarray(chosen[..., self._mine])

    def only(self, mine: Array) -> _Reached:
        part: Any = object.__new__(_Reached)
        part.group, part.touch, part.nbytes = self.group, self.touch, self.nbytes
        part.addresses, part.waves, part.lanes = self.addresses[mine], self.waves[mine], self.lanes[mine]
        part._mine = mine
        return part
