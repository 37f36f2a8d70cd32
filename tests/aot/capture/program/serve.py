"""A program whose kernels become ops: it launches them as a server would, on tensors that hold nothing."""

import helpers
import triton
import triton.language as tl

FACTOR = tl.constexpr(3)


@triton.jit
def halve(x):
    return x * 0.5


@triton.jit
def add(x, bias, out, n, stride, alpha, BLOCK: tl.constexpr, F: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i.to(tl.int64) * stride, mask=i < n, other=0.0).to(tl.float32) * alpha * FACTOR
    if bias is not None:
        value += tl.load(bias + i, mask=i < n, other=0.0)
    if F is not None:
        value = F(value)
    tl.store(out + i, value.to(out.dtype.element_ty), mask=i < n)


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0, "TWO": lambda args: 2})
@triton.jit
def negate(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr, TWO: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(x + i, -tl.load(x + i) * TWO)
    else:
        tl.store(x + i, -tl.load(x + i, mask=i < n) * TWO, mask=i < n)


CONFIGS = [triton.Config({"BLOCK": 32}, num_warps=1), triton.Config({"BLOCK": 64}, num_warps=2)]


@triton.autotune(CONFIGS, key=["n"])
@triton.jit
def fill(out, n, value, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, value + 0.0 * i, mask=i < n)


@triton.jit
def pair_sum(pair, out, stride, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, (tl.load(pair[0] + i).to(DTYPE) + pair[1]).to(tl.float32))


class Tensor:
    def __init__(self, dtype=tl.float32, pointer=1 << 20, nbytes=1 << 20):
        self.dtype, self.pointer, self.nbytes = dtype, pointer, nbytes

    def data_ptr(self):
        return self.pointer

    def ptr_range(self):
        return self.nbytes


def grid_of(count):
    return lambda meta: (triton.cdiv(count, meta["BLOCK"]),)


x, half, odd = Tensor(), Tensor(tl.float16), Tensor(pointer=(1 << 20) + 4)
for n in (1024, 1000):
    add[grid_of(n)](x, None, x, n, 1, 2.0, BLOCK=128, F=None)
add[grid_of(1024)](half, x, half, 1024, 3, 2.0, BLOCK=128, F=helpers.relu)
add[grid_of(1000)](odd, x, x, 1000, 1 << 33, 2.0, BLOCK=256, F=halve, num_warps=8)
negate[(4,)](x, 1024, BLOCK=256)
for n in (640, 100):
    fill[grid_of(n)](x, n, 1.5)
pair_sum[(1,)]((half, 3), x, 16, BLOCK=64, DTYPE=tl.float32)
