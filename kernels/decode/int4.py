"""Numbers of 4 bits, two in a byte, the even one low: nibble * factor + shift, with a pair for each group of a row.

Neighbours share a byte, so that unpacking moves nothing between lanes: the tile goes through LDS once, as a float16
tile does on its way to the matrix units. A row of eight nibbles an int32 after a prefix of pairs, as perf-kernels'
flash decoding has it, is the same bytes: `kernels.decode.quantise` makes views of it.
"""

import triton
import triton.language as tl


@triton.jit
def load_int4(rows, at, pairs, pairs_at, COLUMNS: tl.constexpr, GROUPS: tl.constexpr):
    """Rows as fp16 [len(at), COLUMNS]. rows: uint8; pairs: fp16, (factor, shift) of each group."""
    packed = tl.load(rows + at[:, None] + tl.arange(0, COLUMNS // 2)[None, :])
    nibbles = tl.join(packed & 15, packed >> 4).reshape(at.shape[0], GROUPS, COLUMNS // GROUPS)
    pair = pairs_at[:, None] + 2 * tl.arange(0, GROUPS)[None, :]
    factor = tl.load(pairs + pair)[:, :, None]
    shift = tl.load(pairs + pair + 1)[:, :, None]
    # The bits of 1024 + n in fp16 are those of 1024, and n: that needs no conversion.
    numbers = (nibbles.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True) - 1024.0
    return tl.fma(numbers, tl.broadcast_to(factor, numbers.shape), tl.broadcast_to(shift, numbers.shape)).reshape(
        at.shape[0], COLUMNS
    )


@triton.jit
def store_int4(values, rows, at, pairs, pairs_at, known, COLUMNS: tl.constexpr, GROUPS: tl.constexpr):
    """Quantise fp32 [len(at), COLUMNS] between each group's least and largest value, and store it as `load_int4` reads.

    The pair is rounded to fp16 before it is used, so that what is read is as near as 4 bits can be.
    """
    grouped = values.reshape(at.shape[0], GROUPS, COLUMNS // GROUPS)
    least, largest = tl.min(grouped, 2), tl.max(grouped, 2)
    shift = least.to(tl.float16)
    factor = ((largest - shift.to(tl.float32)) * (1.0 / 15)).to(tl.float16)
    divisor = tl.where(factor == 0, 1.0, factor.to(tl.float32))
    above = grouped - shift.to(tl.float32)[:, :, None]
    steps = tl.div_rn(above, tl.broadcast_to(divisor[:, :, None], above.shape))
    nibbles = tl.minimum(tl.maximum(steps + 0.5, 0.0), 15.0).to(tl.uint8)
    low, high = tl.split(nibbles.reshape(at.shape[0], COLUMNS // 2, 2))
    pair = pairs_at[:, None] + 2 * tl.arange(0, GROUPS)[None, :]
    tl.store(pairs + pair, factor, known[:, None])
    tl.store(pairs + pair + 1, shift, known[:, None])
    tl.store(rows + at[:, None] + tl.arange(0, COLUMNS // 2)[None, :], low | (high << 4), known[:, None])
