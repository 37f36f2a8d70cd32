"""Gluon kernels: two with AMD's instructions, for gfx942, and one with NVIDIA's, for sm_90."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

TILE = gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0])
VECTOR = {2: 8, 4: 4}


@gluon.constexpr_function
def row_layout(block, warps, bytes_of_element):
    elements = min(VECTOR[bytes_of_element], max(block // (64 * warps), 1))
    return gl.BlockedLayout([elements], [64], [warps], [0])


@gluon.jit
def normalised(x, cols, eps):
    return x * gl.rsqrt(gl.sum(x * x, 0) / cols + eps)


@gluon.jit
def rms_norm(x, weight, out, cols, stride_x_rows, stride_out_rows, eps, BLOCK: gl.constexpr):
    row = gl.program_id(0)
    layout: gl.constexpr = row_layout(BLOCK, gl.num_warps(), x.dtype.element_ty.primitive_bitwidth // 8)
    i = gl.arange(0, BLOCK, layout=layout)
    inside = i < cols
    values = gl.amd.cdna3.buffer_load(x + row * stride_x_rows, i, mask=inside, other=0.0).to(gl.float32)
    weights = gl.amd.cdna3.buffer_load(weight, i, mask=inside).to(gl.float32)
    result = (normalised(values, cols, eps) * weights).to(out.dtype.element_ty)
    gl.amd.cdna3.buffer_store(result, out + row * stride_out_rows, i, mask=inside)


@gluon.jit
def copy(x, out, n, layout: gl.constexpr, BLOCK: gl.constexpr, parent: gl.constexpr = TILE):
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.static_assert(parent.order == [1, 0])
    gl.store(out + i, gl.load(x + i, mask=i < n), mask=i < n)


@gluon.jit
def offsets_of(rows, cols, stride):
    return rows[:, None] * stride + cols[None, :]


@gluon.jit
def matmul(a, b, c, m, n, k, stride_a_m, stride_b_k, stride_c_m, BLOCK: gl.constexpr, BLOCK_K: gl.constexpr):
    rows = gl.program_id(0) * BLOCK
    cols = gl.program_id(1) * BLOCK
    mma: gl.constexpr = gl.amd.AMDMFMALayout(version=3, instr_shape=[16, 16, 16], transposed=True, warps_per_cta=[2, 2])
    shared: gl.constexpr = gl.SwizzledSharedLayout(vec=4, per_phase=1, max_phase=8, order=[1, 0])
    a_tile = gl.allocate_shared_memory(a.dtype.element_ty, [BLOCK, BLOCK_K], shared)
    b_tile = gl.allocate_shared_memory(b.dtype.element_ty, [BLOCK_K, BLOCK], shared)
    tile_rows = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, TILE))
    tile_cols = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, TILE))
    k_rows = gl.arange(0, BLOCK_K, layout=gl.SliceLayout(1, TILE))
    k_cols = gl.arange(0, BLOCK_K, layout=gl.SliceLayout(0, TILE))
    acc = gl.zeros([BLOCK, BLOCK], gl.float32, mma)
    for start in range(0, k, BLOCK_K):
        a_values = gl.amd.cdna3.buffer_load(
            a,
            offsets_of(rows + tile_rows, start + k_cols, stride_a_m),
            mask=(rows + tile_rows < m)[:, None] & (start + k_cols < k)[None, :],
            other=0.0,
        )
        b_values = gl.amd.cdna3.buffer_load(
            b,
            offsets_of(start + k_rows, cols + tile_cols, stride_b_k),
            mask=(start + k_rows < k)[:, None] & (cols + tile_cols < n)[None, :],
            other=0.0,
        )
        gl.barrier()
        a_tile.store(a_values)
        b_tile.store(b_values)
        gl.barrier()
        acc = gl.amd.cdna3.mfma(
            a_tile.load(gl.DotOperandLayout(0, mma, 4)), b_tile.load(gl.DotOperandLayout(1, mma, 4)), acc
        )
    c_rows = rows + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, mma))
    c_cols = cols + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, mma))
    gl.amd.cdna3.buffer_store(
        acc.to(c.dtype.element_ty),
        c,
        offsets_of(c_rows, c_cols, stride_c_m),
        mask=(c_rows < m)[:, None] & (c_cols < n)[None, :],
    )


@gluon.jit
def load_blocks(x, tile, filled, drained, blocks):
    for i in range(blocks):
        mbarrier.wait(drained, (i & 1) ^ 1)
        mbarrier.expect(filled, x.nbytes_per_cta)
        tma.async_load(x, [gl.program_id(0) * x.block_shape[0], i * x.block_shape[1]], filled, tile)


@gluon.jit
def scale_blocks(out, tile, result, filled, drained, blocks, factor, LAYOUT: gl.constexpr):
    for i in range(blocks):
        mbarrier.wait(filled, i & 1)
        values = tile.load(LAYOUT)
        mbarrier.arrive(drained)
        tma.store_wait(0)
        result.store((values.to(gl.float32) * factor).to(out.dtype))
        fence_async_shared()
        tma.async_store(out, [gl.program_id(0) * out.block_shape[0], i * out.block_shape[1]], result)
    tma.store_wait(0)


@gluon.jit
def scale_by_tma(
    x, out, rows, cols, stride_x_rows, stride_out_rows, factor, BLOCK_ROWS: gl.constexpr, BLOCK_COLS: gl.constexpr
):
    """Scale with tensor maps that are made here, in the program's scratch memory."""
    block: gl.constexpr = [BLOCK_ROWS, BLOCK_COLS]
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for(block, x.dtype.element_ty)
    x_map = tma.make_tensor_descriptor(x, [rows, cols], [stride_x_rows, 1], block, shared)
    out_map = tma.make_tensor_descriptor(out, [rows, cols], [stride_out_rows, 1], block, shared)
    scale_by_maps(x_map, out_map, cols, factor)


@gluon.jit
def scale_by_maps(x, out, cols, factor):
    """Scale: one warp loads, four compute. x, out: tensor maps of [rows, cols] with equal blocks and layouts."""
    registers: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    tile = gl.allocate_shared_memory(x.dtype, x.block_shape, x.layout)
    result = gl.allocate_shared_memory(out.dtype, out.block_shape, out.layout)
    filled, drained = mbarrier.allocate_mbarrier(), mbarrier.allocate_mbarrier()
    mbarrier.init(filled, count=1)
    mbarrier.init(drained, count=1)
    blocks = gl.cdiv(cols, x.block_shape[1])
    gl.warp_specialize([
        (scale_blocks, (out, tile, result, filled, drained, blocks, factor, registers)),
        (load_blocks, (x, tile, filled, drained, blocks)),
    ], [1], [24])  # fmt: skip
