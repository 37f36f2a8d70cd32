"""RDNA's matrix instructions: WMMA (chapter "Wave Matrix Multiply Accumulate" of the ISA documents)."""

from __future__ import annotations

from .decode import Instruction
from .matrix import MatrixOp
from .operands import Registers
from .scalar import Step


def bind(instruction: Instruction, layout: Registers, op: MatrixOp) -> Step:
    """What executes a matrix instruction."""
    raise instruction.unsupported("WMMA is not implemented")
