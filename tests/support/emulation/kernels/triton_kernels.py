"""Kernels that together make Triton emit most of its instructions."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def matmul(
    a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
    PRECISION: tl.constexpr = None,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.program_id(2) * BLOCK_K + tl.arange(0, BLOCK_K)
    kind: tl.constexpr = (
        tl.int32 if a.dtype.element_ty == tl.int8 else tl.float64 if a.dtype.element_ty == tl.float64 else tl.float32
    )
    total = tl.zeros((BLOCK_M, BLOCK_N), kind)
    for start in range(0, k, BLOCK_K * SPLIT_K):
        at = start + inner
        left = tl.load(a + rows[:, None] * k + at[None, :], mask=(rows[:, None] < m) & (at[None, :] < k), other=0.0)
        right = tl.load(
            b + at[:, None] * n + columns[None, :], mask=(at[:, None] < k) & (columns[None, :] < n), other=0.0
        )
        total = tl.dot(left, right, total, input_precision=PRECISION, out_dtype=kind)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    target = c + rows[:, None] * n + columns[None, :]
    if SPLIT_K > 1:
        tl.atomic_add(target, total, mask=inside)
    else:
        tl.store(target, total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def matmul_blocks(a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """No masks: every extent is a multiple of its block."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    left = a + rows[:, None] * k + inner[None, :]
    right = b + inner[:, None] * n + columns[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, k, BLOCK_K):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += BLOCK_K
        right += BLOCK_K * n
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty))


@triton.jit
def scaled_matmul(
    a, a_scale, b, b_scale, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
    B_PACKED_ALONG_K: tl.constexpr,
):  # fmt: skip
    """Compute c = (a * scales) (b * scales) of microscaling formats; fp4 comes two to a byte."""
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


# Many functions a kernel: of each, a row of the output


@triton.jit
def float_functions(x, y, out, BLOCK: tl.constexpr):
    """Apply functions of floats; y is positive."""
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + 0 * BLOCK + at, tl.exp(a))
    tl.store(out + 1 * BLOCK + at, tl.log(b))
    tl.store(out + 2 * BLOCK + at, tl.exp2(a))
    tl.store(out + 3 * BLOCK + at, tl.log2(b))
    tl.store(out + 4 * BLOCK + at, tl.sin(a))
    tl.store(out + 5 * BLOCK + at, tl.cos(a))
    tl.store(out + 6 * BLOCK + at, tl.sqrt(b))
    tl.store(out + 7 * BLOCK + at, tl.rsqrt(b))
    tl.store(out + 8 * BLOCK + at, tl.erf(a))
    tl.store(out + 9 * BLOCK + at, libdevice.tanh(a))
    tl.store(out + 10 * BLOCK + at, tl.sigmoid(a))
    tl.store(out + 11 * BLOCK + at, tl.floor(a))
    tl.store(out + 12 * BLOCK + at, tl.ceil(a))
    tl.store(out + 13 * BLOCK + at, libdevice.pow(b, a))
    tl.store(out + 14 * BLOCK + at, a / b)
    tl.store(out + 15 * BLOCK + at, tl.fma(a, b, a))
    tl.store(out + 16 * BLOCK + at, tl.maximum(a, b))
    tl.store(out + 17 * BLOCK + at, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 18 * BLOCK + at, tl.clamp(a, -b, b))
    tl.store(out + 19 * BLOCK + at, libdevice.atan2(a, b))
    tl.store(out + 20 * BLOCK + at, libdevice.expm1(a))
    tl.store(out + 21 * BLOCK + at, libdevice.lgamma(b))
    tl.store(out + 22 * BLOCK + at, libdevice.fmod(a, b))
    tl.store(out + 23 * BLOCK + at, libdevice.ilogb(b).to(a.dtype))


@triton.jit
def integer_functions(x, y, out, BLOCK: tl.constexpr):
    """Apply functions of integers; y is positive."""
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + 0 * BLOCK + at, a // b)
    tl.store(out + 1 * BLOCK + at, a % b)
    tl.store(out + 2 * BLOCK + at, a * b)
    tl.store(out + 3 * BLOCK + at, a << (b & 7))
    tl.store(out + 4 * BLOCK + at, a >> (b & 7))
    tl.store(out + 5 * BLOCK + at, (a < b).to(a.dtype))


@triton.jit
def casts(x, first, second, third, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(first + at, value.to(first.dtype.element_ty))
    tl.store(second + at, value.to(second.dtype.element_ty))
    tl.store(third + at, value.to(third.dtype.element_ty))


@triton.jit
def rearrangements(x, index, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    size: tl.constexpr = ROWS * COLUMNS
    values = tl.load(x + at)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    tl.store(out + at, tl.cumsum(values, 1))
    tl.store(out + size + at, tl.sort(values, 1))
    tl.store(out + 2 * size + at, tl.gather(values, tl.load(index + at), 1))
    tl.store(out + 3 * size + column[:, None] * ROWS + row[None, :], tl.trans(values))
    tl.store(out + 4 * size + row, tl.max(values, 1))
    tl.store(out + 4 * size + ROWS + row, tl.argmin(values, 1).to(tl.float32))
    tl.store(out + 4 * size + 2 * ROWS + row, tl.sum(values, 1))


@triton.jit
def atomics(x, out, order, n, BLOCK: tl.constexpr):
    """Count into out: seven each of maxima, minima, sums and, of integers, exclusive ors."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside, other=0)
    tl.atomic_max(out + at % 7, value, mask=inside)
    tl.atomic_min(out + 7 + at % 7, value, mask=inside)
    before = tl.atomic_add(out + 14 + at % 7, value, mask=inside)
    tl.store(order + at, before, mask=inside)
    if value.dtype.is_int():
        tl.atomic_xor(out + 21 + at % 7, value, mask=inside)


@triton.jit
def locked_sum(lock, total, values):
    """Each program adds its value under a spin lock."""
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    before = tl.load(total, volatile=True)
    tl.debug_barrier()  # every wavefront loads, one stores
    tl.store(total, before + tl.load(values + tl.program_id(0)))
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit(noinline=True)
def _halved(value):
    return value // 2


@triton.jit
def collatz(x, out):
    """Loop for a length that differs from program to program, with real calls (s_getpc, s_swappc and s_setpc); the grid
    has three dimensions."""
    program = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
    value = tl.load(x + program)
    steps = 0
    while value != 1:
        value = tl.where(value % 2 == 0, _halved(value), 3 * value + 1)
        steps += 1
    tl.store(out + program, steps)


@triton.jit
def printing(x, BLOCK: tl.constexpr):
    tl.device_print("x", tl.load(x + tl.arange(0, BLOCK)))


@triton.jit
def double_and_add(x, y, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Double x [BLOCK] in place; add the sum that it had to y [WIDE]."""
    at, wide = tl.arange(0, BLOCK), tl.arange(0, WIDE)
    values = tl.load(x + at)
    total = tl.sum(values, 0)
    tl.store(x + at, values * 2)
    tl.store(y + wide, tl.load(y + wide) + total)
