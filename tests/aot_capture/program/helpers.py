"""A module that a kernel reads by its name."""

import triton


@triton.jit
def shifted(x):
    return x + 1
