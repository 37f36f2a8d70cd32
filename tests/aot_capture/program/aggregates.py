"""Kernels with an aggregate class, which Triton has since 3.4 and constexpr functions since 3.6."""

import triton
import triton.language as tl
from triton.language.core import _aggregate as aggregate

from kernels import X


@aggregate
class Pair:
    left: tl.tensor
    right: tl.tensor

    @triton.constexpr_function
    def __init__(self, left, right):
        self.left = left
        self.right = right

    @triton.jit
    def total(self):
        return self.left + self.right


@triton.jit
def add_pairs(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    pair = Pair(tl.load(x + i), tl.load(y + i))
    tl.store(y + i, pair.total())


add_pairs[(1,)](X, X, BLOCK=64)
