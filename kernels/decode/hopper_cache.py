"""Tiles of a cache for `hopper`: addresses of rows, and loads into the layouts that `hopper_operands` takes.

A warp has KEYS keys of its own. Four lanes share a key of K, eight lanes one of V.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from kernels.common.tensors import HeadRows, Heads
from kernels.decode.cache import BlockTables

PIECE = gl.constexpr(16)
"""Keys of a piece: a block of a paged cache has whole pieces."""


class Cache(NamedTuple):
    """K and V, with a factor for each key of 8 bits, or a (factor, shift) pair for each key of 4 bits.

    head_dim, head_dim_v: elements of a row of K and of V, if they are fewer than a tile has; else None.
    """

    k: Heads
    v: Heads
    k_factors: HeadRows
    v_factors: HeadRows
    head_dim: gl.tensor
    head_dim_v: gl.tensor


class CacheTile(NamedTuple):
    """Words of K and V, int32 [warps, KEYS, ..], and each key's factor or pair, int32 [warps, KEYS, 1], or 0.

    As a ring in shared memory, each has a first dim for the stages.
    """

    k: gl.tensor
    k_factors: gl.tensor
    v: gl.tensor
    v_factors: gl.tensor


class Place(NamedTuple):
    """The sequence and head whose cache is read. last: the last key, which is read in place of keys past the end."""

    batch: gl.tensor
    head_kv: gl.tensor
    last: gl.tensor
    tables: BlockTables


@gluon.constexpr_function
def bits(begin, end):
    """List the powers of two from begin to below end."""
    return [1 << i for i in range(end.bit_length()) if begin <= 1 << i < end]


@gluon.constexpr_function
def k_layout(warps, keys, words, chunk):
    """Layout of [warps, keys, words]: four lanes share a key, each with chunks of words."""
    registers = [[0, 0, b] for b in bits(1, chunk) + bits(4 * chunk, words)] + [[0, b, 0] for b in bits(8, keys)]
    lanes = [[0, 0, chunk], [0, 0, 2 * chunk], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[b, 0, 0] for b in bits(1, warps)], [], [warps, keys, words])


@gluon.constexpr_function
def v_layout(warps, keys, words, chunk):
    """Layout of [warps, keys, words]: eight lanes share a key, each with chunks of words; a lane has pairs of keys."""
    registers = [[0, 0, b] for b in bits(1, chunk)] + [[0, 1, 0]]
    registers += [[0, 0, b] for b in bits(8 * chunk, words)] + [[0, b, 0] for b in bits(8, keys)]
    lanes = [[0, 2, 0], [0, 4, 0], [0, 0, chunk], [0, 0, 2 * chunk], [0, 0, 4 * chunk]]
    return gl.DistributedLinearLayout(registers, lanes, [[b, 0, 0] for b in bits(1, warps)], [], [warps, keys, words])


@gluon.constexpr_function
def spread_layout(layout):
    """Layout of [warps, keys / PIECE, PIECE] in which keys lie as in a layout of [warps, keys, words]."""

    def keys(bases):
        return [[warp, key // 16, key % 16] for warp, key, _ in bases]

    warps, count, _ = layout.shape
    registers = [basis for basis in keys(layout.reg_bases) if any(basis)]
    return gl.DistributedLinearLayout(
        registers, keys(layout.lane_bases), keys(layout.warp_bases), [], [warps, count // 16, 16]
    )


@gluon.constexpr_function
def factors_layout(layout):
    """Layout of [warps, keys, 1] in which keys lie as in a layout of [warps, keys, words]."""

    def keys(bases):
        return [[warp, key, 0] for warp, key, _ in bases]

    registers = [basis for basis in keys(layout.reg_bases) if any(basis)]
    return gl.DistributedLinearLayout(
        registers, keys(layout.lane_bases), keys(layout.warp_bases), [], [*layout.shape[:2], 1]
    )


@gluon.constexpr_function
def bits_of(dtype):
    """Bits of a value in a cache of this dtype; uint8 holds two values of 4 bits."""
    return 4 if dtype == gl.uint8 else dtype.primitive_bitwidth


@gluon.constexpr_function
def chunk_of(words, lanes):
    """Count the neighbouring words of a row that a lane has, if `lanes` lanes share the row."""
    return min(4, words // lanes)


# Loads


class Pieces(NamedTuple):
    """First keys of the pieces of a tile, [warps, KEYS / PIECE] each: the block from the table, and the key in it.

    Both are 0 for a contiguous cache.
    """

    block: gl.tensor
    key: gl.tensor


@gluon.jit
def find_pieces(place: Place, start, KEYS: gl.constexpr):
    """Load the Pieces of the keys from `start` on. Nothing here waits for the tables."""
    if place.tables.ptr is None:
        return Pieces(0, 0)
    else:
        first = first_of_pieces(place, start, KEYS, k_layout(gl.num_warps(), KEYS, 16, 4))
        table = place.tables.ptr + place.batch * place.tables.stride_batch
        entry = first // place.tables.block_size
        return Pieces(gl.load(table + entry), first - entry * place.tables.block_size)


@gluon.jit
def clamped(pieces: Pieces, place: Place):
    """Clamp Pieces to the blocks of the cache."""
    if place.tables.ptr is None:
        return pieces
    else:
        return Pieces(gl.minimum(gl.maximum(pieces.block, 0), place.tables.blocks - 1), pieces.key)


@gluon.jit
def load_tile(cache: Cache, place: Place, start, pieces: Pieces, HEAD_DIM: gl.constexpr, KEYS: gl.constexpr):
    """Load the CacheTile of keys from `start` on; pieces: from `find_pieces`."""
    BITS: gl.constexpr = bits_of(cache.k.ptr.dtype.element_ty)
    WORDS: gl.constexpr = HEAD_DIM * BITS // 32
    pieces = clamped(pieces, place)
    K: gl.constexpr = k_layout(gl.num_warps(), KEYS, WORDS, chunk_of(WORDS, 4))
    V: gl.constexpr = v_layout(gl.num_warps(), KEYS, WORDS, chunk_of(WORDS, 8))
    k_words = load_words(
        words_from(cache.k, place, start, pieces, WORDS, KEYS, chunk_of(WORDS, 4), 4, K), cache.head_dim, BITS
    )
    v_words = load_words(
        words_from(cache.v, place, start, pieces, WORDS, KEYS, chunk_of(WORDS, 8), 8, V), cache.head_dim_v, BITS
    )
    if BITS == 16:
        return CacheTile(k_words, 0, v_words, 0)
    else:
        k_factors = load_factors(cache.k_factors, place, start, pieces, KEYS, factors_layout(K))
        v_factors = load_factors(cache.v_factors, place, start, pieces, KEYS, factors_layout(K))
        return CacheTile(k_words, k_factors, v_words, v_factors)


@gluon.jit
def load_words(pointers, head_dim, BITS: gl.constexpr):
    """Load words [warps, KEYS, words] of rows of head_dim elements; 0 past their ends. None: all are inside."""
    if head_dim is None:
        return gl.load(pointers)
    else:
        words = gl.arange(0, pointers.shape[2], layout=gl.SliceLayout(0, gl.SliceLayout(1, pointers.type.layout)))
        pieces = words // 4 * 4  # of 16 bytes, which are inside as a whole or not at all
        return gl.load(pointers, mask=(pieces < head_dim * BITS // 32)[None, None, :], other=0)


@gluon.constexpr_function
def lanes_of_keys(warps, keys):
    """Layout of [warps, keys, 1]: a lane for each key."""
    lanes = [[0, b, 0] for b in bits(1, 32)]
    registers = [[0, b, 0] for b in bits(32, keys)]
    return gl.DistributedLinearLayout(registers, lanes, [[b, 0, 0] for b in bits(1, warps)], [], [warps, keys, 1])


@gluon.jit
def allocate_tiles(cache: Cache, HEAD_DIM: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr):
    """Allocate a ring of STAGES CacheTiles of 8 or 4 bits, with a multiple of 32 KEYS."""
    WARPS: gl.constexpr = gl.num_warps()
    WORDS: gl.constexpr = HEAD_DIM * bits_of(cache.k.ptr.dtype.element_ty) // 32
    CHUNKS: gl.constexpr = WORDS // 4
    ROWS: gl.constexpr = gl.SwizzledSharedLayout(4, 8 // CHUNKS, CHUNKS, [2, 1, 0])
    FACTORS: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    return CacheTile(
        gl.allocate_shared_memory(gl.int32, [STAGES, WARPS, KEYS, WORDS], ROWS),
        gl.allocate_shared_memory(gl.int32, [STAGES, WARPS, KEYS, 1], FACTORS),
        gl.allocate_shared_memory(gl.int32, [STAGES, WARPS, KEYS, WORDS], ROWS),
        gl.allocate_shared_memory(gl.int32, [STAGES, WARPS, KEYS, 1], FACTORS),
    )


@gluon.jit
def fill(ring: CacheTile, at, cache: Cache, place: Place, start, pieces: Pieces):
    """Begin to load the keys from `start` on into slot `at` of a ring; their factors `are_aligned_words`."""
    KEYS: gl.constexpr = ring.k.shape[2]
    WORDS: gl.constexpr = ring.k.shape[3]
    CHUNK: gl.constexpr = chunk_of(WORDS, 4)
    ROWS: gl.constexpr = k_layout(gl.num_warps(), KEYS, WORDS, CHUNK)
    LANES: gl.constexpr = lanes_of_keys(gl.num_warps(), KEYS)
    pieces = clamped(pieces, place)
    k_words = words_from(cache.k, place, start, pieces, WORDS, KEYS, CHUNK, 4, ROWS)
    v_words = words_from(cache.v, place, start, pieces, WORDS, KEYS, CHUNK, 4, ROWS)
    async_copy.async_load(ring.k.index(at), k_words)
    async_copy.async_load(ring.v.index(at), v_words)
    async_copy.async_load(ring.k_factors.index(at), rows_from(cache.k_factors, place, start, pieces, 0, KEYS, LANES))
    async_copy.async_load(ring.v_factors.index(at), rows_from(cache.v_factors, place, start, pieces, 0, KEYS, LANES))
    async_copy.commit_group()


@gluon.jit
def read(ring: CacheTile, at):
    """Read the CacheTile in slot `at` of a ring."""
    KEYS: gl.constexpr = ring.k.shape[2]
    WORDS: gl.constexpr = ring.k.shape[3]
    K: gl.constexpr = k_layout(gl.num_warps(), KEYS, WORDS, chunk_of(WORDS, 4))
    V: gl.constexpr = v_layout(gl.num_warps(), KEYS, WORDS, chunk_of(WORDS, 8))
    return CacheTile(
        ring.k.index(at).load(K), ring.k_factors.index(at).load(factors_layout(K)),
        ring.v.index(at).load(V), ring.v_factors.index(at).load(factors_layout(K)),
    )  # fmt: skip


@gluon.jit
def words_from(
    x: Heads, place: Place, start, pieces: Pieces, WORDS: gl.constexpr, KEYS: gl.constexpr, CHUNK: gl.constexpr,
    LANES: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Return pointers to int32 [warps, KEYS, WORDS], the rows of keys from `start` on.

    LANES lanes have CHUNK words each of a row, one lane after the other, and so on.
    """
    words = gl.arange(0, WORDS, layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))[None, None, :]
    own = words & (LANES - 1) * CHUNK  # of a lane; the rest are constant offsets
    pointers = rows_from(x, place, start, pieces, 4 * own, KEYS, LAYOUT) + (words - own)
    return gl.max_contiguous(gl.multiple_of(pointers, [1, 1, 4 * CHUNK]), [1, 1, CHUNK])


@gluon.jit
def load_factors(x: HeadRows, place: Place, start, pieces: Pieces, KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """Load the factors, or (factor, shift) pairs, of the keys from `start` on, at any alignment."""
    words = rows_from(x, place, start, pieces, 0, KEYS, LAYOUT)
    if x.ptr.dtype.element_ty == gl.float32:
        return gl.load(words)
    else:
        halves = words.to(gl.pointer_type(gl.uint16), bitcast=True)
        return gl.load(halves).to(gl.int32) | (gl.load(halves + 1).to(gl.int32) << 16)


@gluon.jit
def are_aligned_words(x: HeadRows):
    """Test whether all factors or pairs are at multiples of 4 bytes. Factors are: they are float32."""
    SIZE: gl.constexpr = x.ptr.dtype.element_ty.primitive_bitwidth // 8
    strides = (x.stride_batch | x.stride_heads | x.stride_rows).to(gl.int64)
    return (x.ptr.to(gl.int64) | SIZE * strides) % 4 == 0


@gluon.jit
def rows_from(x, place: Place, start, pieces: Pieces, columns, KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """Return pointers to words [warps, KEYS, ..] of x (Heads or HeadRows), `columns` bytes after the beginnings of the
    rows of keys from `start` on."""
    SIZE: gl.constexpr = x.ptr.dtype.element_ty.primitive_bitwidth // 8
    stride = (x.stride_rows * SIZE).to(gl.int32)
    head = x.ptr + place.head_kv.to(gl.int64) * x.stride_heads
    if place.tables.ptr is None:
        head += place.batch.to(gl.int64) * x.stride_batch
        rows = gl.minimum(keys_of(start, KEYS, LAYOUT), place.last)
        begin = head.to(gl.int64) + columns
    else:
        first = first_of_pieces(place, start, KEYS, LAYOUT)
        block = gl.convert_layout(pieces.block, first.type.layout).to(gl.int64)
        key = gl.convert_layout(pieces.key, first.type.layout)
        begins = multiply_add(key, stride, block * (x.stride_batch.to(gl.int64) * SIZE))
        rows = gl.minimum(keys_of(0, KEYS, LAYOUT) % PIECE, spread(place.last - first, KEYS, LAYOUT))
        begin = head.to(gl.int64) + columns + spread(begins, KEYS, LAYOUT)[:, :, None]
    return multiply_add(rows[:, :, None], stride, begin).to(gl.pointer_type(gl.int32))


@gluon.jit
def multiply_add(a, b, c):
    """a * b + c in one instruction; a and b have 32 bits, c has 64."""
    return gl.inline_asm_elementwise(
        "mad.wide.s32 $0, $1, $2, $3;", "=l,r,r,l", [a, b, c], dtype=gl.int64, is_pure=True, pack=1
    )


@gluon.jit
def first_of_pieces(place: Place, start, KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """Return [warps, KEYS / PIECE]: the first key of each piece; past the end, of the last piece."""
    SPREAD: gl.constexpr = gl.SliceLayout(2, spread_layout(LAYOUT))
    warp = gl.arange(0, gl.num_warps(), layout=gl.SliceLayout(1, SPREAD))
    piece = gl.arange(0, KEYS // PIECE, layout=gl.SliceLayout(0, SPREAD))
    return gl.minimum(start + warp[:, None] * KEYS + piece[None, :] * PIECE, place.last // PIECE * PIECE)


@gluon.jit
def spread(x, KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """Repeat a value for each piece as one for each key: [warps, KEYS], LAYOUT without its last dim."""
    shape: gl.constexpr = [gl.num_warps(), KEYS // PIECE, PIECE]
    x = x[:, :, None].broadcast_to(shape).reshape([gl.num_warps(), KEYS])
    return gl.convert_layout(x, gl.SliceLayout(2, LAYOUT), assert_trivial=True)


@gluon.jit
def keys_of(start, KEYS: gl.constexpr, LAYOUT: gl.constexpr):
    """Return [warps, KEYS]: the keys from `start` on, LAYOUT without its last dim."""
    ROWS: gl.constexpr = gl.SliceLayout(2, LAYOUT)
    warp = gl.arange(0, gl.num_warps(), layout=gl.SliceLayout(1, ROWS))
    return start + warp[:, None] * KEYS + gl.arange(0, KEYS, layout=gl.SliceLayout(0, ROWS))[None, :]
