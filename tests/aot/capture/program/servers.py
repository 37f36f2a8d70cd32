"""Kernels as servers have them: a constexpr that caller and callee read, defaults read from an object, host code."""

import triton
import triton.language as tl
from triton.runtime import driver

WIDTH = tl.constexpr(4)


class Limits:
    low, high = -448.0, 448.0


limits = Limits()


def backend():
    return driver.active.get_current_target().backend


backend.__triton_builtin__ = True


@triton.constexpr_function
def is_amd():
    return backend() == "hip"


@triton.jit
def clamp(x, LOW: tl.constexpr = limits.low, HIGH: tl.constexpr = limits.high):
    return tl.minimum(tl.maximum(x, LOW), HIGH) * WIDTH


@triton.jit
def serve(x, n, BLOCK: tl.constexpr, HIGH: tl.constexpr = limits.high):
    i = tl.program_id(0) * BLOCK * WIDTH + tl.arange(0, BLOCK)
    value = clamp(tl.load(x + i, mask=i < n)) + HIGH
    tl.store(x + i, value if is_amd() else -value, mask=i < n)


def scaled(factor):
    @triton.jit
    def inner(x):
        return x * factor * WIDTH

    @triton.jit
    def outer(x, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(x + i, inner(tl.load(x + i)) + factor + WIDTH)

    return outer


class Tensor:
    dtype = tl.float32

    def data_ptr(self):
        return 1 << 20

    def ptr_range(self):
        return 1 << 20


serve[(1,)](Tensor(), 64, BLOCK=64, num_warps=1)
scaled(tl.constexpr(2))[(1,)](Tensor(), BLOCK=64, num_warps=1)
