"""What an instruction occupies, and for how many cycles: by its name, and an error where that is not known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.disassembly import operands_of
from aot_emulator.isa.operands import VGPR
from aot_emulator.isa.wait_counters import counted_by, waited_for
from aot_emulator.profile.counters import kind_of
from aot_runtime.errors import UnsupportedInstructionError

from .constants import Machine

ISSUE = 4
"""Cycles of a SIMD's turn: in each it issues at most one instruction of a unit."""
REGISTERS = 512
"""Vector registers of a wavefront, accumulation registers from the 256th on."""


class Unit(IntEnum):
    """What executes an instruction."""

    SCALAR = 0
    VECTOR = 1
    MATRIX = 2
    LDS = 3
    LOAD = 4
    STORE = 5
    WAIT = 6
    BARRIER = 7


@dataclass(frozen=True)
class Cost:
    """Of an instruction.

    Attributes:
        cycles: that its SIMD's unit is taken, or until the wavefront's next instruction.
        vm, lgkm: how many operations of a counter it waits to be left; -1: for none.
        counts_vm, counts_lgkm: it adds to the counter.
        near: its access stays in the compute unit: scratch.
        priority: that the wavefront has from then on; -1: as before.
        reads, writes: vector registers.
    """

    unit: Unit
    cycles: float
    vm: int
    lgkm: int
    counts_vm: bool
    counts_lgkm: bool
    near: bool
    priority: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]


_UNITS: Mapping[str, Unit] = {
    "salu": Unit.SCALAR, "branch": Unit.SCALAR, "scalar_memory": Unit.SCALAR, "valu": Unit.VECTOR,
    "matrix": Unit.MATRIX, "lds_load": Unit.LDS, "lds_store": Unit.LDS, "lds_exchange": Unit.LDS,
    "lds_atomic": Unit.LDS, "global_load": Unit.LOAD, "scratch_load": Unit.LOAD, "global_atomic": Unit.LOAD,
    "global_store": Unit.STORE, "scratch_store": Unit.STORE, "wait": Unit.WAIT, "barrier": Unit.BARRIER,
}  # fmt: skip
_FREE = re.compile(
    r"s_(nop|sleep|setprio|endpgm|sendmsg|setreg_b32|setreg_imm32_b32|getreg_b32|icache_inv|sethalt"
    r"|ttracedata|incperflevel|decperflevel)$|buffer_(inv|wbl2|wbinvl1|wbinvl1_vol|invl2)$|ds_nop$"
)
"""Instructions of no class that take a turn of the wavefront, and at most wait."""
_VECTOR = re.compile(
    r"v_(pk_)?(add|add3|addc|sub|subrev|subb|subbrev|mul|mad|mac|madak|madmk|fma|fmac|fmaak|fmamk|max|max3|min|min3|med3|sad"
    r"|and|or|or3|xor|xad|xnor|not|lshl|lshlrev|lshr|lshrrev|ashr|ashrrev|bfe|bfi|bfm|bfrev|bcnt|mbcnt|ffbh|ffbl|perm"
    r"|alignbit|alignbyte|cndmask|cmp|cmpx|mov|movreld|movrels|swap|readlane|readfirstlane|writelane|accvgpr|dot\w*|pack"
    r"|frexp|ldexp|fract|floor|ceil|trunc|rndne|div|permlane\w*|prng|bitop3|minimum3|maximum3|sat)(_|$)"
)
_TRANSCENDENTAL = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)(_|$)")
_CONVERSION = re.compile(r"v_(cvt|scalef32)_")
_PASSES: Mapping[str, tuple[tuple[str, int], ...]] = {
    "gfx90a": (
        (r"v_mfma_.32_4x4x", 2), (r"v_mfma_.32_16x16x", 8), (r"v_mfma_.32_32x32x", 16),
        (r"v_mfma_f64_4x4x", 4), (r"v_mfma_f64_16x16x", 8),
    ),
    "gfx942": (
        (r"v_mfma_.32_4x4x", 2), (r"v_mfma_.32_16x16x(8_?x|16|32)", 4), (r"v_mfma_.32_16x16x[14]_", 8),
        (r"v_mfma_.32_32x32x(4_?x|8|16)", 8), (r"v_mfma_.32_32x32x[124]_", 16), (r"v_mfma_f64_4x4x", 4),
        (r"v_mfma_f64_16x16x", 8), (r"v_smfmac_.32_16x16x", 4), (r"v_smfmac_.32_32x32x", 8),
    ),
    "gfx950": (
        (r"v_mfma_.32_4x4x", 2), (r"v_mfma_(scale_)?f32_16x16x128_f8f6f4", 8), (r"v_mfma_.32_16x16x(8|16|32|64)", 4),
        (r"v_mfma_.32_16x16x[14]_", 8), (r"v_mfma_(scale_)?f32_32x32x64_f8f6f4", 16),
        (r"v_mfma_.32_32x32x(8|16|32)", 8), (r"v_mfma_.32_32x32x[124]_", 16), (r"v_mfma_f64_4x4x", 4),
        (r"v_mfma_f64_16x16x", 16), (r"v_smfmac_.32_16x16x", 4), (r"v_smfmac_.32_32x32x", 8),
    ),
}  # fmt: skip
"""Passes, of four cycles each, of matrix instructions (LLVM's SISchedule.td: SIDPFullSpeedModel, and
SIDPGFX940FullSpeedModel; of gfx950's own the white paper's rates)."""


def cost_of(instruction: Instruction, machine: Machine) -> Cost:
    """The cost of an instruction. Raises `UnsupportedInstructionError` where none is known."""
    kind, name = kind_of(instruction), instruction.mnemonic
    unit = Unit.SCALAR if _FREE.match(name) else _UNITS.get(kind)
    if unit is None:
        raise _unknown(instruction)
    waits = waited_for(instruction)
    counted = {item.counter for item in counted_by(instruction)}
    registers: list[list[int]] = [[], []]
    for operand in operands_of(instruction):
        if operand.is_vector:
            base = operand.number - VGPR + (REGISTERS // 2 if operand.accumulation else 0)
            registers[operand.result] += range(base, base + operand.words)
    return Cost(
        unit, _cycles(instruction, unit, machine), waits.get("vmcnt", -1), waits.get("lgkmcnt", -1),
        "vmcnt" in counted, "lgkmcnt" in counted, kind.startswith("scratch"),
        instruction.field("simm16") & 3 if name == "s_setprio" else -1, tuple(registers[0]), tuple(registers[1]),
    )  # fmt: skip


def _cycles(instruction: Instruction, unit: Unit, machine: Machine) -> float:
    name = instruction.mnemonic
    if unit is Unit.MATRIX:
        return ISSUE * _passes(instruction)
    if unit is Unit.VECTOR:
        if _TRANSCENDENTAL.match(name):
            return machine.transcendental
        if _CONVERSION.match(name):
            return machine.conversion
        if not _VECTOR.match(name) and name != "v_nop":
            raise _unknown(instruction)
    if name == "s_nop":
        return ISSUE * (instruction.field("simm16") + 1)
    if name == "s_sleep":
        return 64 * (instruction.field("simm16") & 0x7F)
    return machine.branch if name.startswith(("s_branch", "s_cbranch")) else ISSUE


def _passes(instruction: Instruction) -> int:
    for pattern, passes in _PASSES.get(instruction.arch.name, ()):
        if re.match(pattern, instruction.mnemonic):
            return passes
    raise _unknown(instruction)


def _unknown(instruction: Instruction) -> UnsupportedInstructionError:
    return UnsupportedInstructionError(
        f"the model of time has no cost for it on {instruction.arch.name}", None, instruction.pc, instruction.mnemonic
    )
