"""Register and lane layouts of matrix operands.

The layouts follow the ISA documents (CDNA3 section 7.1, CDNA4 7.1, RDNA3 7.9, RDNA4 7.12). AMD's Matrix Instruction
Calculator agrees, except for the order along K noted below. Elements are packed from the lowest bits of the operand's
first register; `slot` is the index of an element within its lane. Lane numbers are written with the outermost part
first.

- A and B of MFMA and gfx12 WMMA: lane = (group, block, row); slot s of group g is k = g * slots + s. For B, replace row
  by column. The 8-bit forms of f8f6f4 have k = (s // 16) * 16 * groups + g * 16 + s % 16.
- A and B of gfx11 WMMA: lane = (copy, row) with identical copies, slot = k. Copy 0 is used here.
- C and D: lane = (group, low block, column), register = (high block, row part, height), and the row of a block is
  (row part, group, height). Height is 4 for 32-bit MFMA, 8 for gfx12 WMMA, 1 for fp64 MFMA and gfx11 WMMA. gfx12 packs
  16-bit elements in pairs; gfx11 stores each in the register half selected by op_sel[2].

A common permutation of k in A and B does not change the result. `execute` therefore sums in storage order if both
agree, and differences between documents (16-bit WMMA of gfx12) do not matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aot_emulator.isa.floats import conversions, formats
from aot_emulator.isa.floats.formats import FloatFormat
from aot_emulator.state.arrays import Array

from .matrix_op import Element, MatrixModifiers, MatrixOp


def decode(registers: Array, element: Element, signed: bool = True, dtype: npt.DTypeLike = np.float32) -> Array:
    """Decode the elements of packed registers.

    Args:
        registers: uint32[registers, wavefronts, lanes].
        element: element type.
        signed: signedness of iu8 and iu4 elements.
        dtype: dtype of the result, float32 or float64 (always float64 for f64).

    Returns:
        [wavefronts, slots, lanes], contiguous.
    """
    count, waves, lanes = registers.shape
    slots = count * 32 // element.bits
    if element.bits == 64:
        return _join(registers.swapaxes(0, 1))
    if element.bits == 32:
        words = registers & np.uint32(0xFFFFE000) if element.name == "xf32" else registers
        return words.view(np.float32).swapaxes(0, 1).astype(dtype, order="C")
    fields = _top_aligned(registers, element.bits).reshape(waves, slots, lanes)
    if element.fmt is None:
        width = 32 - element.bits
        numbers = fields.view(np.int32) >> np.int32(width) if signed else fields >> np.uint32(width)
        return numbers.astype(dtype)
    values = _decode_float(fields, element.fmt, dtype)
    _restore_specials(values, registers, element.fmt)
    return values


def _join(words: Array) -> Array:
    waves, count, lanes = words.shape
    pairs = np.empty((waves, count // 2, lanes, 2), np.uint32)
    pairs[..., 0], pairs[..., 1] = words[:, 0::2], words[:, 1::2]
    return pairs.view(np.float64)[..., 0]


def _top_aligned(registers: Array, bits: int) -> Array:
    """Shift each field to the top bits of uint32[wavefronts, ..., lanes]; the lower bits are undefined."""
    count, waves, lanes = registers.shape
    by_wave = registers.swapaxes(0, 1)
    if 32 % bits == 0:
        shifts = np.arange(32 - bits, -1, -bits, dtype=np.uint32)
        fields = np.empty((waves, count, shifts.size, lanes), np.uint32)
        return np.left_shift(by_wave[:, :, None], shifts[:, None], out=fields)
    fields = np.empty((waves, count * 32 // bits, lanes), np.uint32)
    for slot in range(fields.shape[1]):
        register, low = divmod(slot * bits, 32)
        above = low + bits - 32
        if above <= 0:
            np.left_shift(by_wave[:, register], np.uint32(-above), out=fields[:, slot])
        else:
            low_part = by_wave[:, register] >> np.uint32(above)
            fields[:, slot] = low_part | by_wave[:, register + 1] << np.uint32(32 - above)
    return fields


def _decode_float(fields: Array, fmt: FloatFormat, dtype: npt.DTypeLike) -> Array:
    """Decode top-aligned fields (overwritten) by moving them to fp32's positions and scaling by the exponent bias.

    The caller must then call `_restore_specials`.
    """
    shift = 8 - fmt.exponent_bits
    mask = (1 << 31) | ((1 << (fmt.bits - 1)) - 1) << (32 - fmt.bits - shift)
    if shift:
        np.right_shift(fields.view(np.int32), np.int32(shift), out=fields.view(np.int32))
    fields &= np.uint32(mask)
    values = fields.view(np.float32)
    if fmt.bias == formats.FP32.bias:
        return values.astype(dtype, copy=False)
    scale = np.float32(2.0 ** (127 - fmt.bias))
    return np.multiply(values, scale, out=values if dtype == np.float32 else None, dtype=dtype)


def _restore_specials(values: Array, registers: Array, fmt: FloatFormat) -> None:
    if fmt.special == "fnuz":
        packed = np.ascontiguousarray(registers).view(np.uint8)
        if (packed == fmt.nan_code).any():
            values[(values == 0) & np.signbit(values)] = np.nan
    elif fmt.special != "finite" and fmt.bias != formats.FP32.bias:
        largest = conversions.decode_max(fmt)
        if max(values.max(), -values.min()) > largest:
            size = np.abs(values)
            infinity = 2.0 ** np.ceil(np.log2(largest)) if fmt.special == "ieee" else np.nan
            values[size == infinity] *= np.inf
            values[(size > largest) & (size != infinity)] = np.nan


def _by_k(op: MatrixOp, element: Element, values: Array, size: int, in_order: bool) -> Array:
    """Rearrange decoded elements to [wavefronts, blocks, k, row or column].

    in_order: in ascending order of k, rather than in storage order.
    """
    waves, slots, lanes = values.shape
    if op.family == "wmma11":
        return values[:, None, :, :size]
    if not in_order:
        return values.reshape(waves, op.k, op.blocks, size).swapaxes(1, 2)
    chunk = min(slots, 16) if element.bits == 8 else slots
    groups = lanes // (op.blocks * size)
    parts = values.reshape(waves, slots // chunk, chunk, groups, op.blocks, size)
    return parts.transpose(0, 4, 1, 3, 2, 5).reshape(waves, op.blocks, op.k, size)


_LANE = np.arange(64)
_BLGP_LANES = np.array(
    [_LANE, _LANE % 32, _LANE % 32 + 32, (_LANE + 16) % 64, *(_LANE % 16 + start for start in (0, 16, 32, 48))]
)
"""Lane from which each lane reads B, by the value of BLGP."""


def load_matrix(
    op: MatrixOp, registers: Array, modifiers: MatrixModifiers, which: int, in_order: bool, dtype: npt.DTypeLike
) -> Array:
    """Load matrix A (`which` = 0) or B (1) as [wavefronts, blocks, k, row or column], applying its modifiers."""
    element, size = (op.b, op.n) if which else (op.a, op.m)
    if which and op.blgp == "lanes" and modifiers.blgp:
        registers = registers[:, :, _BLGP_LANES[modifiers.blgp]]
    signed = element.name == "i8" or bool(modifiers.neg >> which & 1)
    values = decode(registers, element, signed, dtype)
    if op.flushes:
        values[np.abs(values) < 2.0 ** (1 - op.a.fmt.bias if op.a.fmt else 0)] = 0
    if op.a.fmt is not None:
        even, odd = _signs(op, modifiers, which)
        if even:
            np.negative(values[:, 0::2], out=values[:, 0::2])
        if odd:
            np.negative(values[:, 1::2], out=values[:, 1::2])
    matrix = _by_k(op, element, values, size, in_order)
    if not which and modifiers.cbsz and op.blocks > 1:
        block = np.arange(op.blocks)
        matrix = matrix[:, (block >> modifiers.cbsz << modifiers.cbsz) + modifiers.abid]
    return matrix


def _signs(op: MatrixOp, modifiers: MatrixModifiers, which: int) -> tuple[bool, bool]:
    if op.blgp == "signs":
        negated = bool(modifiers.blgp >> which & 1)
        return negated, negated
    return bool(modifiers.neg >> which & 1), bool(modifiers.neg_hi >> which & 1)


def scale_blocks(matrix: Array, size: int, scales: Array, byte: int) -> Array:
    """Scale a matrix (in ascending order of k) by its block exponents.

    An exponent is an E8M0 byte for 32 elements along k. Lane g * size + row of the register holds that of group g.
    """
    exponent = (scales[0] >> np.uint32(8 * byte) & np.uint32(0xFF)).astype(np.int32)
    factor = np.where(exponent == 0xFF, np.nan, np.ldexp(1.0, exponent - 127))
    waves, blocks, k, _ = matrix.shape
    parts = matrix.reshape(waves, blocks, k // 32, 32, size)
    return (parts * factor.reshape(-1, 1, k // 32, 1, size)).reshape(matrix.shape)


def accumulator_dtype(op: MatrixOp) -> np.dtype[Any]:
    return np.dtype(
        {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16, "i32": np.int32}[op.d.name]
    )


def unpack_accumulator(op: MatrixOp, registers: Array, modifiers: MatrixModifiers) -> Array:
    """Unpack the elements of C to [elements, wavefronts, lanes]; bf16 as codes."""
    dtype = accumulator_dtype(op)
    if op.d.bits == 32:
        return registers.view(dtype)
    count, waves, lanes = registers.shape
    if op.d.bits == 64:
        return _join(registers.swapaxes(0, 1)).swapaxes(0, 1)
    halves = np.stack([registers, registers >> np.uint32(16)], axis=1).astype(np.uint16).view(dtype)
    if op.family == "wmma11":
        return halves[:, modifiers.opsel >> 2 & 1]
    return halves.reshape(2 * count, waves, lanes)


def pack_accumulator(op: MatrixOp, elements: Array, modifiers: MatrixModifiers, out: Array) -> None:
    """Pack elements into registers, the inverse of `unpack_accumulator`.

    gfx11's 16-bit results preserve the other half of each register.
    """
    if op.d.bits == 32:
        out[...] = elements.view(np.uint32)
        return
    count, waves, lanes = out.shape
    if op.d.bits == 64:
        pairs = np.ascontiguousarray(elements).view(np.uint32).reshape(count // 2, waves, lanes, 2)
        out[0::2], out[1::2] = pairs[..., 0], pairs[..., 1]
        return
    codes = elements.view(np.uint16)
    if op.family == "wmma11":
        out[...] = conversions.insert_bits(out, codes, 16 * (modifiers.opsel >> 2 & 1), 16)
    else:
        out[...] = conversions.pack16(codes[0::2], codes[1::2])


def as_registers(op: MatrixOp, product: Array) -> Array:
    """View a product, [wavefronts, blocks, m, n], in the order of D's registers.

    The axes are [high block, row part, height, wavefront, group, low block, column].
    """
    waves = product.shape[0]
    height = op.row_height
    low_blocks = -(-64 * height // (op.m * op.n)) if op.family == "mfma" else 1
    groups = op.lanes // (op.n * low_blocks)
    parts = (waves, op.blocks // low_blocks, low_blocks, op.m // (groups * height), groups, height, op.n)
    return product.reshape(parts).transpose(1, 3, 5, 0, 4, 2, 6)


def from_registers(op: MatrixOp, elements: Array) -> Array:
    """Rearrange elements of C, [elements, wavefronts, lanes], to [wavefronts, blocks, m, n]."""
    waves = elements.shape[1]
    shape = (waves, op.blocks, op.m, op.n)
    order = np.arange(op.blocks * op.m * op.n).reshape(1, *shape[1:])
    place = as_registers(op, order).reshape(-1)
    flat = np.empty((waves, place.size), elements.dtype)
    flat[:, place] = elements.swapaxes(0, 1).reshape(waves, -1)
    return flat.reshape(shape)


def with_c_modifiers(op: MatrixOp, elements: Array, modifiers: MatrixModifiers) -> Array:
    """Apply the sign modifiers of C, converting bf16 to float32."""
    if op.d.name == "bf16":
        elements = conversions.decode(elements, formats.BF16)
    if op.a.fmt is None:
        return elements
    if op.blgp != "signs" and modifiers.neg_hi & 4:
        elements = np.abs(elements)
    negated = modifiers.blgp & 4 if op.blgp == "signs" else modifiers.neg & 4
    return -elements if negated else elements
