"""`decode_split` for Hopper, in Gluon. Each warp has its own keys, and cached values never move between lanes."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from kernels.common.pdl import await_earlier_launches
from kernels.common.softmax import inverse, log2_sum
from kernels.common.tensors import HeadRows, Heads, HeadScalars
from kernels.decode.cache import BlockTables
from kernels.decode.hopper_cache import (
    PIECE,
    Cache,
    CacheTile,
    Place,
    allocate_tiles,
    are_aligned_words,
    bits_of,
    fill,
    find_pieces,
    keys_of,
    load_tile,
    read,
)
from kernels.decode.hopper_operands import LOWEST, factors_of, in_order, in_order_of_k, k_operand, v_operand
from kernels.decode.parts import Parts, load_queries, part, rows_at, sequence_of, store_rows
from kernels.decode.split import GAIN, make_scoring, scores_of


@gluon.jit
def decode_split_hopper(
    q: Heads, k: Heads, v: Heads, out: Heads, lse: HeadRows, parts: Parts,
    heads, heads_kv, seqlen_q, seqlen_k, scale,
    HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
    seqlens_k=None, cu_seqlens_q=None, total_q=0, block_tables: BlockTables = None,
    k_scale: HeadRows = None, v_scale: HeadRows = None,
    alibi_slopes: HeadScalars = None, left=2147483647, softcap=0.0, out_factor=1.0,
    PADDED: gl.constexpr = False, head_dim=None, head_dim_v=None,
):  # fmt: skip
    """`decode_split` for rows of HEAD_DIM elements, 64 or 128, at multiples of 16 bytes.

    PADDED: rows of q and K have head_dim elements, those of V and out head_dim_v, which are whole pieces of 16 bytes.

    K and V are of q's dtype, of 8 bits, or of 4 bits in one group, in uint8. The block size of a paged cache is a
    multiple of 16. Strides along keys are below 2 ** 31 bytes. Masks are causal: a query sees its diagonal and `left`
    keys before it. KEYS: keys of a warp, a multiple of 16. STAGES: tiles that are kept in shared memory, which takes 8
    or 4 bits and a multiple of 32 KEYS; 1: loads go to registers.
    """
    await_earlier_launches()
    WARPS: gl.constexpr = gl.num_warps()
    BLOCK_N: gl.constexpr = WARPS * KEYS
    CACHE_DTYPE: gl.constexpr = k.ptr.dtype.element_ty
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    COLUMN: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, MMA))
    tile, split = gl.program_id(0) // parts.splits, gl.program_id(0) % parts.splits
    head_kv, batch = gl.program_id(1), gl.program_id(2)
    group = heads // heads_kv
    sequence = sequence_of(batch, seqlen_q, seqlen_k, cu_seqlens_q, total_q, seqlens_k)
    if tile * BLOCK_M >= sequence.queries * group:
        return
    STORED: gl.constexpr = gl.BlockedLayout([1, 4], [128 // HEAD_DIM, HEAD_DIM // 4], [WARPS, 1], [1, 0])
    ROW: gl.constexpr = gl.SliceLayout(1, STORED)
    rows = rows_at(tile * BLOCK_M + gl.arange(0, BLOCK_M, layout=ROW), head_kv, group, sequence.queries)
    columns = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, STORED))
    q_tile = load_queries(q, sequence, rows, columns, head_dim, PADDED)
    queries = make_queries(q_tile, CACHE_DTYPE, MMA)

    offset = sequence.keys - sequence.queries
    mine = rows_at(tile * BLOCK_M + gl.arange(0, BLOCK_M, layout=COLUMN), head_kv, group, sequence.queries)
    seen = Causal((mine.tokens + offset)[None, None, :], left)
    if queries.unit is not None:
        scale = scale * queries.unit
    scoring = make_scoring(scale, softcap, alibi_slopes, batch, mine.heads[None, None, :])
    first_place = gl.maximum(tile * BLOCK_M // group + offset, 0)
    begin = gl.maximum(first_place - left, 0) // BLOCK_N * BLOCK_N
    end = gl.minimum((tile * BLOCK_M + BLOCK_M - 1) // group + offset + 1, sequence.keys)
    begin, end = part(begin, end, split, parts.splits, BLOCK_N)
    place = Place(batch, head_kv, gl.maximum(sequence.keys - 1, 0), block_tables)
    cache = Cache(k, v, k_scale, v_scale, head_dim if PADDED else None, head_dim_v if PADDED else None)
    if STAGES == 1:
        folded = fold_loaded(queries, cache, place, seen, scoring, begin, end, KEYS)
    else:
        if are_aligned_words(k_scale) and are_aligned_words(v_scale):
            folded = fold_copied(queries, cache, place, seen, scoring, begin, end, KEYS, STAGES)
        else:
            folded = fold_loaded(queries, cache, place, seen, scoring, begin, end, PIECE)
    joined = join_warps(folded)
    row_max = gl.convert_layout(joined.row_max, ROW)
    row_sum = gl.convert_layout(joined.row_sum, ROW)
    acc = gl.convert_layout(in_order(joined.acc, CACHE_DTYPE), STORED) * (1.0 / gain_of(CACHE_DTYPE))
    if bits_of(CACHE_DTYPE) == 4:
        acc = acc * (in_units(columns) * (1.0 / LOWEST))[None, :] + gl.convert_layout(joined.shifts, ROW)[:, None]
    acc *= (inverse(row_sum) * out_factor)[:, None]
    store_rows(
        acc, log2_sum(row_max, row_sum), sequence, rows, columns, split, parts, out, lse, heads, head_dim_v, PADDED
    )


class Causal(NamedTuple):
    """Keys that rows see: up to `last`, [1, 1, rows], from `reach` keys before it on."""

    last: gl.tensor
    reach: gl.tensor


class Queries(NamedTuple):
    """Queries of a tile.

    operand: the right operand of scores, [warps, HEAD_DIM, rows]. sums: [1, 1, rows], the sum of each row's columns,
    or None. unit: [1, 1, rows], what the operand is to be multiplied by, or None.
    """

    operand: gl.tensor
    sums: gl.tensor
    unit: gl.tensor


@gluon.jit
def make_queries(q, CACHE_DTYPE: gl.constexpr, MMA: gl.constexpr):
    """Make the Queries of a tile q [rows, HEAD_DIM]. A cache of 8 or 4 bits is widened to float16, so they are, too."""
    COLUMN: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, MMA))  # a row of queries is a column of scores
    BITS: gl.constexpr = bits_of(CACHE_DTYPE)
    unit = None
    sums = None
    if BITS == 4 or (BITS == 8 and q.dtype == gl.bfloat16):
        q, unit = as_float16(q)
        unit = gl.convert_layout(unit, COLUMN)[None, None, :]
    if BITS == 4:
        sums = gl.convert_layout(gl.sum(q.to(gl.float32), 1), COLUMN)[None, None, :]
        columns = gl.arange(0, q.shape[1], layout=gl.SliceLayout(0, q.type.layout))
        q = (q.to(gl.float32) * in_units(columns)[None, :]).to(gl.float16)
    q_tile = in_order_of_k(q, CACHE_DTYPE).trans().reshape([1, q.shape[1], q.shape[0]])
    q_tile = gl.convert_layout(q_tile, gl.DotOperandLayout(1, MMA, 2))
    return Queries(q_tile.broadcast_to([gl.num_warps(), q.shape[1], q.shape[0]]), sums, unit)


@gluon.jit
def in_units(columns):
    """Factors that bring columns of 4-bit operands, whose odd ones are 16 times too large, to one unit."""
    return gl.where(columns % 2 == 1, 0.0625, 1.0)


class Softmax(NamedTuple):
    """Online softmax of each warp's keys.

    acc: weighted sums of V, [warps, HEAD_DIM, rows]. row_max: [warps, rows]. row_sum: [warps, 8, rows], in parts, one
    for each group of four lanes. shifts: as row_sum, weighted sums of the shifts of a 4-bit V.
    """

    acc: gl.tensor
    row_max: gl.tensor
    row_sum: gl.tensor
    shifts: gl.tensor


@gluon.jit
def no_keys(queries: Queries, KEYS: gl.constexpr):
    """Make a Softmax of no keys, to fold tiles of KEYS into."""
    MMA: gl.constexpr = queries.operand.type.layout.parent
    WARPS: gl.constexpr = queries.operand.shape[0]
    ROWS: gl.constexpr = queries.operand.shape[2]
    nothing = sum_in_lanes(gl.zeros([WARPS, KEYS, ROWS], gl.float32, MMA))
    return Softmax(
        gl.zeros([WARPS, queries.operand.shape[1], ROWS], gl.float32, MMA),
        gl.full([WARPS, ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, MMA)),
        nothing, nothing,
    )  # fmt: skip


@gluon.jit
def sum_in_lanes(x):
    """Return [warps, 8, rows]: sums of x [warps, keys, rows], in the layout of scores, over the keys of a lane."""
    return gl.sum(x.reshape([x.shape[0], x.shape[1] // 8, 8, x.shape[2]]), 1)


@gluon.jit
def sum_of_lanes(folded: Softmax):
    """Add the parts of row_sum and shifts: they are [warps, rows] in the result."""
    COLUMN: gl.constexpr = folded.row_max.type.layout
    row_sum = gl.convert_layout(gl.sum(folded.row_sum, 1), COLUMN, assert_trivial=True)
    shifts = gl.convert_layout(gl.sum(folded.shifts, 1), COLUMN, assert_trivial=True)
    return Softmax(folded.acc, folded.row_max, row_sum, shifts)


@gluon.jit
def fold_loaded(
    queries: Queries, cache: Cache, place: Place, seen: Causal, scoring, begin, end, KEYS: gl.constexpr
):  # fmt: skip
    """Fold the keys from begin to end, KEYS of a warp at a time.

    The tile of the next iteration is loaded into registers before this one multiplies, and the block table entries of
    the one after it before that.
    """
    BLOCK_N: gl.constexpr = gl.num_warps() * KEYS
    HEAD_DIM: gl.constexpr = queries.operand.shape[1]
    folded = no_keys(queries, KEYS)
    if begin < end:
        pieces = find_pieces(place, begin, KEYS)
        tile = load_tile(cache, place, begin, pieces, HEAD_DIM, KEYS)
        pieces = find_pieces(place, begin + BLOCK_N, KEYS)
        for start in range(begin, end, BLOCK_N):
            coming = load_tile(cache, place, start + BLOCK_N, pieces, HEAD_DIM, KEYS)
            pieces = find_pieces(place, start + 2 * BLOCK_N, KEYS)
            folded = fold_tile(queries, tile, seen, scoring, start, folded, cache.k.ptr.dtype.element_ty)
            tile = coming
    return sum_of_lanes(folded)


@gluon.jit
def fold_copied(
    queries: Queries, cache: Cache, place: Place, seen: Causal, scoring, begin, end, KEYS: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """`fold_loaded` through a ring in shared memory.

    Too many registers would wait for loads, and ptxas would delay the loads until the next iteration needs them.
    """
    BLOCK_N: gl.constexpr = gl.num_warps() * KEYS
    AHEAD: gl.constexpr = STAGES - 1
    folded = no_keys(queries, KEYS)
    if begin < end:
        ring = allocate_tiles(cache, queries.operand.shape[1], KEYS, STAGES)
        for i in gl.static_range(AHEAD):
            fill(ring, i, cache, place, begin + i * BLOCK_N, find_pieces(place, begin + i * BLOCK_N, KEYS))
        pieces = find_pieces(place, begin + AHEAD * BLOCK_N, KEYS)
        at = 0
        for start in range(begin, end, BLOCK_N):
            async_copy.wait_group(AHEAD - 1)
            tile = read(ring, at)
            fill(ring, (at + AHEAD) % STAGES, cache, place, start + AHEAD * BLOCK_N, pieces)
            pieces = find_pieces(place, start + STAGES * BLOCK_N, KEYS)
            folded = fold_tile(queries, tile, seen, scoring, start, folded, cache.k.ptr.dtype.element_ty)
            at = (at + 1) % STAGES
        async_copy.wait_group(0)
    return sum_of_lanes(folded)


@gluon.jit
def fold_tile(
    queries: Queries, tile: CacheTile, seen: Causal, scoring, start, folded: Softmax, CACHE_DTYPE: gl.constexpr
):
    """Fold a CacheTile, which begins with key `start`, into a Softmax."""
    q_tile = queries.operand
    WARPS: gl.constexpr = q_tile.shape[0]
    KEYS: gl.constexpr = tile.k.shape[1]
    BITS: gl.constexpr = bits_of(CACHE_DTYPE)
    MMA: gl.constexpr = q_tile.type.layout.parent
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    PER_KEY: gl.constexpr = gl.SliceLayout(2, MMA)
    k_tile = k_operand(tile, q_tile.dtype, CACHE_DTYPE, LEFT)
    scores = mma_v2(k_tile, q_tile, gl.zeros([WARPS, KEYS, q_tile.shape[2]], gl.float32, MMA))
    if BITS == 8:
        scores *= factors_of(tile.k_factors, CACHE_DTYPE, PER_KEY)[0]
    if BITS == 4:
        factor, shift = factors_of(tile.k_factors, CACHE_DTYPE, PER_KEY)
        scores = scores * (factor * (1.0 / LOWEST)) + queries.sums * shift
    distance = seen.last - keys_of(start, KEYS, MMA)[:, :, None]
    scores = scores_of(scores, distance, scoring)
    scores = gl.where((distance | (seen.reach - distance)) >= 0, scores, float("-inf"))  # both, by their signs
    p, rescale, row_max = fold(scores, folded.row_max)
    of_lanes = gl.convert_layout(rescale, gl.SliceLayout(1, folded.row_sum.type.layout), assert_trivial=True)
    row_sum = folded.row_sum * of_lanes[:, None, :] + sum_in_lanes(p)
    shifts = folded.shifts
    if BITS < 16:
        factor, shift = factors_of(tile.v_factors, CACHE_DTYPE, PER_KEY)
        if BITS == 4:
            shifts = shifts * of_lanes[:, None, :] + sum_in_lanes(p * shift)
        p *= factor * gain_of(CACHE_DTYPE)
    v_tile = v_operand(tile, q_tile.dtype, CACHE_DTYPE, LEFT)
    p = gl.convert_layout(p.to(q_tile.dtype), gl.DotOperandLayout(1, MMA, 2))
    return Softmax(mma_v2(v_tile, p, folded.acc * rescale[:, None, :]), row_max, row_sum, shifts)


@gluon.constexpr_function
def gain_of(dtype):
    """Gain of probabilities times factors of a cache, which are small; but a factor of 4 bits may be as large as a
    fifteenth of float16's range."""
    return {16: 1.0, 8: GAIN.value, 4: 4.0}[bits_of(dtype)]


@gluon.jit
def as_float16(q):
    """Return (q as float16, unit of each row): rows are divided by a power of two so that no value overflows."""
    x = q.to(gl.float32)
    exponent = gl.max(gl.abs(x), 1).to(gl.int32, bitcast=True) & 0x7F800000
    unit = gl.where(exponent == 0, 0x3F800000, exponent).to(gl.float32, bitcast=True)
    return (x * (1.0 / unit)[:, None]).to(gl.float16), unit


@gluon.jit
def fold(scores, row_max):
    """`softmax.fold` for each warp's scores [warps, keys, rows], without the sum."""
    new_max = gl.maximum(row_max, gl.max(scores, 1))
    origin = gl.where(new_max == float("-inf"), 0.0, new_max)
    return gl.exp2(scores - origin[:, None, :]), gl.exp2(row_max - origin), new_max


@gluon.jit
def join_warps(folded: Softmax):
    """Join the Softmaxes of all warps: acc is [HEAD_DIM, rows] in the result, the others [rows]."""
    top = gl.max(folded.row_max, 0)
    weight = gl.exp2(folded.row_max - gl.where(top == float("-inf"), 0.0, top)[None, :])
    acc = gl.sum(folded.acc * weight[:, None, :], 0)
    return Softmax(acc, top, gl.sum(folded.row_sum * weight, 0), gl.sum(folded.shifts * weight, 0))
