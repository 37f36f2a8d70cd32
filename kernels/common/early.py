"""Kernels that begin before those that precede them on the stream have ended: programmatic dependent launch of NVIDIA's
GPUs, Triton's option `launch_pdl`.

Such a kernel reads and writes nothing before `gdc_wait`; but it may ask for what it will read to be brought to the L2
cache, which is where writes of other kernels arrive, too.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

LINE = gl.constexpr(128)
"""Bytes of a line of the L2 cache."""


@gluon.jit
def prefetch(pointers):
    """Have the lines that pointers are to brought to the L2 cache; no matter what is there, nothing is read."""
    ASM: gl.constexpr = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"
    gl.inline_asm_elementwise(ASM, "=r,l", [pointers.to(gl.int64)], dtype=gl.int32, is_pure=False, pack=1)
