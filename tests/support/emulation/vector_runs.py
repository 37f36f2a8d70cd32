"""Instructions of the vector ALU, run on registers that are given."""

from __future__ import annotations

import numpy as np

from tests.support.emulation.machine import DEFAULT_MODE, Machine, is_rdna
from tests.support.emulation.values import bits_of, mnemonics, spelled

LITERALS = {16: "0x4248", 32: "0x40490fdb"}


def place_of_literal(operation: str) -> int | None:
    """Which source of v_fmamk, v_fmaak and kin is a literal."""
    return {"mk": 1, "ak": 2}.get(operation.rpartition("_")[0][-2:])


def run(
    operation: str, kinds: tuple[str, ...], sources: list[np.ndarray], arch: str = "gfx942", half: int = 0,
    mode: int = DEFAULT_MODE, modifiers: str = "",
) -> Machine:  # fmt: skip
    """Sources in v8, v12, …, the result in v2.

    half: where operands of 16 bits are; CDNA's encodings have op_sel for that, which are those of VOP3.
    """
    machine = Machine(arch, mode=mode)
    texts = []
    for i, (kind, source) in enumerate(zip(kinds[1:], sources, strict=True)):
        number = 2 if kind.startswith("=") else 8 + 4 * i
        if i == place_of_literal(operation):
            texts.append(LITERALS[bits_of(kind)])
            continue
        machine.put(number, source, half)
        if number != 2:
            texts.append(spelled(kind, number, half if is_rdna(arch) else None))
    if half and not is_rdna(arch):
        modifiers += f" op_sel:[{','.join(str(int(bits_of(kind) == 16)) for kind in (*kinds[1:], kinds[0]))}]"
    result = spelled(kinds[0], 2, half if is_rdna(arch) else None)
    return machine.execute(f"{mnemonics(arch).get(operation, operation)} {result}, {', '.join(texts)}{modifiers}")
