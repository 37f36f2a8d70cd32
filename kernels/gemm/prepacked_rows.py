"""Products of few rows with prepacked weights, which go from memory to the matrix units through registers only."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.common.indices import range_of
from kernels.common.pdl import LINE, prefetch
from kernels.common.tensors import Matrix, given
from kernels.gemm.prepacked import TILE, Prepacked, decode, for_words, in_order, table_of, tile_words, values_of


class Step(NamedTuple):
    """Operands of each warp for a tile of k."""

    words: gl.tensor
    x: gl.tensor
    scales: gl.tensor
    zeros: gl.tensor


@gluon.constexpr_function
def _bits(count):
    return [1 << i for i in range(count.bit_length() - 1)]


@gluon.constexpr_function
def words_layout(warps, slices, words):
    """Layout of [warps, slices, words]: 16 bytes a lane, once or twice."""
    registers = [[0, 0, 1], [0, 0, 2], *([0, 0, 128 * i] for i in _bits(words // 128))]
    registers += [[0, i, 0] for i in _bits(slices)]
    lanes = [[0, 0, 4 * i] for i in _bits(32)]
    return gl.DistributedLinearLayout(registers, lanes, [[i, 0, 0] for i in _bits(warps)], [], [warps, slices, words])


@gluon.constexpr_function
def x_layout(warps, rows):
    """Layout of [warps, rows, 64]: 16 bytes a lane, four lanes next to each other."""
    registers = [[0, 0, 1], [0, 0, 2], [0, 0, 4], [0, 0, 32], *([0, 8 * i, 0] for i in _bits(rows // 8))]
    lanes = [[0, 0, 8], [0, 0, 16], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[i, 0, 0] for i in _bits(warps)], [], [warps, rows, 64])


@gluon.constexpr_function
def scales_layout(warps, slices):
    """Layout of [warps, 8, 2 * slices]: the scales of the outputs that a lane has."""
    registers = [[0, 0, i] for i in _bits(2 * slices)]
    lanes = [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[i, 0, 0] for i in _bits(warps)], [], [warps, 8, 2 * slices])


@gluon.jit
def prefetch_words(weights, output, k, tiles, OUTPUTS: gl.constexpr):
    """Prefetch the words of the first tiles of k into the L2 cache, for OUTPUTS outputs from `output` on, one line per
    thread.
    """
    TILE_WORDS: gl.constexpr = tile_words(weights.BITS)
    LINE_WORDS: gl.constexpr = LINE // 4
    LINES: gl.constexpr = OUTPUTS * TILE_WORDS // (TILE * LINE_WORDS)
    gl.static_assert(32 // LINES >= 1)
    thread = gl.arange(0, 32 * gl.num_warps(), gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
    words = weights.w + (output // TILE).to(gl.int64) * (k // TILE) * TILE_WORDS + output % TILE * (TILE_WORDS // TILE)
    prefetch(words + gl.minimum(thread // LINES, tiles - 1) * TILE_WORDS + thread % LINES * LINE_WORDS)


@gluon.jit
def load_step(x, weights, first, row, output, m, k, ROWS: gl.constexpr, OUTPUTS: gl.constexpr):
    """Load the Step with the tiles of k from `first` on, one for each warp; zeros past the end of k."""
    WARPS: gl.constexpr = gl.num_warps()
    SLICES: gl.constexpr = OUTPUTS // 16
    TILE_WORDS: gl.constexpr = tile_words(weights.BITS)
    SLICE_WORDS: gl.constexpr = TILE_WORDS // 4
    WORDS: gl.constexpr = words_layout(WARPS, SLICES, SLICE_WORDS)
    X: gl.constexpr = x_layout(WARPS, ROWS)
    SCALES: gl.constexpr = scales_layout(WARPS, SLICES)
    tile, inner, tiles = output // TILE, output % TILE, k // TILE

    at = first + range_of(0, WARPS, WORDS)
    words_at = weights.w + tile.to(gl.int64) * tiles * TILE_WORDS + inner * (TILE_WORDS // TILE)
    words_at += at * TILE_WORDS + range_of(1, SLICES, WORDS) * SLICE_WORDS + range_of(2, SLICE_WORDS, WORDS)
    words = gl.load(words_at, at < tiles, 0, eviction_policy="evict_first")

    at = first + range_of(0, WARPS, X)
    rows = row + range_of(1, ROWS, X)
    x_at = x.ptr + rows.to(gl.int64) * x.stride_rows + (at * TILE + range_of(2, TILE, X))
    values = gl.load(x_at, (at < tiles) & (rows < m), 0.0)

    at = first + range_of(0, WARPS, SCALES)
    group = at * TILE // weights.group_size
    place = output // TILE * TILE + inner // 8 + range_of(1, 8, SCALES) * 8 + range_of(2, 2 * SLICES, SCALES)
    scales = gl.load(weights.scales + group * weights.stride_scales_groups + place, at < tiles, 0.0)
    zeros = gl.full([1, 1, 1], 0, gl.int32, SCALES)
    if weights.CODES == "zeros":
        zeros = gl.load(weights.zeros + group * weights.stride_zeros_groups + place, at < tiles, 0).to(gl.int32)
    return Step(words, values, scales, zeros)


@gluon.jit
def parts_of(x):
    """Split x along its last dim into a tuple of tensors [a, b, c, 1]."""
    HALF: gl.constexpr = x.shape[3] // 2
    if HALF == 0:
        return (x,)
    else:
        first, second = x.reshape([x.shape[0], x.shape[1], x.shape[2], 2, HALF]).permute((0, 1, 2, 4, 3)).split()
        return parts_of(first) + parts_of(second)


@gluon.jit
def add_products(sums, step, table, CODES: gl.constexpr, BITS: gl.constexpr):
    """Add the products of a step to `sums`: [warps, 16, rows] for each slice of 16 outputs."""
    WARPS: gl.constexpr = step.words.shape[0]
    SLICES: gl.constexpr = step.words.shape[1]
    ROWS: gl.constexpr = step.x.shape[1]
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    dtype: gl.constexpr = step.x.dtype
    right = gl.convert_layout(step.x.permute((0, 2, 1)), gl.DotOperandLayout(1, SUMS, 2))
    words = parts_of(step.words.permute((0, 2, 1)).reshape([WARPS, 1, 32 * BITS, SLICES]))
    scales = parts_of(step.scales.reshape([WARPS, 8, SLICES, 2]).permute((0, 1, 3, 2)))
    if CODES == "zeros":
        zeros = parts_of(step.zeros.reshape([WARPS, 8, SLICES, 2]).permute((0, 1, 3, 2)))
    added = ()
    for i in gl.static_range(SLICES):
        word = in_order(words[i], 1, BITS)
        zero = gl.to_tensor(1 << BITS - 1)
        if CODES == "zeros":
            zero = for_words(zeros[i].reshape([WARPS, 1, 1, 8, 1, 1, 2]), word)
        p0, p1, p2, p3 = decode(word, zero, table, dtype)
        left = values_of(p0, p1, p2, p3, dtype)
        left = gl.convert_layout(left, gl.DotOperandLayout(0, SUMS, 2), assert_trivial=True)
        product = mma_v2(left, right, gl.zeros([WARPS, 16, ROWS], gl.float32, SUMS))
        scale = scales[i].reshape([WARPS, 8, 2]).permute((0, 2, 1)).reshape([WARPS, 16]).to(gl.float32)
        scale = gl.convert_layout(scale, gl.SliceLayout(2, SUMS), assert_trivial=True)
        added = added + (sums[i] + product * scale[:, :, None],)  # noqa: RUF005
    return added


@gluon.jit
def joined(slices):
    """Join the sums of all slices, each [warps, 16, rows], to one tensor [warps, 16, rows, slices]."""
    COUNT: gl.constexpr = len(slices)
    if COUNT == 1:
        return slices[0].reshape([slices[0].shape[0], 16, slices[0].shape[2], 1])
    else:
        pairs = gl.join(joined(slices[: COUNT // 2]), joined(slices[COUNT // 2 :])).permute((0, 1, 2, 4, 3))
        return pairs.reshape([pairs.shape[0], 16, pairs.shape[2], COUNT])


@gluon.jit
def store_sums(e, sums, bias, output, row, m):
    """Add the warps' sums of slices of 16 outputs, [warps, 16, rows] each, and store them."""
    WARPS: gl.constexpr = sums[0].shape[0]
    ROWS: gl.constexpr = sums[0].shape[2]
    OUTPUTS: gl.constexpr = 16 * len(sums)
    ACROSS: gl.constexpr = [1, OUTPUTS // 16, WARPS * 16 // OUTPUTS]
    OUT: gl.constexpr = gl.BlockedLayout([WARPS, 1, 1], [1, 16, 2], ACROSS, [1, 2, 0])
    by_warp = joined(sums).permute((0, 3, 1, 2)).reshape([WARPS, OUTPUTS, ROWS])
    total = gl.sum(gl.convert_layout(by_warp, OUT), 0)
    outputs = output + gl.arange(0, OUTPUTS, gl.SliceLayout(1, gl.SliceLayout(0, OUT)))[:, None]
    rows = row + gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(0, OUT)))[None, :]
    total += gl.load(bias + outputs, given(bias), 0.0).to(gl.float32)
    at = e.ptr + rows.to(gl.int64) * e.stride_rows + outputs * e.stride_columns
    gl.store(at, total.to(e.ptr.dtype.element_ty), rows < m)


@gluon.jit
def prepacked_rows(x: Matrix, weights: Prepacked, e: Matrix, bias, m, k, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """e = x wᵀ + bias, summed in fp32. Grid: (blocks of e), those of the same outputs together.

    x: [m, k]; e: [m, outputs]; bias: [outputs], or a null pointer. BLOCK_N: 16, 32 or 64; BLOCK_M: 8 or a power of 2
    times that. The warps of a program take tiles of k in turns, and add their sums at the end. A step is loaded while
    the one before is computed.
    """
    WARPS: gl.constexpr = gl.num_warps()
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    blocks = gl.cdiv(m, BLOCK_M)
    output, row = gl.program_id(0) // blocks * BLOCK_N, gl.program_id(0) % blocks * BLOCK_M
    gdc_launch_dependents()
    prefetch_words(weights, output, k, gl.minimum(k // TILE, WARPS), BLOCK_N)
    gdc_wait()
    table = None
    if weights.CODES == "codebook":
        table = table_of(weights.codebook, x.ptr.dtype.element_ty)
    sums = ()
    for _ in gl.static_range(BLOCK_N // 16):
        sums = sums + (gl.zeros([WARPS, 16, BLOCK_M], gl.float32, SUMS),)  # noqa: RUF005
    step = load_step(x, weights, 0, row, output, m, k, BLOCK_M, BLOCK_N)
    for first in range(0, k // TILE, WARPS):
        following = load_step(x, weights, first + WARPS, row, output, m, k, BLOCK_M, BLOCK_N)
        sums = add_products(sums, step, table, weights.CODES, weights.BITS)
        step = following
    store_sums(e, sums, bias, output, row, m)
