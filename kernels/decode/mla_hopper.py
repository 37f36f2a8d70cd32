"""Multi-head latent attention while decoding, for Hopper, in Gluon: `mla.mla_split` with 64 rows a program."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernels.attention.hopper_latent import ROW_LAYOUT, Seen, attend, load_slot, make_buffers, share_queries
from kernels.common.hopper import GROUP_0, GROUP_1, ROWS, positive, rows_layout
from kernels.common.softmax import LN_2
from kernels.common.tensors import HeadRows, Heads
from kernels.decode.cache import BlockTables
from kernels.decode.parts import Parts, Sequence, part, sequence_of

LOADED = gl.constexpr(16)
"""Rows of queries that are loaded at a time; more would take too many registers."""


class RowTile(NamedTuple):
    """ROWS (token, head) rows of a sequence from row `first` on, of `heads` heads."""

    sequence: Sequence
    first: gl.tensor
    heads: gl.tensor


@gluon.jit
def mla_split_hopper(
    q: Heads, cache, rotated, out: Heads, lse: HeadRows, parts: Parts,
    block_tables: BlockTables, seqlens_k, cu_seqlens_q, heads, total_q, max_seqlen_q, seqlen_k, scale,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """Fold one of parts.splits parts of a sequence's rows into a softmax, for 64 (token, head) rows of queries.

    Grid: (cdiv(max_seqlen_q * heads, 64) * splits, batch). num_warps is 4: the kernel that is compiled has more.

    q, out and the rest are as in `mla_split`. cache, rotated: tensor maps of the cache [blocks, block_size, columns] in
    boxes [1, HEIGHT, HALF] and [1, HEIGHT, 64]: its rows have 2 * HALF latent elements and 64 rotated ones. HEIGHT is
    64 or 16, and block_size a multiple of it. REGISTERS: registers of a thread that multiplies.
    """
    block, split = gl.program_id(0) // parts.splits, gl.program_id(0) % parts.splits
    batch = gl.program_id(1)
    sequence = sequence_of(batch, max_seqlen_q, seqlen_k, cu_seqlens_q, total_q, seqlens_k)
    first = block * ROWS
    rows_left = sequence.queries * heads - first
    offset = sequence.keys - sequence.queries
    end = gl.minimum((first + ROWS - 1) // heads + 1 + offset, sequence.keys)
    begin, end = part(0, gl.where(rows_left > 0, end, 0), split, parts.splits, ROWS)
    tiles = gl.cdiv(gl.maximum(end - begin, 0), ROWS)
    buffers = make_buffers(cache, rotated)
    tile = RowTile(sequence, first, heads)
    span = (begin // ROWS, tiles)
    gl.warp_specialize([
        (attend_rows, (q, out, lse, parts, buffers, tile, span, split, scale, GROUP_0)),
        (attend_rows, (q, out, lse, parts, buffers, tile, span, split, scale, GROUP_1)),
        (load_keys, (cache, rotated, buffers, block_tables, sequence, span)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip


@gluon.jit
def load_keys(cache, rotated, buffers, block_tables, sequence, span):
    """Fill the slots with all tiles of keys."""
    first, tiles = span
    for i in range((tiles + 1) // 2):
        for slot in gl.static_range(2):
            if 2 * i + slot < tiles:
                load_tile(cache, rotated, buffers, block_tables, sequence, (first + 2 * i + slot) * ROWS, i & 1, slot)


@gluon.jit
def load_tile(cache, rotated, buffers, block_tables, sequence, start, phase, SLOT: gl.constexpr):
    """Load a tile of keys, from key `start` on, into a slot."""
    HEIGHT: gl.constexpr = cache.block_shape[1]
    LATENT: gl.constexpr = 2 * cache.block_shape[2]
    if HEIGHT == ROWS:
        places = (find(block_tables, sequence, start, HEIGHT),)
        at = ([places[0][0], places[0][1], LATENT],)
    else:
        gl.static_assert(4 * HEIGHT == ROWS)
        a, b = find(block_tables, sequence, start, HEIGHT), find(block_tables, sequence, start + HEIGHT, HEIGHT)
        c = find(block_tables, sequence, start + 2 * HEIGHT, HEIGHT)
        d = find(block_tables, sequence, start + 3 * HEIGHT, HEIGHT)
        places = (a, b, c, d)
        at = ([a[0], a[1], LATENT], [b[0], b[1], LATENT], [c[0], c[1], LATENT], [d[0], d[1], LATENT])
    load_slot(cache, places, rotated, at, buffers, phase, SLOT)


@gluon.jit
def find(block_tables, sequence, start, HEIGHT: gl.constexpr):
    """Return (block of the cache, row in it) of the HEIGHT keys from `start` on; past the end, of the last ones."""
    start = gl.minimum(start, (sequence.keys - 1) // HEIGHT * HEIGHT)
    entry = start // block_tables.block_size
    block = gl.load(block_tables.ptr + sequence.batch.to(gl.int64) * block_tables.stride_batch + entry)
    return gl.minimum(gl.maximum(block, 0), block_tables.blocks - 1), start - entry * block_tables.block_size


@gluon.jit
def attend_rows(
    q: Heads, out: Heads, lse: HeadRows, parts: Parts, buffers, tile, span, split, scale, ME: gl.constexpr
):  # fmt: skip
    """Compute group ME's half of the columns of a tile of rows."""
    HALF: gl.constexpr = buffers.latent.shape[3]
    sequence = tile.sequence
    sign, scale = positive(scale)
    load_queries(q, buffers, tile, sign, ME)
    share_queries(buffers, 0)

    first, tiles = span
    offset = sequence.keys - sequence.queries
    tokens, _, _ = place_of(tile, gl.arange(0, ROWS, layout=ROW_LAYOUT))
    whole = (tile.first // tile.heads + offset + 1) // ROWS
    seen = Seen(first, tiles, gl.maximum(whole, 0), tokens + offset, sequence.keys)
    acc, row_max, row_sum = attend(buffers, seen, scale, 0, True, ME)

    acc *= gl.convert_layout(1.0 / gl.where(row_sum == 0.0, 1.0, row_sum), gl.SliceLayout(1, acc.type.layout))[:, None]
    if ME == 0:
        store_row_lse(row_max + gl.log2(row_sum), lse, parts, tile, split)
    store_sums(acc, out, parts, tile, split, ME * HALF)


@gluon.jit
def place_of(tile, rows):
    """Return (tokens within the sequence, heads, is present) of rows of a tile."""
    rows = tile.first + rows
    present = rows < tile.sequence.queries * tile.heads
    return gl.maximum(gl.minimum(rows // tile.heads, tile.sequence.queries - 1), 0), rows % tile.heads, present


@gluon.jit
def load_queries(q: Heads, buffers, tile, sign, ME: gl.constexpr):
    """Load half of the columns of the rows of queries, and group 0 the rotated part."""
    HALF: gl.constexpr = buffers.latent.shape[3]
    load_columns(q, buffers.q.index(ME), tile, ME * HALF, sign)
    if ME == 0:
        load_columns(q, buffers.q_rotated.index(0), tile, 2 * HALF, sign)


@gluon.jit
def load_columns(q: Heads, buffer, tile, first, sign):
    """Store columns from `first` on of the rows of queries, times `sign`, in a buffer; 0 in rows past the end."""
    COLUMNS: gl.constexpr = buffer.shape[1]
    LAYOUT: gl.constexpr = rows_layout(COLUMNS)
    columns = first + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LAYOUT))
    for i in gl.static_range(ROWS // LOADED):
        rows = gl.arange(i * LOADED, (i + 1) * LOADED, layout=gl.SliceLayout(1, LAYOUT))
        tokens, heads, present = place_of(tile, rows)
        offsets = (tile.sequence.first_token + tokens).to(gl.int64) * q.stride_rows
        offsets += heads.to(gl.int64) * q.stride_heads
        values = gl.load(q.ptr + offsets[:, None] + columns[None, :], mask=present[:, None], other=0.0)
        buffer.slice(i * LOADED, LOADED).store((values.to(gl.float32) * sign).to(values.dtype))


@gluon.jit
def store_row_lse(row_lse, lse: HeadRows, parts: Parts, tile, split):
    """Store row_lse, to base 2, as `parts.store_rows` does."""
    tokens, heads, present = place_of(tile, gl.arange(0, ROWS, layout=ROW_LAYOUT))
    if parts.splits > 1:
        place = ((tile.sequence.first_query + tokens).to(gl.int64) * tile.heads + heads) * parts.splits + split
        gl.store(parts.partial_lse + place, row_lse, mask=present)
    elif lse.ptr.to(gl.int64, bitcast=True) != 0:
        offsets = (tile.sequence.first_token + tokens).to(gl.int64) * lse.stride_rows
        gl.store(lse.ptr + offsets + heads.to(gl.int64) * lse.stride_heads, row_lse * LN_2, mask=present)


@gluon.jit
def store_sums(acc, out: Heads, parts: Parts, tile, split, first):
    """Store columns from `first` on of the normalised sums, as `parts.store_rows` does."""
    HALF: gl.constexpr = acc.shape[1]
    tokens, heads, present = place_of(tile, gl.arange(0, ROWS, layout=gl.SliceLayout(1, acc.type.layout)))
    columns = first + gl.arange(0, HALF, layout=gl.SliceLayout(0, acc.type.layout))
    if parts.splits > 1:
        place = ((tile.sequence.first_query + tokens).to(gl.int64) * tile.heads + heads) * parts.splits + split
        gl.store(parts.partial + (place * (2 * HALF))[:, None] + columns[None, :], acc, mask=present[:, None])
    else:
        offsets = (tile.sequence.first_token + tokens).to(gl.int64) * out.stride_rows
        offsets += heads.to(gl.int64) * out.stride_heads
        values = acc.to(out.ptr.dtype.element_ty)
        gl.store(out.ptr + offsets[:, None] + columns[None, :], values, mask=present[:, None])
