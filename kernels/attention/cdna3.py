"""Attention forward for CDNA 3 in Gluon: the softmax of a block of keys is issued between matrix instructions.

A workgroup of four wavefronts has 128 queries of a head, 32 for each wavefront, and walks blocks of 64 keys. Two
workgroups share a compute unit; with head dim 256, one has it for itself. A step is:

    scores: multiply queries and the next keys | exponentials of these scores | write values to LDS | load keys
    barrier: all wavefronts have read the keys, and written the values
    output: multiply probabilities and values | other exponentials | write keys to LDS | load values | next maxima
    barrier: all wavefronts have read the values, and written the keys

`plan_of` says what is issued after which product. LLVM would issue it in bunches, so fences keep it in its place.

Maxima are raised only if a new score would outweigh all earlier ones of its row in some lane of a wavefront: the loop
ends then, the accumulators are rescaled, and the loop goes on. So probabilities may exceed 1, but one that decides a
row alone is 1, and exact. They go up to 2 to the power of SLACK.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.hip.libdevice import fast_dividef

from kernels.attention.forward import deal, head_of, matrix_of, sequence
from kernels.attention.masks import bounds, key_range
from kernels.attention.problem import Sequences
from kernels.common.cdna import appended, replaced
from kernels.common.rounding import truncate, truncation_loss
from kernels.common.softmax import LN_2, LOG2_E
from kernels.common.tensors import Extents, HeadRows, Heads, Vector, Window, given

BLOCK_M = gl.constexpr(128)
BLOCK_N = gl.constexpr(64)
SLACK = gl.constexpr(8.0)
"""The most by which scores may exceed the maxima, in units of log2."""
LOWEST = gl.constexpr(-1e38)
"""The maximum of rows that have seen no key: -inf - -inf is NaN."""


class Tiles(NamedTuple):
    """LDS: a block of keys [BLOCK_N, dim], and one of values [dim / 32, BLOCK_N, 32].

    Column n of part e of the values is column dim / 32 * n + e, so that a lane loads neighbouring columns, and stores
    neighbouring columns of the output.
    """

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor


class Keys(NamedTuple):
    """Keys and values of a head: addresses, strides of rows, and what is loaded at a time.

    Values are loaded as words of two. rows, columns: of the first load of a block. k_dim, v_dim: the columns that there
    are; others are zeros. last: the last block.
    """

    k: gl.tensor
    v: gl.tensor
    k_stride: gl.tensor
    v_stride: gl.tensor
    k_rows: gl.tensor
    k_columns: gl.tensor
    v_rows: gl.tensor
    v_columns: gl.tensor
    k_dim: gl.tensor
    v_dim: gl.tensor
    last: gl.tensor
    seqlen: gl.tensor


class Queries(NamedTuple):
    """Queries: left operands for each 8 columns, and what is done with their products.

    cap: with a soft-cap, the factor of products whose exp2 gives the hyperbolic tangent, else 0. scale: of products, or
    of the tangents, in units of log2. first, count: the first key and the number of keys that each row sees.
    """

    operands: gl.tuple
    cap: gl.tensor
    scale: gl.tensor
    first: gl.tensor
    count: gl.tensor


# Layouts


@gluon.constexpr_function
def product_layout():
    """Return the layout of products. A lane has columns 8 i + 4 (lane / 32) + r, r < 4, of row lane % 32."""
    return gl.amd.AMDMFMALayout(version=3, instr_shape=[32, 32, 8], transposed=True, warps_per_cta=[4, 1])


@gluon.constexpr_function
def keys_layout(dim):
    """Return the layout of a load of keys, 16 bytes a lane."""
    return gl.BlockedLayout([1, 8], [512 // dim, dim // 8], [4, 1], [1, 0])


@gluon.constexpr_function
def values_layout(words):
    """Return the layout of a load of every eighth row of a block of values, in words."""
    registers, lanes, at = [], [], 1
    while at < words:
        (registers if at * 32 < words else lanes).append([0, at])
        at *= 2
    return gl.DistributedLinearLayout(registers, [*lanes, [1, 0]], [[2, 0], [4, 0]], [], [8, words])


@gluon.jit
def key_at(n):
    """Return the key in row n of a block in LDS: bits 2 and 3 are swapped, so that scores lie as operands do."""
    return (n & ~12) | ((n & 4) << 1) | ((n & 8) >> 1)


@gluon.constexpr_function
def first_key_of(n):
    """Return `key_at(n)` of a row that is known."""
    return (n & ~12) | ((n & 4) << 1) | ((n & 8) >> 1)


# What is issued after which product


@gluon.constexpr_function
def plan_of(dim):
    """Return what is issued after each product of a step, as [[(action, number), ...], ...].

    The first half of the products are those of the scores. Actions: `exp`, of a score; `write_v`, a part of the values;
    `load_k`, `write_k`, `load_v`: of what a load has. Exponentials precede the product that takes them; few loads can
    be under way at a time; values are written some time after they are loaded.
    """
    half = dim // 4
    apart = min(half // 8, half * 16 // dim)
    plan = [[] for _ in range(2 * half)]
    early = 18 if dim == 128 else 16
    for score in range(32):
        late = half + (score - early) * (half * 3 // 4) // (32 - early)
        at = score * half // early if score < early else late
        plan[at].append(("exp", score))
    for part in range(dim // 32):
        plan[half // 8 + 1 + part * apart].append(("write_v", part))
        plan[half // 2 + part * half * 16 // dim].append(("load_k", part))
        plan[half + 2 + part * half * 16 // dim].append(("write_k", part))
    for row in range(8):
        plan[half + 3 + row * half * 3 // 32].append(("load_v", row))
    return plan


@gluon.constexpr_function
def numbers_at(plan, at, action):
    """Return the numbers of an action after a product."""
    return tuple(number for name, number in plan[at] if name == action)


@gluon.jit
def fence():
    gl.amd.hint.sched_barrier()


# Loads, LDS and operands


@gluon.jit
def load_keys(keys, block, PART: gl.constexpr, RAGGED: gl.constexpr):
    """Load a part of a block of keys. RAGGED: rows past the end are the last one once more."""
    FIRST: gl.constexpr = first_key_of(PART * keys.k_rows.shape[0])
    start = row_of(keys.k, keys.k_stride, block, FIRST)
    return load_rows(start, keys.k_rows, keys.k_columns, keys.k_stride, keys.k_dim, left_of(keys, block, FIRST, RAGGED))


@gluon.jit
def load_values(keys, block, ROW: gl.constexpr, RAGGED: gl.constexpr):
    """Load row ROW, and every eighth row after it, of a block of values."""
    start = row_of(keys.v, keys.v_stride, block, ROW)
    return load_rows(start, keys.v_rows, keys.v_columns, keys.v_stride, keys.v_dim, left_of(keys, block, ROW, RAGGED))


@gluon.jit
def row_of(address, stride, block, ROW: gl.constexpr):
    return address + (block * BLOCK_N).to(gl.int64) * stride + gl.to_tensor(ROW).to(gl.int64) * stride


@gluon.jit
def left_of(keys, block, FIRST: gl.constexpr, RAGGED: gl.constexpr):
    """Return the number of the last row, counted from FIRST of a block, or None if the block is whole."""
    return keys.seqlen - 1 - block * BLOCK_N - FIRST if RAGGED else None


@gluon.jit
def load_rows(start, rows, columns, stride, dim, last):
    if last is not None:
        rows = gl.minimum(rows, last)
    offsets = rows[:, None] * stride.to(gl.int32) + columns[None, :]
    return gl.amd.cdna3.buffer_load(start, offsets, mask=(columns < dim)[None, :])


@gluon.jit
def write_keys(tiles, parts, PART: gl.constexpr):
    ROWS: gl.constexpr = parts[PART].shape[0]
    tiles.k.slice(PART * ROWS, ROWS, dim=0).store(parts[PART])


@gluon.jit
def write_values(tiles, rows, PART: gl.constexpr):
    """Write a part of the values, of words of which `rows` has every eighth row."""
    WORDS: gl.constexpr = rows[0].shape[1]
    even = gl.join(gl.join(rows[0], rows[4]), gl.join(rows[2], rows[6]))
    odd = gl.join(gl.join(rows[1], rows[5]), gl.join(rows[3], rows[7]))
    block = every(gl.join(even, odd).permute((0, 2, 3, 4, 1)).reshape([BLOCK_N, WORDS]), PART // 2, WORDS // 32)
    if PART % 2 == 1:
        block = block >> 16
    tiles.v.index(PART).store(block.to(gl.uint16).to(tiles.v.dtype, bitcast=True))


@gluon.jit
def every(x, FIRST: gl.constexpr, STEP: gl.constexpr):
    """Return every STEP-th column of x from FIRST on."""
    if STEP == 1:
        return x
    else:
        even, odd = x.reshape([x.shape[0], x.shape[1] // 2, 2]).split()
        return every(even if FIRST % 2 == 0 else odd, FIRST // 2, STEP // 2)


@gluon.jit
def read_keys(tiles, TILE: gl.constexpr, SLICE: gl.constexpr):
    """Read 16 columns of 32 keys as two right operands."""
    x = tiles.k.slice(32 * TILE, 32, dim=0).slice(16 * SLICE, 16, dim=1).permute((1, 0))
    return right_operands(x.load(gl.DotOperandLayout(1, product_layout(), 8)))


@gluon.jit
def read_values(tiles, PART: gl.constexpr, SLICE: gl.constexpr):
    """Read a part of 16 values as two right operands."""
    x = tiles.v.index(PART).slice(16 * SLICE, 16, dim=0)
    return right_operands(x.load(gl.DotOperandLayout(1, product_layout(), 8)))


@gluon.jit
def right_operands(x):
    """Split [16, 32] into operands of the two products that a lane has read at once."""
    LAYOUT: gl.constexpr = gl.DotOperandLayout(1, product_layout(), 4)
    a, b = x.reshape([2, 2, 4, 32]).permute((0, 2, 3, 1)).split()
    a = gl.convert_layout(a.reshape([8, 32]), LAYOUT, assert_trivial=True)
    return a, gl.convert_layout(b.reshape([8, 32]), LAYOUT, assert_trivial=True)


@gluon.jit
def left_operands(x):
    """Split [BLOCK_M, 16] in the same way."""
    LAYOUT: gl.constexpr = gl.DotOperandLayout(0, product_layout(), 4)
    a, b = x.reshape([BLOCK_M, 2, 2, 4]).permute((0, 1, 3, 2)).split()
    a = gl.convert_layout(a.reshape([BLOCK_M, 8]), LAYOUT, assert_trivial=True)
    return a, gl.convert_layout(b.reshape([BLOCK_M, 8]), LAYOUT, assert_trivial=True)


@gluon.jit
def probabilities_operand(p, FIRST: gl.constexpr, DTYPE: gl.constexpr):
    """Join four probabilities of a lane into the left operand of a product, truncated."""
    joined = gl.join(gl.join(p[FIRST], p[FIRST + 2]), gl.join(p[FIRST + 1], p[FIRST + 3])).reshape([BLOCK_M, 8])
    operand = truncate(joined, DTYPE, False)
    return gl.convert_layout(operand, gl.DotOperandLayout(0, product_layout(), 4), assert_trivial=True)


# Scores. A lane has 32 of a block, of one query, in a tuple: each is a tensor of [BLOCK_M, 2]


@gluon.jit
def scores_of(first, second):
    """Return the scores in products with 32 keys and with 32 more, in the order of operands."""
    scores = ()
    for at in gl.static_range(8):
        scores = scores + eighth_of(first if at < 4 else second, at % 4)
    return scores


@gluon.jit
def eighth_of(s, AT: gl.constexpr):
    low, high = s.reshape([BLOCK_M, 2, 16]).permute((0, 2, 1)).split()
    low, high = (low if AT < 2 else high).reshape([BLOCK_M, 2, 8]).permute((0, 2, 1)).split()
    even, odd = (low if AT % 2 == 0 else high).reshape([BLOCK_M, 2, 2, 2]).split()
    a, c = even.split()
    b, d = odd.split()
    return a, b, c, d


@gluon.jit
def hidden(s, start, TILE: gl.constexpr, queries):
    """Set the scores of keys that a row does not see to -inf, in products with half a block of keys from `start` on."""
    keys = key_at(gl.arange(0, 32, layout=gl.SliceLayout(0, s.type.layout)))
    place = keys[None, :] - (queries.first - start - 32 * TILE)[:, None]
    seen = place.to(gl.uint32, bitcast=True) < queries.count.to(gl.uint32, bitcast=True)[:, None]
    return gl.where(seen, s, float("-inf"))


@gluon.jit
def capped(left, right, queries):
    """Return the products or, with a soft-cap, the hyperbolic tangents."""
    if queries.cap > 0:
        left = 1 - 2 * fast_dividef(1.0, gl.exp2(left * queries.cap) + 1)
        right = 1 - 2 * fast_dividef(1.0, gl.exp2(right * queries.cap) + 1)
    return left, right


@gluon.jit
def by_row(x, like):
    """Return a value of each row, [BLOCK_M], in a layout that broadcasts to `like`."""
    return gl.convert_layout(x, gl.SliceLayout(1, like.type.layout), assert_trivial=True)[:, None]


@gluon.jit
def words(low, high):
    return low.to(gl.uint32, bitcast=True).to(gl.uint64) | high.to(gl.uint32, bitcast=True).to(gl.uint64) << 32


@gluon.jit
def relative(low, high, scale, row_max):
    """Return two scores times the scale, less the maximum: LLVM would not take one instruction for both."""
    row_max = by_row(row_max, low).to(gl.uint32, bitcast=True).to(gl.uint64)
    both = gl.inline_asm_elementwise(
        "v_pk_fma_f32 $0, $1, $2, $3 op_sel_hi:[1,0,0] neg_lo:[0,0,1] neg_hi:[0,0,1]", "=v,v,s,v",
        [words(low, high), scale.to(gl.uint32, bitcast=True).to(gl.uint64), row_max],
        dtype=gl.uint64, is_pure=True, pack=1,
    )  # fmt: skip
    return both.to(gl.uint32).to(gl.float32, bitcast=True), (both >> 32).to(gl.uint32).to(gl.float32, bitcast=True)


@gluon.jit
def largest_of(scores, FIRST: gl.constexpr, COUNT: gl.constexpr, largest):
    for at in gl.static_range(FIRST, FIRST + COUNT):
        largest = gl.maximum(largest, scores[at])
    return largest


@gluon.jit
def flag_greater(x, y):
    """Set m0 if x > y in a lane of the wavefront."""
    gl.inline_asm_elementwise(
        "v_cmp_gt_f32 vcc, $1, $2\ns_cmp_lg_u64 vcc, 0\ns_cselect_b32 m0, 1, 0\nv_mov_b32 $0, 0",
        "=v,v,v,~{vcc},~{scc}", [x, y], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def flag(step):
    """Return m0. Triton has no scalars of a wavefront, and LLVM allocates no value to m0, which it reserves."""
    return gl.inline_asm_elementwise("s_mov_b32 $0, m0", "=s,s", [step], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def rescaled(acc, sums, row_max, largest, LOST: gl.constexpr):
    """Raise the maxima to `largest`, by lane, less LOST; return the new (acc, sums, row_max, limits).

    limits, by lane: scores up to which the maxima may stay as they are.
    """
    largest = gl.convert_layout(gl.max(largest, 1), row_max.type.layout, assert_trivial=True)
    new_max = gl.maximum(row_max, largest - LOST)
    factor = gl.exp2(row_max - new_max)
    for at in gl.static_range(len(acc)):
        acc = replaced(acc, at, acc[at] * factor[:, None])
    sums = (sums[0] * by_row(factor, sums[0]), sums[1] * by_row(factor, sums[1]))
    earlier = gl.minimum(gl.maximum(gl.log2(sums[0] + sums[1]), 0.0), SLACK)
    return acc, sums, new_max, by_row(new_max + LOST, earlier) + earlier


# Steps


@gluon.jit
def exponential(p, sums, x, AT: gl.constexpr):
    """Append the probability of score AT, relative to the maximum; return (p, sums)."""
    x = gl.exp2(x)
    sums = (sums[0] + x, sums[1]) if AT % 2 == 0 else (sums[0], sums[1] + x)
    return appended(p, x), sums


@gluon.jit
def multiply_step(
    acc, scores, sums, row_max, first, second, values, step, queries, keys, tiles,
    MASKED: gl.constexpr, IS_LAST: gl.constexpr,
):  # fmt: skip
    """Add block `step` to acc, and compute the scores of the next one.

    scores: of this block. first, second: operands of the first products of the next one. values: words of this one.
    MASKED: some query may not see all keys of the next block, or the keys may end in the one after that. IS_LAST: there
    is no next one. Returns the same for the next step and, in place of row_max, the next scores' maxima
    by lane.
    """
    DTYPE: gl.constexpr = tiles.k.dtype
    LAYOUT: gl.constexpr = product_layout()
    DIM: gl.constexpr = tiles.k.shape[1]
    PLAN: gl.constexpr = plan_of(DIM)
    HALF: gl.constexpr = DIM // 4
    PAIRS: gl.constexpr = DIM // 64  # of parts of the values
    x = ()
    for at in gl.static_range(8):
        x = x + relative(scores[2 * at], scores[2 * at + 1], queries.scale, row_max)
    fence()
    p = ()
    staged = ()
    next_but_one = gl.minimum(step + 2, keys.last) if MASKED else step + 2
    left_products = gl.zeros([BLOCK_M, 32], gl.float32, LAYOUT)
    right_products = left_products
    for at in gl.static_range(HALF):
        if not IS_LAST:
            if at % 2 == 0:
                left_products = gl.amd.cdna3.mfma(queries.operands[at // 2], first[at // 2 % 2], left_products)
            else:
                right_products = gl.amd.cdna3.mfma(queries.operands[at // 2], second[at // 2 % 2], right_products)
            fence()
        if at == HALF - 4:
            gl.barrier()
        if at % 4 == 0:
            if at == HALF - 4:
                next_first = read_values(tiles, 0, 0)
                next_second = read_values(tiles, 1, 0)
            elif not IS_LAST:
                next_first = read_keys(tiles, 0, at // 4 + 1)
                next_second = read_keys(tiles, 1, at // 4 + 1)
        for n in gl.static_range(len(numbers_at(PLAN, at, "load_k"))):
            if not IS_LAST:
                part = load_keys(keys, next_but_one, numbers_at(PLAN, at, "load_k")[n], MASKED)
                staged = appended(staged, part)
        fence()
        for n in gl.static_range(len(numbers_at(PLAN, at, "write_v"))):
            write_values(tiles, values, numbers_at(PLAN, at, "write_v")[n])
        for n in gl.static_range(len(numbers_at(PLAN, at, "exp"))):
            p, sums = exponential(p, sums, x[numbers_at(PLAN, at, "exp")[n]], numbers_at(PLAN, at, "exp")[n])
        if at == 0:
            fence()
            for n in gl.static_range(8, 16):
                x = x + relative(scores[2 * n], scores[2 * n + 1], queries.scale, row_max)
        if at % 4 == 3 and (at == HALF - 1 or not IS_LAST):
            first = next_first
            second = next_second
        fence()
    if IS_LAST:
        scores = ()
        largest = row_max
    else:
        left_products, right_products = capped(left_products, right_products, queries)
        if MASKED:
            start = (step + 1) * BLOCK_N
            left_products = hidden(left_products, start, 0, queries)
            fence()
            right_products = hidden(right_products, start, 1, queries)
        scores = scores_of(left_products, right_products)
        largest = scores[0]
    values = ()
    for at in gl.static_range(HALF):
        operand = probabilities_operand(p, at // (4 * PAIRS) * 8 + at // 2 % 2 * 4, DTYPE)
        right = (first if at % 2 == 0 else second)[at // 2 % 2]
        acc = multiply_part(acc, operand, right, at // 4 % PAIRS * 2 + at % 2)
        fence()
        if at == HALF - 4 and not IS_LAST:
            gl.barrier()
        if at % 4 == 0:
            if at != HALF - 4:
                next_first = read_values(tiles, (at // 4 + 1) % PAIRS * 2, (at // 4 + 1) // PAIRS)
                next_second = read_values(tiles, (at // 4 + 1) % PAIRS * 2 + 1, (at // 4 + 1) // PAIRS)
            elif not IS_LAST:
                next_first = read_keys(tiles, 0, 0)
                next_second = read_keys(tiles, 1, 0)
        if not IS_LAST:
            for n in gl.static_range(len(numbers_at(PLAN, HALF + at, "write_k"))):
                write_keys(tiles, staged, numbers_at(PLAN, HALF + at, "write_k")[n])
            for n in gl.static_range(len(numbers_at(PLAN, HALF + at, "load_v"))):
                row = load_values(keys, step + 1, numbers_at(PLAN, HALF + at, "load_v")[n], MASKED)
                values = appended(values, row)
        fence()
        for n in gl.static_range(len(numbers_at(PLAN, HALF + at, "exp"))):
            p, sums = exponential(
                p, sums, x[numbers_at(PLAN, HALF + at, "exp")[n]], numbers_at(PLAN, HALF + at, "exp")[n]
            )
        if not IS_LAST and at >= HALF * 3 // 4:
            largest = largest_of(scores, (at - HALF * 3 // 4) * (128 // HALF), 128 // HALF, largest)
        if at % 4 == 3 and (at < HALF - 1 or not IS_LAST):
            first = next_first
            second = next_second
        fence()
    if not IS_LAST:
        largest = largest * queries.scale
    return acc, scores, sums, largest, first, second, values


@gluon.jit
def multiply_part(acc, left, right, AT: gl.constexpr):
    return replaced(acc, AT, gl.amd.cdna3.mfma(left, right, acc[AT]))


# The kernel


@gluon.jit
def attention_forward_cdna3(
    q: Heads, k: Heads, v: Heads, out: Heads, lse: HeadRows, extents: Extents, query_blocks, batch, window: Window,
    scale, softcap, sinks, HEAD_DIM: gl.constexpr, NUM_XCDS: gl.constexpr, sequences: Sequences = None,
):  # fmt: skip
    """out = softmax(scores) v: `forward.attention_forward` with both bounds, and without a bias, slopes or qv.

    Grid: (query_blocks, heads, batch), query_blocks of 128 queries. HEAD_DIM: 64, 128 or 256, at least the head dims.
    q, k, v, out: float16 or bfloat16, with contiguous rows aligned to 16 bytes; 128 rows of each span less than 2 GiB.
    """
    DTYPE: gl.constexpr = q.ptr.dtype.element_ty
    number = gl.program_id(0) + query_blocks * (gl.program_id(1) + extents.heads * gl.program_id(2))
    block, head, entry = deal(number, query_blocks, extents.heads, batch, True, NUM_XCDS)
    used_q = Vector(sequences.seqused_q, sequences.used_stride_q)
    used_k = Vector(sequences.seqused_k, sequences.used_stride_k)
    first_row_q, seqlen_q = sequence(sequences.cu_seqlens_q, used_q, entry, extents.seqlen_q)
    first_row_k, seqlen_k = sequence(sequences.cu_seqlens_k, used_k, entry, extents.seqlen_k)
    if extents.max_seqlen_k is not None:
        seqlen_k = gl.minimum(seqlen_k, extents.max_seqlen_k)
    first_query = block * BLOCK_M
    if first_query >= seqlen_q:
        return
    LAYOUT: gl.constexpr = product_layout()
    ROWS: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    rows = first_query + gl.arange(0, BLOCK_M, layout=ROWS)
    shift = gl.where(window.bottom_right, seqlen_k - seqlen_q, 0)

    last_query = gl.minimum(first_query + BLOCK_M, seqlen_q) - 1
    of_first, of_last = bounds(first_query + shift, window, True), bounds(last_query + shift, window, True)
    span = key_range(of_first, of_last, seqlen_k, BLOCK_N, True, True)
    last = (gl.maximum(span.end, 1) - 1) // BLOCK_N
    step = gl.minimum(span.begin // BLOCK_N, last)
    seen = bounds(rows + shift, window, True)
    first_key = gl.maximum(seen.first, 0)
    count = gl.maximum(gl.minimum(seen.last + 1, seqlen_k) - first_key, 0)

    queries = load_queries(
        matrix_of(q, entry, head, first_row_q), first_query, seqlen_q, extents.head_dim, scale, softcap,
        first_key, count, HEAD_DIM,
    )  # fmt: skip
    head_kv = head // (extents.heads // extents.heads_kv)
    keys = keys_of(
        matrix_of(k, entry, head_kv, first_row_k), matrix_of(v, entry, head_kv, first_row_k), extents, last, seqlen_k,
        HEAD_DIM,
    )  # fmt: skip
    tiles = Tiles(
        gl.allocate_shared_memory(DTYPE, [BLOCK_N, HEAD_DIM], gl.SwizzledSharedLayout(8, 1, 8, [1, 0])),
        gl.allocate_shared_memory(DTYPE, [HEAD_DIM // 32, BLOCK_N, 32], gl.SwizzledSharedLayout(8, 1, 8, [0, 1])),
    )
    PARTS: gl.constexpr = HEAD_DIM // 32
    loaded = ()
    staged = ()
    values = ()
    for at in gl.static_range(PARTS):
        loaded = appended(loaded, load_keys(keys, step, at, True))
    for at in gl.static_range(8):
        values = appended(values, load_values(keys, step, at, True))
    for at in gl.static_range(PARTS):
        staged = appended(staged, load_keys(keys, gl.minimum(step + 1, last), at, True))
    for at in gl.static_range(PARTS):
        write_keys(tiles, loaded, at)
    gl.barrier()
    left_products = gl.zeros([BLOCK_M, 32], gl.float32, LAYOUT)
    right_products = left_products
    for at in gl.static_range(HEAD_DIM // 16):
        first = read_keys(tiles, 0, at)
        second = read_keys(tiles, 1, at)
        for part in gl.static_range(2):
            left_products = gl.amd.cdna3.mfma(queries.operands[2 * at + part], first[part], left_products)
            right_products = gl.amd.cdna3.mfma(queries.operands[2 * at + part], second[part], right_products)
    gl.barrier()
    for at in gl.static_range(PARTS):
        write_keys(tiles, staged, at)
    left_products, right_products = capped(left_products, right_products, queries)
    start = step * BLOCK_N
    scores = scores_of(hidden(left_products, start, 0, queries), hidden(right_products, start, 1, queries))
    largest = largest_of(scores, 0, 32, scores[0]) * queries.scale
    LOST: gl.constexpr = truncation_loss(DTYPE, False)
    row_max = gl.maximum(gl.convert_layout(gl.max(largest, 1), ROWS, assert_trivial=True) - LOST, LOWEST)
    zeros = gl.zeros([BLOCK_M, 2], gl.float32, scores[0].type.layout)
    sums = (zeros, zeros)
    limits = by_row(row_max + LOST, zeros) + zeros
    acc = ()
    for _ in gl.static_range(PARTS):
        acc = appended(acc, gl.zeros([BLOCK_M, 32], gl.float32, LAYOUT))
    gl.barrier()
    first = read_keys(tiles, 0, 0)
    second = read_keys(tiles, 1, 0)

    # Of the next block, all queries see all keys, and the keys do not end in the one after that.
    unmasked = span.full // BLOCK_N - 1
    unmasked_end = span.full_end // BLOCK_N - 2
    while step < last:
        while (step < last) & ((step < unmasked) | (step >= unmasked_end)):
            acc, scores, sums, largest, first, second, values = multiply_step(
                acc, scores, sums, row_max, first, second, values, step, queries, keys, tiles, True, False
            )
            acc, sums, row_max, limits = rescaled(acc, sums, row_max, largest, LOST)
            step += 1
        risen = 0
        while (step < unmasked_end) & (risen == 0):
            acc, scores, sums, largest, first, second, values = multiply_step(
                acc, scores, sums, row_max, first, second, values, step, queries, keys, tiles, False, False
            )
            flag_greater(largest, limits)
            risen = flag(step)
            step += 1
        acc, sums, row_max, limits = rescaled(acc, sums, row_max, largest, LOST)
    acc, _, sums, _, _, _, _ = multiply_step(
        acc, scores, sums, row_max, first, second, values, step, queries, keys, tiles, False, True
    )

    total = gl.convert_layout(gl.sum(sums[0] + sums[1], 1), ROWS, assert_trivial=True)
    factor = gl.full([BLOCK_M], 2.0**LOST, gl.float32, ROWS)
    if given(sinks):
        logit = gl.load(sinks + head) * LOG2_E
        new_max = gl.maximum(row_max, logit)
        factor *= gl.exp2(row_max - new_max)
        total = total * gl.exp2(row_max - new_max) + gl.exp2(logit - new_max)
        row_max = new_max
    stored = rows < seqlen_q
    store_lse(lse, entry, head, first_row_q + rows, row_max, total, stored)
    factor = gl.where(total == 0, 0.0, factor / total)
    store_rows(matrix_of(out, entry, head, first_row_q), first_query, acc, factor, seqlen_q, extents.head_dim_v)


@gluon.jit
def load_queries(q, first_query, seqlen_q, head_dim, scale, softcap, first_key, count, HEAD_DIM: gl.constexpr):
    """Load Queries; those past the end are the last one once more. Maxima of scores need a scale > 0, so queries take
    its sign."""
    LAYOUT: gl.constexpr = gl.DotOperandLayout(0, product_layout(), 8)
    rows = gl.minimum(gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LAYOUT)), seqlen_q - 1 - first_query)
    columns = gl.arange(0, 16, layout=gl.SliceLayout(0, LAYOUT))
    offsets = rows[:, None] * q.stride_rows.to(gl.int32) + columns[None, :]
    address = q.ptr + first_query.to(gl.int64) * q.stride_rows
    operands = ()
    for at in gl.static_range(HEAD_DIM // 16):
        x = gl.amd.cdna3.buffer_load(address, offsets + 16 * at, mask=(columns < head_dim - 16 * at)[None, :])
        operands = operands + left_operands(gl.where(scale < 0, -x, x))
    scale = gl.abs(scale)
    cap = gl.where(softcap > 0, 2 * LOG2_E * scale / softcap, 0.0)
    # 0 * -inf is NaN.
    return Queries(operands, cap, gl.maximum(gl.where(softcap > 0, softcap, scale) * LOG2_E, 1e-37), first_key, count)


@gluon.jit
def keys_of(k, v, extents, last, seqlen_k, HEAD_DIM: gl.constexpr):
    KEYS: gl.constexpr = keys_layout(HEAD_DIM)
    VALUES: gl.constexpr = values_layout(HEAD_DIM // 2)
    rows_k = key_at(gl.arange(0, 2048 // HEAD_DIM, layout=gl.SliceLayout(1, KEYS)))
    columns_k = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, KEYS))
    rows_v = 8 * gl.arange(0, 8, layout=gl.SliceLayout(1, VALUES))
    columns_v = gl.arange(0, HEAD_DIM // 2, layout=gl.SliceLayout(0, VALUES))
    return Keys(
        k.ptr, v.ptr.to(gl.pointer_type(gl.uint32), bitcast=True),
        k.stride_rows, v.stride_rows // 2, rows_k, columns_k, rows_v, columns_v, extents.head_dim,
        extents.head_dim_v // 2, last, seqlen_k,
    )  # fmt: skip


@gluon.jit
def store_lse(lse, entry, head, rows, row_max, total, stored):
    """Store the natural logarithm of each row's sum of exponentials, if it is wanted."""
    if lse.ptr is not None:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
        if lse.ptr.to(gl.int64, bitcast=True) != 0:
            address = head_of(lse, entry, head) + rows.to(gl.int64) * lse.stride_rows
            gl.store(address, (row_max + gl.log2(total)) * LN_2, mask=stored)


@gluon.jit
def store_rows(out, first_query, acc, factor, seqlen_q, head_dim):
    """Store the rows of acc times their factors."""
    joined = columns_of(acc)
    HEAD_DIM: gl.constexpr = joined.shape[1]
    LAYOUT: gl.constexpr = joined.type.layout
    rows = gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, HEAD_DIM, layout=gl.SliceLayout(0, LAYOUT))
    address = out.ptr + first_query.to(gl.int64) * out.stride_rows
    gl.amd.cdna3.buffer_store(
        (joined * by_row(factor, joined)).to(out.ptr.dtype.element_ty), address,
        rows[:, None] * out.stride_rows.to(gl.int32) + columns[None, :],
        mask=(rows < seqlen_q - first_query)[:, None] & (columns < head_dim)[None, :],
    )  # fmt: skip


@gluon.jit
def columns_of(parts):
    """Join parts whose columns alternate."""
    COUNT: gl.constexpr = len(parts)
    if COUNT == 1:
        return parts[0]
    else:
        even, odd = columns_of(parts[0::2]), columns_of(parts[1::2])
        return gl.join(even, odd).reshape([even.shape[0], 2 * even.shape[1]])
