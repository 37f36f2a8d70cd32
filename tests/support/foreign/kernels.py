"""Kernels in styles found elsewhere, whose parameters were not designed for a manifest."""

import triton
import triton.language as tl


@triton.jit
def squares_kernel(
    x_ptr, bias_ptr, mask_ptr, out_ptr, N, stride_xm, stride_bm, stride_om,
    compute_type: tl.constexpr, BLOCK_SIZE: tl.constexpr, acc_type: tl.constexpr = tl.float32,
):  # fmt: skip
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK_SIZE)
    mask = offsets < N
    x = tl.load(x_ptr + row * stride_xm + offsets, mask=mask).to(compute_type)
    value = (x * x).to(acc_type)
    if bias_ptr is not None:
        value += tl.load(bias_ptr + row * stride_bm + offsets, mask=mask)
    if mask_ptr is not None:
        value = tl.where(tl.load(mask_ptr + offsets, mask=mask), value, 0.0)
    tl.store(out_ptr + row * stride_om + offsets, value, mask=mask)


@triton.jit
def rounded_kernel(x_ptr, out_ptr, n_elements, BLOCK_SIZE: tl.constexpr, TO: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask).to(TO).to(tl.float32), mask=mask)


@triton.jit
def planes_kernel(planes, out_ptr, strides, weights, shape: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Compute the weighted sum of a tuple of pointers to arrays of one shape and the same strides."""
    rows, cols = shape
    stride_row, stride_col = strides
    offsets = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offsets < rows * cols
    at = offsets // cols * stride_row + offsets % cols * stride_col
    total = tl.zeros([BLOCK_SIZE], tl.float32)
    for i in tl.static_range(len(planes)):
        if planes[i] is not None:
            total += weights[i] * tl.load(planes[i] + at, mask=mask)
    tl.store(out_ptr + offsets, total, mask=mask)


@triton.jit
def host_descriptor_kernel(a_desc, out_desc, corner_ptr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    row, col = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    tile = a_desc.load([row, col])
    out_desc.store([row, col], tile * 2)
    corner = tl.sum(tl.where((tl.arange(0, BLOCK_M) == BLOCK_M - 1)[:, None], tile, 0))
    if (row + BLOCK_M >= a_desc.shape[0]) & (col == 0):
        tl.store(corner_ptr, corner)


@triton.jit
def device_descriptor_kernel(x_ptr, out_ptr, M, N, stride_xm, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    x_desc = tl.make_tensor_descriptor(x_ptr, [M, N], [stride_xm, 1], [BLOCK_M, BLOCK_N])
    out_desc = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    row, col = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    out_desc.store([row, col], x_desc.load([row, col]) * 2)


@triton.jit
def prefix_kernel(
    x_ptr, out_ptr, seqlens, shift, N, VARLEN: tl.constexpr, BLOCK_SIZE: tl.constexpr, num_stages: tl.constexpr
):
    """`seqlens` is a pointer where VARLEN, else the one length of all rows; `shift` is a pointer or None."""
    row = tl.program_id(0)
    if VARLEN:  # noqa: SIM108 (a pointer or a number)
        length = tl.load(seqlens + row)
    else:
        length = seqlens
    total = 0.0
    for start in tl.range(0, length, BLOCK_SIZE, num_stages=num_stages):
        offsets = start + tl.arange(0, BLOCK_SIZE)
        total += tl.sum(tl.load(x_ptr + row * N + offsets, mask=offsets < length, other=0.0))
    if shift is not None:
        total += tl.load(shift) * num_stages
    tl.store(out_ptr + row, total)
