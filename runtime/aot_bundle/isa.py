"""Analyse the machine code of AMD kernels: instructions, loops, and load widths.

Instructions are decoded by the emulator's tables, which are imported on first use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from aot_runtime.bundle.codeobject import read_loaded_image
from aot_runtime.bundle.elf_header import read_arch
from aot_runtime.errors import BundleError, DeviceError

MATRIX = ("v_mfma", "v_smfmac", "v_wmma", "v_swmmac")
"""Mnemonic prefixes of matrix instructions."""
_LOADS = ("buffer_load", "global_load", "flat_load")
_WIDTHS = (
    (re.compile(r"dwordx(\d)"), 32), (re.compile(r"_b(\d+)"), 1), (re.compile(r"_[ui](8|16)(?!\d)"), 1),
)  # fmt: skip
"""Patterns of load widths in mnemonics, and the unit of each in bits."""
_NAMED_WIDTHS = {"dword": 32, "short": 16, "byte": 8}


class Instruction(msgspec.Struct, frozen=True):
    """An instruction of a kernel."""

    pc: int
    mnemonic: str
    """Mnemonic without its encoding suffix, except `_dpp` and `_sdwa`."""
    target: int | None = None
    """Target pc of a branch."""


class CodeFacts(msgspec.Struct, frozen=True):
    """Facts about a kernel's hot loops.

    Hot loops are the innermost loops with matrix instructions. If there are none, they are the innermost loops that
    load from memory, or else all code.
    """

    load_bits: int | None
    """Narrowest load from memory, in bits per lane, or None if nothing is loaded."""
    matrix: str
    """Sorted mnemonics of the matrix instructions, separated by spaces."""
    loop_instructions: int
    """Number of instructions in the longest loop."""


def read_instructions(image: bytes, symbol: str) -> tuple[Instruction, ...]:
    """Decode the instructions of a kernel in an HSACO.

    Raises:
        BundleError: the image is malformed, lacks the kernel, or its architecture is not supported.
        DeviceError: the decoder is not installed.
    """
    arch = read_arch(image)
    loaded = read_loaded_image(image)
    address, size = loaded.symbols.get(symbol, (0, 0))
    segment = next((s for s in loaded.segments if s.address <= address and address + size <= s.address + s.size), None)
    if not size or segment is None:
        raise BundleError(f"code object has no machine code for kernel {symbol!r}")
    code = segment.data[address - segment.address :][:size]
    return tuple(map(_instruction, _decode(code, arch)))


def _decode(code: bytes, arch: str) -> Iterable[Any]:
    try:
        from aot_emulator.isa.archs import ARCHS
        from aot_emulator.isa.decoding import decode

        known = ARCHS.get(arch)
        if known is None:
            raise BundleError(f"the code of {arch} is not decoded; that of {', '.join(ARCHS)} is")
        return decode(code, known).values()
    except DeviceError as error:
        raise DeviceError(f"instructions are read with the emulator's decoder: {error}") from None


def _instruction(found: Any) -> Instruction:
    form = next((f"_{form}" for form in ("dpp", "sdwa") if form.upper() in found.encoding), "")
    branches = found.mnemonic.startswith(("s_branch", "s_cbranch"))
    return Instruction(found.pc, found.mnemonic + form, found.branch_target() if branches else None)


def loops_of(instructions: Sequence[Instruction]) -> list[tuple[Instruction, ...]]:
    """Return the instructions of each natural loop, including its inner loops, ordered by loop end.

    A branch at the end of a loop is left out. Back edges to a block that does not dominate them form no natural loop
    and are ignored.
    """
    from aot_emulator.profile.loops import find_loops

    blocks = {body[0].pc: body for body in _blocks(instructions)}
    following = [*list(blocks)[1:], None]
    successors = {
        start: [pc for pc in (body[-1].target, None if _goes_away(body[-1]) else after) if pc in blocks]
        for (start, body), after in zip(blocks.items(), following, strict=True)
    }
    loops = find_loops(list(blocks)[:1], successors)
    bodies = [[item for start in sorted(loop.blocks) for item in blocks[start]] for loop in loops]
    ordered = sorted(bodies, key=lambda body: body[-1].pc)
    return [tuple(body if body[-1].target is None else body[:-1]) for body in ordered]


def _blocks(instructions: Sequence[Instruction]) -> list[list[Instruction]]:
    targets = {instruction.target for instruction in instructions}
    blocks: list[list[Instruction]] = [[]]
    for instruction in instructions:
        if blocks[-1] and (instruction.pc in targets or _ends(blocks[-1][-1])):
            blocks.append([])
        blocks[-1].append(instruction)
    return blocks


def _ends(instruction: Instruction) -> bool:
    return instruction.target is not None or _goes_away(instruction)


def _goes_away(instruction: Instruction) -> bool:
    return instruction.mnemonic.startswith(("s_branch", "s_endpgm", "s_setpc"))


def hot_loops(instructions: Sequence[Instruction]) -> list[tuple[Instruction, ...]]:
    """Return a kernel's hot loops, see `CodeFacts`."""
    loops = loops_of(instructions)
    for wanted in (_is_matrix, _is_load):
        if found := [body for body in loops if any(map(wanted, body))]:
            return _innermost(found)
    return [tuple(instructions)]


def _innermost(loops: Sequence[tuple[Instruction, ...]]) -> list[tuple[Instruction, ...]]:
    places = [{instruction.pc for instruction in body} for body in loops]
    return [body for body, own in zip(loops, places, strict=True) if not any(other < own for other in places)]


def code_facts(instructions: Sequence[Instruction]) -> CodeFacts:
    """Compute the facts about a kernel's hot loops."""
    hot = hot_loops(instructions)
    inside = [instruction for body in hot for instruction in body]
    widths = [load_bits(instruction.mnemonic) for instruction in inside]
    matrix = {instruction.mnemonic for instruction in inside if _is_matrix(instruction)}
    return CodeFacts(min(filter(None, widths), default=None), " ".join(sorted(matrix)), max(map(len, hot)))


def load_bits(mnemonic: str) -> int:
    """Return the bits per lane of a vector load from memory, or 0 for any other instruction."""
    if not mnemonic.startswith(_LOADS):
        return 0
    for pattern, bits in _WIDTHS:
        if found := pattern.search(mnemonic):
            return bits * int(found[1])
    return next((bits for name, bits in _NAMED_WIDTHS.items() if name in mnemonic), 0)


def _is_matrix(instruction: Instruction) -> bool:
    return instruction.mnemonic.startswith(MATRIX)


def _is_load(instruction: Instruction) -> bool:
    return load_bits(instruction.mnemonic) > 0
