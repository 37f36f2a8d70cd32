"""Classes of instructions: the unit that executes them, and the passes of matrix instructions.

The profile, the model of time and strict mode all use them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from .archs import Generation
from .decoding import Instruction

Kind = Literal[
    "salu",
    "valu",
    "matrix",
    "lds_load",
    "lds_store",
    "lds_atomic",
    "lds_exchange",
    "global_load",
    "global_store",
    "global_atomic",
    "scratch_load",
    "scratch_store",
    "scalar_memory",
    "branch",
    "wait",
    "barrier",
    "other",
]
"""Classes of instructions. `global` is by way of global, flat and buffer instructions alike; `lds_exchange` moves
values between lanes through LDS hardware and touches no LDS."""

_KINDS: tuple[tuple[str, Kind], ...] = (
    (r"v_(mfma|smfmac|wmma|swmmac)_", "matrix"),
    (r"v_", "valu"),
    (r"s_wait", "wait"),
    (r"s_barrier", "barrier"),
    (r"s_(branch|cbranch|setpc|swappc|call)", "branch"),
    (r"s_(buffer_)?(load|store|scratch_load|atomic|dcache|gl1|prefetch)_", "scalar_memory"),
    (r"ds_nop", "other"),
    (r"ds_(read|load)", "lds_load"),
    (r"ds_(write|store)", "lds_store"),
    (r"ds_(bpermute|permute|swizzle)", "lds_exchange"),
    (r"ds_", "lds_atomic"),
    (r"(global|flat|buffer|tbuffer)_load", "global_load"),
    (r"(global|flat|buffer|tbuffer)_store", "global_store"),
    (r"(global|flat|buffer)_atomic", "global_atomic"),
    (r"scratch_load", "scratch_load"),
    (r"scratch_store", "scratch_store"),
)
"""Patterns of mnemonics, of which the first that matches says the class."""
_TIMING = r"nop|sleep|setprio|icache_inv|incperflevel|decperflevel|ttracedata"
_WITHOUT_EFFECT = re.compile(
    rf"s_({_TIMING}|waitcnt(_\w+)?|wait_\w+|delay_alu|clause|set_inst_prefetch_distance|wakeup|set_valu_coexec_mode)$"
)
_ISSUE_ONLY = re.compile(
    rf"s_({_TIMING}|endpgm|sendmsg|setreg_b32|setreg_imm32_b32|getreg_b32|sethalt)$"
    r"|buffer_(inv|wbl2|wbinvl1|wbinvl1_vol|invl2)$|ds_nop$"
)
_CONVERSION = re.compile(r"v_(cvt|scalef32)_")
_TRANSCENDENTAL = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)(_|$)")


def kind_of(instruction: Instruction) -> Kind:
    """The class of an instruction."""
    for pattern, kind in _KINDS:
        if re.match(pattern, instruction.mnemonic):
            return kind
    scalar = instruction.mnemonic.startswith("s_") and instruction.base_encoding != "SOPP"
    return "salu" if scalar else "other"


def is_transcendental(instruction: Instruction) -> bool:
    """Tell whether a vector instruction runs on the transcendental unit."""
    return _TRANSCENDENTAL.match(instruction.mnemonic) is not None


def is_conversion(instruction: Instruction) -> bool:
    """Tell whether a vector instruction converts between formats of numbers."""
    return _CONVERSION.match(instruction.mnemonic) is not None


def has_no_effect(instruction: Instruction) -> bool:
    """Return True if an instruction only affects timing or priority, or waits for work that is immediate here."""
    return _WITHOUT_EFFECT.match(instruction.mnemonic) is not None


def takes_only_issue(instruction: Instruction) -> bool:
    """Return True if an instruction occupies no unit: it only takes an issue slot of its wavefront, and may wait."""
    return _ISSUE_ONLY.match(instruction.mnemonic) is not None


_PASSES: Mapping[Generation, tuple[tuple[str, int], ...]] = {
    "cdna2": (
        (r"v_mfma_.32_4x4x", 2), (r"v_mfma_.32_16x16x", 8), (r"v_mfma_.32_32x32x", 16),
        (r"v_mfma_f64_4x4x", 4), (r"v_mfma_f64_16x16x", 8),
    ),
    "cdna3": (
        (r"v_mfma_.32_4x4x", 2), (r"v_mfma_.32_16x16x(8_?x|16|32)", 4), (r"v_mfma_.32_16x16x[14]_", 8),
        (r"v_mfma_.32_32x32x(4_?x|8|16)", 8), (r"v_mfma_.32_32x32x[124]_", 16), (r"v_mfma_f64_4x4x", 4),
        (r"v_mfma_f64_16x16x", 8), (r"v_smfmac_.32_16x16x", 4), (r"v_smfmac_.32_32x32x", 8),
    ),
    "cdna4": (
        (r"v_mfma_.32_4x4x", 2), (r"v_mfma_(scale_)?f32_16x16x128_f8f6f4", 8), (r"v_mfma_.32_16x16x(8|16|32|64)", 4),
        (r"v_mfma_.32_16x16x[14]_", 8), (r"v_mfma_(scale_)?f32_32x32x64_f8f6f4", 16),
        (r"v_mfma_.32_32x32x(8|16|32)", 8), (r"v_mfma_.32_32x32x[124]_", 16), (r"v_mfma_f64_4x4x", 4),
        (r"v_mfma_f64_16x16x", 16), (r"v_smfmac_.32_16x16x", 4), (r"v_smfmac_.32_32x32x", 8),
    ),
}  # fmt: skip
"""Passes, of four cycles each, of CDNA's matrix instructions, from LLVM's SISchedule.td.

By its model for gfx950 (`SIDPGFX950FullSpeedModel`), v_mfma_f64_16x16x4 takes 16 passes, so it has half the rate of
CDNA 3. Instructions of f8f6f4 take the passes listed here if an operand has 8 bits, and half of them if both have 6 or
4. The rates in AMD's CDNA 4 white paper agree.
"""


def matrix_passes(instruction: Instruction) -> int | None:
    """Return the passes of a matrix instruction; None if they are unknown."""
    name = instruction.mnemonic
    for pattern, passes in _PASSES.get(instruction.arch.generation, ()):
        if re.match(pattern, name):
            has_8_bits = "f8f6f4" not in name or min(instruction.field("cbsz"), instruction.field("blgp")) < 2
            return passes if has_8_bits else passes // 2
    return None
