"""Kernels that between them make Triton emit most of what it can for gfx9."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def layernorm(x, weight, bias, out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, 0) / columns
    centred = tl.where(inside, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / columns + eps)
    result = centred * scale * tl.load(weight + column, mask=inside) + tl.load(bias + column, mask=inside)
    tl.store(out + row * columns + column, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def matmul(
    a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
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
        total = tl.dot(left, right, total, out_dtype=kind)
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
def unary(x, out, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    v = tl.load(x + at, mask=inside, other=1.0)
    if FUNCTION == "exp":
        r = tl.exp(v)
    elif FUNCTION == "log":
        r = tl.log(v)
    elif FUNCTION == "exp2":
        r = tl.exp2(v)
    elif FUNCTION == "log2":
        r = tl.log2(v)
    elif FUNCTION == "sin":
        r = tl.sin(v)
    elif FUNCTION == "cos":
        r = tl.cos(v)
    elif FUNCTION == "sqrt":
        r = tl.sqrt(v)
    elif FUNCTION == "sqrt_rn":
        r = tl.sqrt_rn(v)
    elif FUNCTION == "rsqrt":
        r = tl.rsqrt(v)
    elif FUNCTION == "erf":
        r = tl.erf(v)
    elif FUNCTION == "tanh":
        r = libdevice.tanh(v)
    elif FUNCTION == "sigmoid":
        r = tl.sigmoid(v)
    elif FUNCTION == "floor":
        r = tl.floor(v)
    elif FUNCTION == "ceil":
        r = tl.ceil(v)
    elif FUNCTION == "abs":
        r = tl.abs(v)
    elif FUNCTION == "pow":
        r = libdevice.pow(tl.abs(v), v)
    elif FUNCTION == "cast":
        r = v.to(out.dtype.element_ty)
    tl.store(out + at, r, mask=inside)


@triton.jit
def binary(x, y, out, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    a = tl.load(x + at, mask=inside, other=1)
    b = tl.load(y + at, mask=inside, other=1)
    if FUNCTION == "div":
        r = a / b
    elif FUNCTION == "div_rn":
        r = tl.div_rn(a, b)
    elif FUNCTION == "floordiv":
        r = a // b
    elif FUNCTION == "mod":
        r = a % b
    elif FUNCTION == "mul":
        r = a * b
    elif FUNCTION == "sub":
        r = a - b
    elif FUNCTION == "fma":
        r = tl.fma(a, b, a)
    elif FUNCTION == "max":
        r = tl.maximum(a, b)
    elif FUNCTION == "min_nan":
        r = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif FUNCTION == "clamp":
        r = tl.clamp(a, -b, b)
    elif FUNCTION == "shl":
        r = a << (b & 7)
    elif FUNCTION == "shr":
        r = a >> (b & 7)
    elif FUNCTION == "umulhi":
        r = tl.umulhi(a, b)
    elif FUNCTION == "less":
        r = a < b
    tl.store(out + at, r, mask=inside)


@triton.jit
def reductions(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    values = tl.load(x + at)
    row = tl.arange(0, ROWS)
    tl.store(out + row, tl.max(values, 1))
    tl.store(out + ROWS + row, tl.argmin(values, 1).to(tl.float32))
    tl.store(out + 2 * ROWS + row, tl.sum(values, 1))
    tl.store(out + 3 * ROWS + at, tl.cumsum(values, 1))
    tl.store(out + 3 * ROWS + ROWS * COLUMNS + at, tl.sort(values, 1))


@triton.jit
def transpose(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    values = tl.load(x + row[:, None] * COLUMNS + column[None, :])
    tl.store(out + column[:, None] * ROWS + row[None, :], tl.trans(values))


@triton.jit
def histogram(x, counts, order, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    bucket = tl.load(x + at, mask=inside, other=0)
    tl.store(order + at, tl.atomic_add(counts + bucket, 1, mask=inside), mask=inside)


@triton.jit
def atomics(x, out, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside, other=0)
    target = out + at % 7
    if FUNCTION == "max":
        tl.atomic_max(target, value, mask=inside)
    elif FUNCTION == "min":
        tl.atomic_min(target, value, mask=inside)
    elif FUNCTION == "add":
        tl.atomic_add(target, value, mask=inside)
    elif FUNCTION == "xor":
        tl.atomic_xor(target, value, mask=inside)
    elif FUNCTION == "and":
        tl.atomic_and(target, value, mask=inside)


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


@triton.jit
def collatz(x, out, n):
    """A loop whose length differs from program to program."""
    program = tl.program_id(0)
    value = tl.load(x + program)
    steps = 0
    while value != 1:
        value = tl.where(value % 2 == 0, value // 2, 3 * value + 1)
        steps += 1
    tl.store(out + program, steps)


@triton.jit(noinline=True)
def _scaled(value, factor):
    return value * factor + 1.0


@triton.jit
def calls(x, out, factor):
    """Real calls: s_getpc, s_swappc and s_setpc."""
    at = tl.program_id(0)
    value = _scaled(tl.load(x + at), factor)
    tl.store(out + at, _scaled(value, factor))


@triton.jit
def grid(out):
    place = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
    tl.store(out + place, tl.program_id(0) + 100 * tl.program_id(1) + 10000 * tl.program_id(2))
