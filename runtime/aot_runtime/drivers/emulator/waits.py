"""Which registers wait for memory: the counters of s_waitcnt and of gfx12's s_wait_… (chapter "Data dependency
resolution" of the ISA documents).

The state is symbolic, of a group of wavefronts that stand at one pc: what each counter counts, oldest first. Where
groups meet, the counters of both are joined as a compiler does that has to be right for either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from .decode import Instruction
from .operands import VGPR

Register = tuple[str, int]
"""`v`, `a` or `s`, and the number."""
LDS: Register = ("LDS", 0)
"""Stands for what an access of LDS has yet to read or write: other wavefronts may count on it after a barrier."""


@dataclass(frozen=True)
class Operation:
    """Something that a counter counts.

    Attributes:
        busy: registers that it has yet to write, and `LDS`.
        ordered: operations of its kind end in the order in which they were started.
    """

    busy: frozenset[Register]
    ordered: bool
    text: str


@dataclass(frozen=True)
class Use:
    """What an instruction has to do with the counters.

    Attributes:
        touched: every register that it reads or writes.
        started: what it starts, by counter.
        waits: the most operations that may remain, by counter.
        target: registers that it writes when memory answers.
    """

    touched: frozenset[Register]
    started: Mapping[str, Operation] = field(default_factory=dict)
    waits: Mapping[str, int] = field(default_factory=dict)
    target: frozenset[Register] = frozenset()


@dataclass(frozen=True)
class Outstanding:
    """What each counter counts, oldest first."""

    counters: Mapping[str, tuple[Operation, ...]] = field(default_factory=dict)
    busy: frozenset[Register] = frozenset()

    def conflict(self, use: Use) -> tuple[Register, str, Operation] | None:
        """A register that the instruction touches too early, its counter, and what has yet to write it."""
        if self.busy.isdisjoint(use.touched):
            return None
        for name, operations in self.counters.items():
            for operation in operations:
                # A later load of the same kind may aim at the same register: it ends later.
                again = operation.ordered and name in use.started and use.started[name].ordered
                early = operation.busy & (use.touched - use.target if again else use.touched)
                if early:
                    return min(early), name, operation
        return None

    def after(self, use: Use) -> Outstanding:
        """The state once the instruction is issued."""
        if not use.started and not use.waits:
            return self
        counters = dict(self.counters)
        for name, most in use.waits.items():
            operations = counters.get(name, ())
            if most == 0:
                counters[name] = ()
            elif all(operation.ordered for operation in operations):
                counters[name] = operations[-most:]
        for name, operation in use.started.items():
            counters[name] = (*counters.get(name, ()), operation)
        return _outstanding(counters)

    def joined(self, other: Outstanding) -> Outstanding:
        """What may be outstanding where two groups of wavefronts meet."""
        if self == other:
            return self
        counters = {}
        for name in {**self.counters, **other.counters}:
            pairs = zip_longest(reversed(self.counters.get(name, ())), reversed(other.counters.get(name, ())))
            counters[name] = tuple(reversed([_either(one, two) for one, two in pairs]))
        return _outstanding(counters)


def _outstanding(counters: Mapping[str, tuple[Operation, ...]]) -> Outstanding:
    return Outstanding(counters, frozenset().union(*(op.busy for ops in counters.values() for op in ops)))


def _either(one: Operation | None, two: Operation | None) -> Operation:
    if one is None or two is None or one == two:
        found = one or two
        assert found is not None
        return found
    return Operation(one.busy | two.busy, one.ordered and two.ordered, f"{one.text} or {two.text}")


def use_of(instruction: Instruction) -> Use:
    """What an instruction does with registers and counters."""
    waits = dict(_waits(instruction))
    if waits or instruction.mnemonic.startswith("s_wait"):
        return Use(frozenset(), waits=waits)
    touched = frozenset(register for name, _ in instruction.words for register in registers(instruction, name))
    counters = tuple(_counters(instruction))
    if not counters:
        at_barrier = instruction.mnemonic in ("s_barrier", "s_barrier_signal")
        return Use(frozenset({LDS}) if at_barrier else touched)
    target = frozenset(registers(instruction, _target(instruction))) if _answers(instruction) else frozenset()
    in_lds = instruction.mnemonic.startswith("ds_") and not instruction.mnemonic.startswith(_LANE_MOVES)
    busy = target | {LDS} if in_lds else target
    operation = Operation(
        busy, instruction.base_encoding != "SMEM", f"{instruction.mnemonic} at pc {instruction.pc:#x}"
    )
    return Use(touched, dict.fromkeys(counters, operation), target=target)


def registers(instruction: Instruction, name: str) -> Iterator[Register]:
    """The registers of an operand; none for a constant."""
    words, number = dict(instruction.words).get(name, 1), instruction.fields.get(name, -1)
    fields, vector = instruction.fields, instruction.base_encoding.startswith(("V", "M", "G", "D", "F"))
    if name == "src0" and number in (249, 250, 233, 234):  # SDWA, DPP: the register is in a field of its own
        number = fields["vsrc0"]
    if name in ("simm16", "literal"):
        return
    if name == "vdst" and instruction.mnemonic.startswith(("v_readlane", "v_readfirstlane")):
        number &= 0xFF  # a scalar register
    if name in ("addr", "vaddr") and number >= VGPR:
        words = _address_words(instruction)
    if number >= VGPR:
        kind = "a" if _accumulates(instruction, name) else "v"
        yield from ((kind, number - VGPR + i) for i in range(words))
    elif 0 <= number < 106 and (vector or name.startswith("s")):
        yield from (("s", number + i) for i in range(words))


def _accumulates(instruction: Instruction, name: str) -> bool:
    """Whether an operand is in accumulation registers."""
    fields = instruction.fields
    if instruction.mnemonic.startswith("v_accvgpr"):
        return "mov" in instruction.mnemonic or name == ("src0" if "read" in instruction.mnemonic else "vdst")
    if "mfma" in instruction.mnemonic:
        if name in ("vdst", "src2"):
            return bool(fields.get("acc_cd", fields.get("clmp", 0)))
        return bool(fields.get("acc", fields.get("opsel_hi", 0)) >> int(name[-1]) & 1)
    return bool(fields.get("acc", 0)) and name in ("vdst", "vdata", "data", "data0", "data1")


def _address_words(instruction: Instruction) -> int:
    fields = instruction.fields
    if "idxen" in fields:
        return fields["idxen"] + fields["offen"]
    if instruction.mnemonic.startswith("global_"):
        return 2 if fields["saddr"] >= 124 else 1
    if instruction.mnemonic.startswith("scratch_"):
        return fields.get("sve", 0)
    return 2 if instruction.mnemonic.startswith("flat_") else 1


_LANE_MOVES = ("ds_bpermute", "ds_permute", "ds_swizzle")
_MEMORY = ("global_", "buffer_", "scratch_", "flat_", "tbuffer_")


def _counters(instruction: Instruction) -> Iterator[str]:
    name, isa = instruction.mnemonic, instruction.arch.isa
    if instruction.base_encoding == "SMEM" and "load" in name:
        yield "km" if isa == "rdna4" else "lgkm"
    if name.startswith(("ds_", "flat_")):
        yield "ds" if isa == "rdna4" else "lgkm"
    if name.startswith(_MEMORY) and any(word in name for word in ("load", "store", "atomic")):
        if isa == "cdna" or _answers(instruction):
            yield "load" if isa == "rdna4" else "vm"
        else:
            yield "store" if isa == "rdna4" else "vs"


def _answers(instruction: Instruction) -> bool:
    """Whether memory writes a register."""
    name = instruction.mnemonic
    if "atomic" in name:
        fields = instruction.fields
        return bool(fields.get("sc0", fields.get("glc", 0)) or fields.get("th", 0) & 1)
    if name.startswith("ds_"):
        return not ("write" in name or "store" in name) and "vdst" in dict(instruction.words)
    return "load" in name and not instruction.field("lds")


def _target(instruction: Instruction) -> str:
    return next(name for name in ("sdata", "vdst", "vdata") if name in instruction.fields)


def _waits(instruction: Instruction) -> Iterator[tuple[str, int]]:
    """(counter, most operations that may remain) of an instruction that waits."""
    name, value = instruction.mnemonic, instruction.fields.get("simm16", 0)
    if name == "s_waitcnt" and instruction.arch.isa == "cdna":
        yield from (("vm", value & 15 | value >> 10 & 0x30), ("lgkm", value >> 8 & 15))
    elif name == "s_waitcnt":
        yield from (("vm", value >> 10 & 63), ("lgkm", value >> 4 & 63))
    elif name == "s_waitcnt_vscnt":
        yield "vs", value
    elif name.startswith("s_wait_"):
        parts = name.removeprefix("s_wait_").split("_")
        for part, shift in zip(parts, (8, 0) if len(parts) == 2 else (0,), strict=True):
            yield part.removesuffix("cnt"), value >> shift & 63
