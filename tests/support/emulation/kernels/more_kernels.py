"""Kernels with what is less usual: sorts, scans, gathers, random numbers, bits, scaled and emulated dot products."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def gathers(x, index, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr, AXIS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out + at, tl.gather(tl.load(x + at), tl.load(index + at), AXIS))


@triton.jit
def library(x, out, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=1.0)
    r = v
    if FUNCTION == "acos":
        r = libdevice.acos(v)
    elif FUNCTION == "asin":
        r = libdevice.asin(v)
    elif FUNCTION == "atan":
        r = libdevice.atan(v)
    elif FUNCTION == "atan2":
        r = libdevice.atan2(v, v + 1)
    elif FUNCTION == "cosh":
        r = libdevice.cosh(v)
    elif FUNCTION == "erfc":
        r = libdevice.erfc(v)
    elif FUNCTION == "expm1":
        r = libdevice.expm1(v)
    elif FUNCTION == "lgamma":
        r = libdevice.lgamma(v)
    elif FUNCTION == "log1p":
        r = libdevice.log1p(v)
    elif FUNCTION == "fmod":
        r = libdevice.fmod(v, v * v * 0.01 + 0.3)
    elif FUNCTION == "hypot":
        r = libdevice.hypot(v, v + 2)
    elif FUNCTION == "nextafter":
        r = libdevice.nextafter(v, v + 1)
    elif FUNCTION == "rint":
        r = libdevice.rint(v)
    elif FUNCTION == "tan":
        r = libdevice.tan(v)
    elif FUNCTION == "sin":
        r = libdevice.sin(v)
    elif FUNCTION == "cos":
        r = libdevice.cos(v)
    elif FUNCTION == "ilogb":
        r = libdevice.ilogb(v).to(v.dtype)
    tl.store(out + at, r, mask=at < n)


@triton.jit
def dot(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, OUT: tl.constexpr):
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + rows[:, None] * K + inner[None, :])
    right = tl.load(b + inner[:, None] * N + columns[None, :])
    if OUT == "int32":
        total = tl.dot(left, right, out_dtype=tl.int32)
    else:
        total = tl.dot(left, right, input_precision=PRECISION)
    tl.store(c + rows[:, None] * N + columns[None, :], total)


@triton.jit
def scaled_matmul(
    a, a_scale, b, b_scale, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
    B_PACKED_ALONG_K: tl.constexpr,
):  # fmt: skip
    """c = (a * scales) (b * scales), of microscaling formats; fp4 comes two to a byte."""
    A_PACK: tl.constexpr = 2 if A == "e2m1" else 1
    B_PACK: tl.constexpr = 2 if B == "e2m1" and B_PACKED_ALONG_K else 1
    N_PACK: tl.constexpr = 2 if B == "e2m1" and not B_PACKED_ALONG_K else 1
    rows, columns, blocks = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 32)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        inner = start // A_PACK + tl.arange(0, K // A_PACK)
        left = tl.load(a + rows[:, None] * (k // A_PACK) + inner[None, :])
        inner = start // B_PACK + tl.arange(0, K // B_PACK)
        packed = tl.arange(0, N // N_PACK)
        right = tl.load(b + inner[:, None] * (N // N_PACK) + packed[None, :])
        at = start // 32 + blocks[None, :]
        left_scale = tl.load(a_scale + rows[:, None] * (k // 32) + at)
        right_scale = tl.load(b_scale + columns[:, None] * (k // 32) + at)
        total = tl.dot_scaled(left, left_scale, A, right, right_scale, B, total, rhs_k_pack=B_PACKED_ALONG_K)
    tl.store(c + rows[:, None] * N + columns[None, :], total)


@triton.jit
def attention(q, k, v, out, n, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Two chained dot products in a loop; no masks."""
    rows, dims = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    query = tl.load(q + rows[:, None] * HEAD_DIM + dims[None, :])
    total = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    largest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, n, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        scores = tl.dot(query, tl.load(k + keys[None, :] * HEAD_DIM + dims[:, None]))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        p = tl.exp2(scores - new_largest[:, None])
        factor = tl.exp2(largest - new_largest)
        weight = weight * factor + tl.sum(p, 1)
        value = tl.load(v + keys[:, None] * HEAD_DIM + dims[None, :])
        total = tl.dot(p.to(query.dtype), value, total * factor[:, None])
        largest = new_largest
    tl.store(out + rows[:, None] * HEAD_DIM + dims[None, :], (total / weight[:, None]).to(out.dtype.element_ty))


@triton.jit
def printing(x, BLOCK: tl.constexpr):
    tl.device_print("x", tl.load(x + tl.arange(0, BLOCK)))
