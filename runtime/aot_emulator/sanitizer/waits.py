"""Detection of registers that are used before their load has been waited for.

The outstanding operations of each group of wavefronts are tracked by counter: operations that return in order as a
queue, others as a set. A wait for n leaves the newest n operations of a queue, and empties a set only if n is 0. An
instruction may not access a register that an outstanding operation will write. The exception is an operation of the
same queue that writes it again, as it does so later.

Source registers of a store may be overwritten immediately: these architectures read them at issue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest
from operator import or_
from weakref import WeakKeyDictionary

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.disassembly import Operand, disassemble, operands_of, register_name
from aot_emulator.isa.operands import VGPR, Registers
from aot_emulator.isa.wait_counters import COUNTERS, Counted, counted_by, is_direct_to_lds, waited_for
from aot_emulator.machine.program import Program
from aot_emulator.state.wavefronts import Wavefronts

_FIRST_VECTOR = 128
"""Bit of the first VGPR in a register set (an int bit mask). VGPRs have two bits each, as RDNA loads halves
separately; scalar registers use the bits below."""
_LANE_MOVES = ("ds_bpermute", "ds_permute", "ds_swizzle", "ds_nop")


def register_set(operand: Operand, layout: Registers) -> int:
    """Return the registers of an operand as a bit mask."""
    if not operand.is_register:
        return 0
    if not operand.is_vector:
        return (1 << operand.words) - 1 << operand.number
    row = operand.number - VGPR + (layout.accumulation if operand.accumulation else 0)
    first = _FIRST_VECTOR + 2 * row
    return (1 << 2 * operand.words) - 1 << first if operand.half is None else 1 << first + operand.half


def names_of(registers: int, layout: Registers) -> str:
    """Return the names of the registers in a set."""
    bits = [bit for bit in range(registers.bit_length()) if registers >> bit & 1]
    return ", ".join(dict.fromkeys(_name(bit, layout) for bit in bits))


def _name(bit: int, layout: Registers) -> str:
    if bit < _FIRST_VECTOR:
        return register_name(bit)
    row = (bit - _FIRST_VECTOR) // 2
    accumulation = row >= layout.accumulation
    return register_name(VGPR + row - (layout.accumulation if accumulation else 0), accumulation=accumulation)


@dataclass(frozen=True)
class Effect:
    """Effect of an instruction on the wait counters.

    Attributes:
        sources, results: register sets. Instructions that complete at issue have all their registers in `sources`.
        counted: counters that it increments.
        waits: maximum outstanding operations that it waits for, by counter.
        uses_lds: it accesses LDS, other than by `to_lds`.
        to_lds: it loads from memory to LDS.
    """

    sources: int
    results: int
    counted: tuple[Counted, ...]
    waits: Mapping[str, int]
    uses_lds: bool
    to_lds: bool

    @classmethod
    def of(cls, instruction: Instruction, layout: Registers) -> Effect:
        counted, name = counted_by(instruction), instruction.mnemonic
        sources = results = 0
        for operand in operands_of(instruction):
            registers = register_set(operand, layout)
            if counted and operand.result:
                results |= registers
            if not counted or not operand.result or (operand.name == "vdata" and "atomic" in name):
                sources |= registers
        is_lds = name.startswith("ds_") and not name.startswith(_LANE_MOVES)
        uses_lds = is_lds or name.startswith("flat_")
        return cls(sources, results, counted, waited_for(instruction), uses_lds, is_direct_to_lds(instruction))


@dataclass(frozen=True)
class Operation:
    """An outstanding operation; after wavefronts reconverge, the union of their outstanding operations.

    Attributes:
        registers: registers that it will write.
        pcs: pcs of its instructions.
        lds_time: time of its LDS access; None: it has none, or is a load to LDS.
        loads_to_lds: times of loads to LDS.
    """

    registers: int
    pcs: frozenset[int]
    lds_time: int | None
    loads_to_lds: frozenset[int] = frozenset()

    def merge(self, other: Operation) -> Operation:
        # The later time: an operation of one wavefront must not be reported for the other.
        times = [time for time in (self.lds_time, other.lds_time) if time is not None]
        loads = self.loads_to_lds | other.loads_to_lds
        return Operation(self.registers | other.registers, self.pcs | other.pcs, max(times, default=None), loads)


Queues = Mapping[Counted, tuple[Operation, ...]]


@dataclass(frozen=True)
class Outstanding:
    """The outstanding operations of a group of wavefronts, oldest first.

    Attributes:
        registers: registers that any of them will write.
    """

    queues: Queues = field(default_factory=dict)
    registers: int = 0

    @classmethod
    def of(cls, queues: Queues) -> Outstanding:
        kept = {counted: queue for counted, queue in queues.items() if queue}
        return cls(kept, reduce(or_, (operation.registers for queue in kept.values() for operation in queue), 0))

    def after_wait(self, waits: Mapping[str, int]) -> Outstanding:
        return Outstanding.of({counted: _waited(counted, queue, waits) for counted, queue in self.queues.items()})

    def after(self, counted: tuple[Counted, ...], operation: Operation, limits: Mapping[str, int]) -> Outstanding:
        queues = dict(self.queues)
        for each in counted:
            queue = queues.get(each, ())
            if each.in_order:  # the wavefront stalls when a counter is full
                queues[each] = (*queue, operation)[-limits[each.counter] :]
            else:
                others = (old for old in queue if (old.registers, old.pcs) != (operation.registers, operation.pcs))
                queues[each] = (*others, operation)
        return Outstanding.of(queues)

    def merge(self, other: Outstanding) -> Outstanding:
        if self == other:
            return self
        queues = {}
        for counted in self.queues.keys() | other.queues.keys():
            mine, theirs = self.queues.get(counted, ()), other.queues.get(counted, ())
            if counted.in_order:
                pairs = list(zip_longest(reversed(mine), reversed(theirs)))
                queues[counted] = tuple(_merged(*pair) for pair in reversed(pairs))
            else:
                queues[counted] = tuple(dict.fromkeys((*mine, *theirs)))
        return Outstanding.of(queues)

    def within(self, counted: Counted) -> int:
        """Return the registers that the operations of one queue will write."""
        return reduce(or_, (operation.registers for operation in self.queues.get(counted, ())), 0)

    def causes(self, registers: int) -> list[int]:
        """Return the pcs of the operations that will write any of these registers."""
        operations = [operation for queue in self.queues.values() for operation in queue]
        return sorted({pc for operation in operations if operation.registers & registers for pc in operation.pcs})

    @property
    def lds_since(self) -> int | None:
        """Time of the oldest outstanding LDS access, excluding loads to LDS; None if there is none."""
        times = [operation.lds_time for queue in self.queues.values() for operation in queue]
        return min((time for time in times if time is not None), default=None)

    @property
    def loads_to_lds(self) -> frozenset[int]:
        """Times of the outstanding loads to LDS."""
        queues = self.queues.values()
        return frozenset().union(*(operation.loads_to_lds for queue in queues for operation in queue))


def _waited(counted: Counted, queue: tuple[Operation, ...], waits: Mapping[str, int]) -> tuple[Operation, ...]:
    left = waits.get(counted.counter)
    if left == 0:
        return ()
    return queue if left is None or not counted.in_order else queue[-left:]


def _merged(one: Operation | None, other: Operation | None) -> Operation:
    if one is None or other is None:
        found = one or other
        assert found is not None
        return found
    return one.merge(other)


_NOTHING = Outstanding()


class Waits:
    """The outstanding operations of every group of a launch."""

    def __init__(self, program: Program):
        self._program = program
        self._limits = COUNTERS[program.arch.isa].limits
        self._effects: dict[int, Effect] = {}
        self._groups: WeakKeyDictionary[Wavefronts, Outstanding] = WeakKeyDictionary()

    def of(self, waves: Wavefronts) -> Outstanding:
        return self._groups.get(waves, _NOTHING)

    def effect(self, instruction: Instruction) -> Effect:
        found = self._effects.get(instruction.pc)
        if found is None:
            found = self._effects[instruction.pc] = Effect.of(instruction, self._program.layout)
        return found

    def execute(self, waves: Wavefronts, instruction: Instruction, effect: Effect, time: int) -> str:
        """Update a group for an instruction. Returns the description of a fault, or an empty string."""
        before = self._groups.get(waves, _NOTHING)
        wrong = ""
        if before.registers & (effect.sources | effect.results):
            wrong = self._wrong(before, effect)
        if effect.waits:
            self._groups[waves] = before.after_wait(effect.waits)
        elif effect.counted:
            loads = frozenset((time,)) if effect.to_lds else frozenset()
            lds_time = time if effect.uses_lds else None
            operation = Operation(effect.results, frozenset((instruction.pc,)), lds_time, loads)
            self._groups[waves] = before.after(effect.counted, operation, self._limits)
        return wrong

    def derive(self, part: Wavefronts, sources: tuple[Wavefronts, ...]) -> None:
        self._groups[part] = reduce(Outstanding.merge, (self.of(source) for source in sources))

    def _wrong(self, before: Outstanding, effect: Effect) -> str:
        wrong = before.registers & effect.sources
        if before.registers & effect.results:
            in_order = before.within(effect.counted[0]) if effect.counted[0].in_order else 0
            others = Outstanding.of({key: queue for key, queue in before.queues.items() if key != effect.counted[0]})
            wrong |= effect.results & (others.registers | before.registers & ~in_order)
        if not wrong:
            return ""
        layout, instructions = self._program.layout, self._program.instructions
        causes = " or ".join(f"`{disassemble(instructions[pc])}` at pc {pc:#x}" for pc in before.causes(wrong))
        names = names_of(wrong, layout)
        return f"{names} {'are' if ',' in names else 'is'} used before {causes} was waited for"


__all__ = ["Effect", "Outstanding", "Waits"]
