"""Kernels that begin before those that precede them on the stream have ended: programmatic dependent launch of NVIDIA's
GPUs, from sm_90 on.

Such a kernel reads and writes nothing before `gdc_wait`; but it may ask for what it will read to be brought to the L2
cache, which is where writes of other kernels arrive, too. The build finds the wait in a kernel, and the runtime
launches it so; on other targets kernels begin in turn.
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
    """Let the next launch begin, and go on when all that precede this one have ended: before anything is loaded that
    one of them may write, and before anything is stored."""
    if cuda_capability_geq(9):
        gdc_launch_dependents()
        gdc_wait()


@gluon.jit
def prefetch(pointers):
    """Have the lines that pointers are to brought to the L2 cache; no matter what is there, nothing is read."""
    ASM: gl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
    gl.inline_asm_elementwise(ASM, "=r,l", [pointers.to(gl.int64)], dtype=gl.int32, is_pure=False, pack=1)
