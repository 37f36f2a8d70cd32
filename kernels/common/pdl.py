"""Programmatic dependent launch on NVIDIA's GPUs from sm_90 on: a kernel begins before its predecessors have ended.

Such a kernel accesses no memory before `gdc_wait`, but may prefetch into the L2 cache, which other kernels' writes
reach too. The build detects the wait in a kernel, and the runtime launches it accordingly. On other targets, kernels
begin in turn.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.language.target_info import cuda_capability_geq

LINE = gl.constexpr(128)
"""Bytes of a line of the L2 cache."""


@triton.jit
def await_earlier_launches():
    """Let the next launch begin, and wait until all earlier ones have ended.

    A kernel calls it before it loads anything that an earlier launch may write, and before it stores anything.
    """
    if cuda_capability_geq(9):
        gdc_launch_dependents()
        gdc_wait()


@gluon.jit
def prefetch(pointers):
    """Prefetch the lines at these addresses into the L2 cache. Nothing is read into registers."""
    ASM: gl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
    gl.inline_asm_elementwise(ASM, "=r,l", [pointers.to(gl.int64)], dtype=gl.int32, is_pure=False, pack=1)
