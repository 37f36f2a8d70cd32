"""Multi-head latent attention over a prompt, for Hopper, in Gluon: `mla.mla_prefill` with 64 queries a program.

The projections go through the slots of `hopper_latent` like tiles of keys. The first product, of queries and the keys'
projection, has the shape of probabilities times latent vectors. The last one, of the sums and the values' projection,
has the shape of queries times keys.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from kernels.attention.hopper_latent import ROW_LAYOUT, S_LAYOUT, Seen, attend, load_slot, make_buffers, share_queries
from kernels.common.hopper import GROUP_0, GROUP_1, ROWS, accumulator_layout, head_of, matrix, positive, rows_layout
from kernels.common.softmax import LN_2
from kernels.common.tensors import HeadRows, Heads, LatentExtents


@gluon.jit
def mla_prefill_hopper(
    q_nope, q_pe: Heads, kv, k_pe, wkv_b, out: Heads, extents: LatentExtents, scale, right,
    REGISTERS: gl.constexpr,
    lse: HeadRows = None,
):  # fmt: skip
    """out = softmax(scale * (q_nope Wk kv + q_pe k_pe)) kv Wv, a program for each 64 queries of a head.

    Grid: (heads, cdiv(seqlen_q, 64), batch). num_warps is 4: the kernel that is compiled has more.

    The tensors are as in `mla_prefill`, of a head_dim and head_dim_v of 128 and a rope of 64. q_nope, kv, k_pe, wkv_b:
    tensor maps in blocks of [1, 1, 64, 64], [1, 64, HALF], [1, 64, 64] and [1, 64, HALF], of 2 * HALF latent elements.
    Query i sees keys j <= i + seqlen_k - seqlen_q + right. REGISTERS: registers of a thread that multiplies.
    """
    buffers = make_buffers(kv, k_pe)
    first = (gl.num_programs(1) - 1 - gl.program_id(1)) * ROWS  # The blocks that see the most keys come first.
    diagonal = first + extents.seqlen_k - extents.seqlen_q + right
    end = gl.maximum(gl.minimum(extents.seqlen_k, diagonal + ROWS), 0)
    keys = (gl.cdiv(end, ROWS), gl.minimum(extents.seqlen_k, gl.maximum(diagonal + 1, 0)) // ROWS, diagonal)
    gl.warp_specialize([
        (attend_prompt, (q_pe, out, lse, extents, buffers, first, keys, scale, GROUP_0)),
        (attend_prompt, (q_pe, out, lse, extents, buffers, first, keys, scale, GROUP_1)),
        (load_all, (q_nope, kv, k_pe, wkv_b, buffers, first, keys)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip


@gluon.jit
def load_all(q_nope, kv, k_pe, wkv_b, buffers, first, keys):
    """Fill the slots with the projection of the keys and the queries, the keys, and the projection of the values."""
    head, batch = gl.program_id(0), gl.program_id(2)
    tiles, _, _ = keys
    for slot in gl.static_range(2):
        load_slot(wkv_b, ((head, slot * ROWS),), q_nope, ([batch, head, first, slot * 64],), buffers, 0, slot)
    for i in range((tiles + 1) // 2):
        for slot in gl.static_range(2):
            if 2 * i + slot < tiles:
                row = (2 * i + slot) * ROWS
                load_slot(kv, ((batch, row),), k_pe, ([batch, row, 0],), buffers, i + 1 & 1, slot)
    for slot in gl.static_range(2):
        load_slot(wkv_b, ((head, (2 + slot) * ROWS),), None, None, buffers, uses_of(tiles, slot) & 1, slot)


@gluon.jit
def uses_of(tiles, SLOT: gl.constexpr):
    """Count how many times a slot is filled before the projection of the values."""
    return 1 + (tiles + 1 - SLOT) // 2


@gluon.jit
def attend_prompt(
    q_pe: Heads, out: Heads, lse: HeadRows, extents: LatentExtents, buffers, first, keys, scale, ME: gl.constexpr
):  # fmt: skip
    """Compute group ME's half of the latent columns, then of the columns of the result."""
    DTYPE: gl.constexpr = buffers.latent.dtype
    head, batch = gl.program_id(0), gl.program_id(2)
    sign, scale = positive(scale)
    if ME == 0:
        load_rotated(q_pe, buffers.q_rotated.index(0), batch, head, first, extents.seqlen_q, sign)
    absorbed = absorb(buffers, ME)
    buffers.q.index(ME).store((absorbed * sign).to(DTYPE))
    share_queries(buffers, 0)
    for slot in gl.static_range(2):
        mbarrier.arrive(buffers.free.index(2 * slot + ME))

    tiles, whole, diagonal = keys
    rows = gl.arange(0, ROWS, layout=ROW_LAYOUT)
    last = gl.minimum(diagonal + rows, extents.seqlen_k - 1)
    seen = Seen(0, tiles, whole, last, extents.seqlen_k)
    acc, row_max, row_sum = attend(buffers, seen, scale, 1, False, ME)
    if ME == 0:
        store_lse(lse, batch, head, first + rows, row_max, row_sum, extents.seqlen_q)

    acc *= gl.convert_layout(1.0 / gl.where(row_sum == 0.0, 1.0, row_sum), gl.SliceLayout(1, acc.type.layout))[:, None]
    buffers.q.index(ME).store(acc.to(DTYPE))
    share_queries(buffers, 1)
    project(out, buffers, batch, head, first, extents.seqlen_q, uses_of(tiles, ME) & 1, ME)


@gluon.jit
def load_rotated(q_pe: Heads, buffer, batch, head, first, seqlen_q, sign):
    """Store the rotated part of the queries, times `sign`, in a buffer."""
    LAYOUT: gl.constexpr = rows_layout(64)
    rows = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, 64, layout=gl.SliceLayout(0, LAYOUT))
    pointers = head_of(q_pe, batch, head) + rows[:, None].to(gl.int64) * q_pe.stride_rows + columns[None, :]
    values = gl.load(pointers, mask=(rows < seqlen_q)[:, None], other=0.0)
    buffer.store((values.to(gl.float32) * sign).to(values.dtype))


@gluon.jit
def absorb(buffers, ME: gl.constexpr):
    """Return the queries without rotation times half of the columns of the keys' projection, which is in the slots."""
    HALF: gl.constexpr = buffers.latent.shape[3]
    O_LAYOUT: gl.constexpr = accumulator_layout(HALF, buffers.latent.dtype)
    acc = gl.zeros([ROWS, HALF], gl.float32, O_LAYOUT)
    for slot in gl.static_range(2):
        for half in gl.static_range(2):
            mbarrier.wait(buffers.ready.index(2 * slot + half), 0)
        queries = matrix(buffers.rotated.index(slot))
        projection = matrix(buffers.latent.index(2 * slot + ME))
        acc = warpgroup_mma(queries, projection, acc, use_acc=slot > 0, is_async=True)
    return warpgroup_mma_wait(0, deps=[acc])


@gluon.jit
def project(out: Heads, buffers, batch, head, first, seqlen_q, phase, ME: gl.constexpr):
    """Multiply the sums of latent vectors, which replaced the queries, by a group's rows of the values' projection."""
    product = gl.zeros([ROWS, ROWS], gl.float32, S_LAYOUT)
    for half in gl.static_range(2):
        mbarrier.wait(buffers.ready.index(2 * ME + half), phase)
        projection = matrix(buffers.latent.index(2 * ME + half)).permute((1, 0))
        product = warpgroup_mma(buffers.q.index(half), projection, product, use_acc=half > 0, is_async=True)
    product = warpgroup_mma_wait(0, deps=[product])
    rows = first + gl.arange(0, ROWS, layout=ROW_LAYOUT)
    columns = ME * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(0, S_LAYOUT))
    pointers = head_of(out, batch, head) + rows[:, None].to(gl.int64) * out.stride_rows + columns[None, :]
    gl.store(pointers, product.to(out.ptr.dtype.element_ty), mask=(rows < seqlen_q)[:, None])


@gluon.jit
def store_lse(lse: HeadRows, batch, head, rows, row_max, row_sum, seqlen_q):
    """Store the natural logarithm of each row's sum of exponentials, if it is wanted."""
    if lse.ptr is not None:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
        if lse.ptr.to(gl.int64, bitcast=True) != 0:
            rows_of_head = head_of(lse, batch, head)
            values = (row_max + gl.log2(row_sum)) * LN_2
            gl.store(rows_of_head + rows.to(gl.int64) * lse.stride_rows, values, mask=rows < seqlen_q)
