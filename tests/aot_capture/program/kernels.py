"""Kernels of the program under test: what a kernel's code may depend on, in small."""

import enum
from typing import NamedTuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as ttgl

import helpers

FACTOR = tl.constexpr(3)


class Mode(enum.IntEnum):
    KEEP = 1
    NEGATE = 2


class Pair(NamedTuple):
    x: object
    n: object


@triton.jit
def double(x):
    return x * 2


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, double(v) * FACTOR + helpers.shifted(v), mask=i < n)


def apply(function, constant):
    @triton.jit
    def applied(x, y, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(y + i, function(tl.load(x + i)) + constant)

    return applied


@triton.jit
def select(pair, y, MODE: tl.constexpr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(pair.x + i, mask=i < pair.n).to(DTYPE)
    tl.store(y + i, -v if MODE == 2 else v)


@gluon.jit
def gluon_copy(x, y, BLOCK: ttgl.constexpr, layout: ttgl.constexpr):
    i = ttgl.arange(0, BLOCK, layout=layout)
    ttgl.store(y + i, ttgl.load(x + i))


CONFIGS = [triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64}, num_warps=2)]
hooked = []
HOOKED = [triton.Config({"BLOCK": block}, pre_hook=hooked.append) for block in (32, 64)]


@triton.autotune(CONFIGS, key=["n"])
@triton.jit
def tuned(x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, i.to(tl.float32), mask=i < n)


@triton.autotune(HOOKED, key=["n"])
@triton.jit
def tuned_with_hook(x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, i.to(tl.float32) + 1, mask=i < n)


class Tensor:
    """The attributes that Triton asks of a tensor."""

    def __init__(self, dtype=tl.float32, pointer=1 << 20):
        self.dtype, self.pointer = dtype, pointer

    def data_ptr(self):
        return self.pointer

    def ptr_range(self):
        return 1 << 20


X = Tensor()


def launch_all(lanes=64):
    """Launch every kernel once."""
    scale[(1,)](X, X, 1024, BLOCK=64)
    apply(double, FACTOR)[(1,)](X, X, BLOCK=64)
    select[(1,)](Pair(X, 60), X, MODE=Mode.NEGATE, DTYPE=tl.float16, BLOCK=64)
    gluon_copy[(1,)](X, X, BLOCK=256, layout=ttgl.BlockedLayout([1], [lanes], [4], [0]))
