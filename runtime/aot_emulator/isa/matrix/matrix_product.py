"""Execution of matrix instructions, D = A * B + C, for many wavefronts at once.

**Arithmetic.** `Arithmetic` selects the summation of floats; fp64 and block-scaled instructions always sum in float64.
Integer sums wrap to 32 bits, or saturate with clamp. With MODE.FP16_OVFL, MFMA's integer
sums, and its sums in fp32, saturate to the largest finite value (CDNA3 manual).

**Denormals.** Denormals are preserved, with two exceptions: 32-bit operands A and B of MFMA follow MODE (CDNA3 manual),
and fp16 and bf16 operands are flushed on gfx90a. xf32 ignores the low 13 bits of its operands. MFMA ignores EXEC.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.floats import conversions, formats
from aot_emulator.state.arrays import Array
from aot_emulator.state.numerics import Arithmetic
from aot_emulator.state.wavefronts import Wavefronts

from .hardware_sum import hardware_sum
from .matrix_layout import (
    accumulator_dtype,
    as_registers,
    from_registers,
    load_matrix,
    pack_accumulator,
    scale_blocks,
    unpack_accumulator,
    with_c_modifiers,
)
from .matrix_op import NO_MODIFIERS, MatrixModifiers, MatrixOp, resolve


def arithmetic_of(instruction: Instruction, op: MatrixOp, waves: Wavefronts) -> Arithmetic:
    """Return the launch's summation mode. Raises `UnsupportedInstructionError` if no hardware model is known."""
    arithmetic = waves.batch.numerics.matrix
    if arithmetic is Arithmetic.HARDWARE and op.model is None and op.a.fmt is not None:
        raise instruction.unsupported("Arithmetic.HARDWARE without a known hardware model")
    return arithmetic


def _chunk(op: MatrixOp) -> int:
    return max(32, (1 << 18) // (max(op.m, op.n) * max(op.m, op.n, op.k) * op.blocks))


def execute(
    op: MatrixOp,
    a: Array,
    b: Array,
    c: Array | None,
    modifiers: MatrixModifiers = NO_MODIFIERS,
    *,
    scales: tuple[Array, Array] | None = None,
    out: Array | None = None,
    arithmetic: Arithmetic = Arithmetic.FLOAT32,
    flush: bool = False,
    saturate: bool = False,
) -> Array:
    """Compute D = A * B + C.

    Args:
        op: a description from `matrix_ops`.
        a, b: uint32[registers, wavefronts, lanes], with the register counts of `resolve(op, modifiers)`.
        c: uint32[op.d_registers, wavefronts, lanes]; None for zeros. The caller must broadcast inline constants.
        modifiers: modifier fields of the instruction.
        scales: for scaled instructions, the exponent registers of A and B, uint32[1, wavefronts, lanes] each.
        out: receives D; may alias c. If gfx11 writes only half of each register, the other half is preserved.
            None: allocate a new, zeroed array.
        arithmetic: summation of floats.
        flush: flush denormal operands to zero.
        saturate: clamp overflowing fp32 and integer sums to the largest finite value of their sign.

    Returns:
        D's registers, uint32[op.d_registers, wavefronts, lanes]; `out` if given.

    Raises:
        ValueError: invalid shapes or modifiers, missing or unexpected scales, or no hardware model.
    """
    op = resolve(op, modifiers)
    _check(op, a, b, c, scales, arithmetic)
    how = _How(modifiers, arithmetic, flush, saturate)
    if out is None:
        out = np.zeros((op.d_registers, *a.shape[1:]), np.uint32)
    with np.errstate(all="ignore"):
        for start in range(0, a.shape[1], _chunk(op)):
            part = slice(start, start + _chunk(op))
            c_part = None if c is None else c[:, part]
            scale_parts = None if scales is None else (scales[0][:, part], scales[1][:, part])
            _execute(op, a[:, part], b[:, part], c_part, scale_parts, out[:, part], how)
    return out


@dataclass(frozen=True)
class _How:
    """Options of `execute`, passed to its parts."""

    modifiers: MatrixModifiers
    arithmetic: Arithmetic
    flush: bool
    saturate: bool


def _check(
    op: MatrixOp, a: Array, b: Array, c: Array | None, scales: tuple[Array, Array] | None, arithmetic: Arithmetic
) -> None:
    operands = [("A", a, op.a_registers), ("B", b, op.b_registers)]
    if c is not None:
        operands.append(("C", c, op.d_registers))
    if op.scaled != (scales is not None):
        raise ValueError(f"{op.mnemonic} takes {'two' if op.scaled else 'no'} registers of scales")
    operands += [(f"the scale of {name}", array, 1) for name, array in zip("AB", scales or (), strict=False)]
    for name, array, registers in operands:
        want = (registers, a.shape[1], op.lanes)
        if array.shape != want or array.dtype != np.uint32:
            raise ValueError(f"{op.mnemonic}: {name} must be uint32{list(want)}, is {array.dtype}{list(array.shape)}")
    if arithmetic is Arithmetic.HARDWARE and op.model is None and op.a.fmt is not None:
        raise ValueError(f"{op.mnemonic}: no hardware model is known")


def _execute(
    op: MatrixOp, a: Array, b: Array, c: Array | None, scales: tuple[Array, Array] | None, out: Array, how: _How
) -> None:
    modifiers = how.modifiers
    hardware = how.arithmetic is Arithmetic.HARDWARE and op.a.fmt is not None
    # If both operands have the same layout, the order along k does not matter.
    in_order = hardware or scales is not None or op.a.bits != op.b.bits
    wide = op.a.fmt is not None and (how.arithmetic is not Arithmetic.FLOAT32 or scales is not None)
    dtype = np.float64 if wide else np.float32
    left, right = (load_matrix(op, registers, modifiers, i, in_order, dtype) for i, registers in enumerate((a, b)))
    if scales is not None:
        left = scale_blocks(left, op.m, scales[0], modifiers.opsel & 1 | (modifiers.opsel_hi & 1) << 1)
        right = scale_blocks(right, op.n, scales[1], modifiers.opsel >> 1 & 1 | modifiers.opsel_hi & 2)
    if how.flush:
        left, right = (_without_denormals(matrix) for matrix in (left, right))
    addend = None if c is None else with_c_modifiers(op, unpack_accumulator(op, c, modifiers), modifiers)
    # Computed before D is written, as D may share registers with C.
    infinite = _from_infinity(op, left, right, addend, out.shape) if how.saturate and op.d.name == "f32" else None
    if hardware:
        start = np.zeros(1) if addend is None else from_registers(op, addend)
        _store(op, as_registers(op, hardware_sum(op, left, right, start)), None, how, out)
    else:
        _store(op, as_registers(op, np.matmul(left.swapaxes(2, 3), right)), addend, how, out)
    if infinite is not None:
        values = out.view(np.float32)
        np.copyto(values, np.copysign(np.finfo(np.float32).max, values), where=np.isinf(values) & ~infinite)


def _without_denormals(matrix: Array) -> Array:
    return np.where(np.abs(matrix) < np.finfo(np.float32).smallest_normal, matrix.dtype.type(0), matrix)


def _from_infinity(op: MatrixOp, left: Array, right: Array, addend: Array | None, registers: tuple[int, ...]) -> Array:
    """Return a mask, in D's register order, of elements that depend on an infinite operand."""
    rows, columns = (np.any(np.isinf(matrix), axis=2, keepdims=True) for matrix in (left, right))
    found = as_registers(op, rows.swapaxes(2, 3) | columns).reshape(registers)
    return found if addend is None else found | np.isinf(addend).reshape(registers)


def _store(op: MatrixOp, product: Array, addend: Array | None, how: _How, out: Array) -> None:
    if op.a.fmt is None:
        # The sums of products fit 32 bits and are exact in float32.
        saturates = how.modifiers.clmp or how.saturate
        total = product.astype(np.int64 if saturates else np.int32)
        if addend is not None:
            total = total + addend.reshape(product.shape)
        if saturates:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1).astype(np.int32)
        out[...] = total.reshape(out.shape).view(np.uint32)
        return
    if op.d.name == "f32" and addend is not None:
        target = out.view(np.float32).reshape(product.shape)
        np.add(product, addend.reshape(product.shape), out=target, dtype=product.dtype, casting="same_kind")
        return
    total = product if addend is None else product + addend.reshape(product.shape)
    total = total.reshape(-1, *out.shape[1:])
    is_bf16 = op.d.name == "bf16"
    elements = conversions.encode(total, formats.BF16) if is_bf16 else total.astype(accumulator_dtype(op))
    pack_accumulator(op, elements, how.modifiers, out)
