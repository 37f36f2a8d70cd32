"""Counters of outstanding memory operations, and their use by instructions.

They follow the ISA documents ("Manually Inserted Wait States" for CDNA and RDNA3, "Data Dependency Resolution" for
RDNA4):

| | loads, atomics with return | stores, other atomics | LDS | scalar loads, messages |
|---|---|---|---|---|
| CDNA | vmcnt | vmcnt | lgkmcnt | lgkmcnt |
| RDNA3 | vmcnt | vscnt | lgkmcnt | lgkmcnt |
| RDNA4 | loadcnt | storecnt | dscnt | kmcnt |

Vector loads return in issue order, as do stores and LDS operations; scalar loads return out of order. Flat instructions
increment the counters of memory and LDS, and return out of order. A scalar load of two or more dwords counts twice.
As scalar loads return out of order, only a wait for 0 is meaningful, so the count itself does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .decoding import Instruction

Isa = Literal["cdna", "rdna3", "rdna4"]


@dataclass(frozen=True)
class Counters:
    """Counter names of an ISA, by kind of operation, and the maximum value of each counter."""

    loads: str
    stores: str
    lds: str
    scalars: str
    limits: Mapping[str, int]


COUNTERS: Mapping[Isa, Counters] = {
    "cdna": Counters("vmcnt", "vmcnt", "lgkmcnt", "lgkmcnt", {"vmcnt": 63, "expcnt": 7, "lgkmcnt": 15}),
    "rdna3": Counters("vmcnt", "vscnt", "lgkmcnt", "lgkmcnt", {"vmcnt": 63, "vscnt": 63, "expcnt": 7, "lgkmcnt": 63}),
    "rdna4": Counters(
        "loadcnt",
        "storecnt",
        "dscnt",
        "kmcnt",
        {"loadcnt": 63, "storecnt": 63, "dscnt": 63, "kmcnt": 31, "samplecnt": 63, "bvhcnt": 7, "expcnt": 7},
    ),
}

# (lowest bit, bits) of each part of a counter's field, from low to high.
_FIELDS: Mapping[Isa, Mapping[str, tuple[tuple[int, int], ...]]] = {
    "cdna": {"vmcnt": ((0, 4), (14, 2)), "expcnt": ((4, 3),), "lgkmcnt": ((8, 4),)},
    "rdna3": {"vmcnt": ((10, 6),), "expcnt": ((0, 3),), "lgkmcnt": ((4, 6),)},
    "rdna4": {},
}
_VECTOR_MEMORY = ("global", "scratch", "buffer", "tbuffer", "image")
_WAIT_FOR_BOTH = {"s_wait_loadcnt_dscnt": "loadcnt", "s_wait_storecnt_dscnt": "storecnt"}
_UNCOUNTED = frozenset(
    {
        "ds_nop",
        "buffer_inv",
        "buffer_invl2",
        "buffer_wbinvl1",
        "buffer_wbinvl1_vol",
        "buffer_gl0_inv",
        "buffer_gl1_inv",
    }
)


def waited_for(instruction: Instruction) -> dict[str, int]:
    """Return the operations that a wait leaves outstanding, by counter; empty for other instructions."""
    name, isa = instruction.mnemonic, instruction.arch.isa
    if not name.startswith("s_wait"):
        return {}
    value, limits = instruction.field("simm16"), COUNTERS[isa].limits
    if name == "s_waitcnt":
        found = {counter: _parts(value, parts) for counter, parts in _FIELDS[isa].items()}
    elif name in _WAIT_FOR_BOTH:
        found = {_WAIT_FOR_BOTH[name]: value >> 8 & 63, "dscnt": value & 63}
    elif name == "s_wait_idle":
        found = dict.fromkeys(limits, 0)
    else:
        found = {name.removeprefix("s_waitcnt_").removeprefix("s_wait_"): value}
    return {counter: left for counter, left in found.items() if left < limits.get(counter, 0)}


def _parts(value: int, parts: tuple[tuple[int, int], ...]) -> int:
    result, at = 0, 0
    for low, bits in parts:
        result |= (value >> low & (1 << bits) - 1) << at
        at += bits
    return result


@dataclass(frozen=True)
class Counted:
    """A counter incremented by an operation. in_order: operations return in issue order."""

    counter: str
    in_order: bool


def counted_by(instruction: Instruction) -> tuple[Counted, ...]:
    """Return the counters that an instruction increments."""
    name, counters = instruction.mnemonic, COUNTERS[instruction.arch.isa]
    segment = name.partition("_")[0]
    if name in _UNCOUNTED:
        return ()
    if segment == "ds":
        return (Counted(counters.lds, True),)
    if name.startswith(("s_load", "s_buffer_load", "s_memtime", "s_memrealtime", "s_sendmsg_rtn")):
        return (Counted(counters.scalars, False),)
    is_load = "_load" in name or name == "global_inv" or returns_value(instruction)
    memory = counters.loads if is_load else counters.stores
    if segment == "flat":
        return (Counted(memory, False), Counted(counters.lds, False))
    return (Counted(memory, True),) if segment in _VECTOR_MEMORY else ()


def returns_value(instruction: Instruction) -> bool:
    """Return True if an atomic returns the old value."""
    if "atomic" not in instruction.mnemonic:
        return "_rtn" in instruction.mnemonic
    return bool(instruction.field("sc0") or instruction.field("glc") or instruction.field("th") & 1)


def is_direct_to_lds(instruction: Instruction) -> bool:
    """Return True for a load from memory to LDS."""
    return bool(instruction.field("lds")) or "_load_lds_" in instruction.mnemonic


def is_coherent(instruction: Instruction) -> bool:
    """Return True if a load or store bypasses the compute unit's caches, like atomic and volatile accesses."""
    if instruction.arch.isa == "rdna4":
        return instruction.field("scope") >= 2
    return bool(instruction.field("sc1") or instruction.field("glc"))
