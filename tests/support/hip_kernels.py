"""Kernels of tests as AMD code objects: from LLVM IR, by the same stages that Triton takes."""

from __future__ import annotations

from functools import cache

import pytest

_DECLARED = "".join(
    f"declare i32 @llvm.amdgcn.{of}.id.{axis}()\n" for of in ("workgroup", "workitem") for axis in "xyz"
) + "declare ptr addrspace(4) @llvm.amdgcn.dispatch.ptr()\n"  # fmt: skip
_ATTRIBUTES = 'attributes #0 = { "amdgpu-flat-work-group-size"="1,1024" }\n'

_SCALE = """
define amdgpu_kernel void @scale(ptr addrspace(1) %out, ptr addrspace(1) %in, float %factor, i32 %n) #0 {
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %item = call i32 @llvm.amdgcn.workitem.id.x()
  %first = mul i32 %group, 128
  %i = add i32 %first, %item
  %inside = icmp ult i32 %i, %n
  br i1 %inside, label %work, label %end
work:
  %from = getelementptr float, ptr addrspace(1) %in, i32 %i
  %value = load float, ptr addrspace(1) %from
  %scaled = fmul float %value, %factor
  %to = getelementptr float, ptr addrspace(1) %out, i32 %i
  store float %scaled, ptr addrspace(1) %to
  br label %end
end:
  ret void
}
"""
_PLACES = """
define amdgpu_kernel void @places(ptr addrspace(1) %out, i32 %width, i32 %height, i32 %sx, i32 %sy, i32 %sz) #0 {
  %gx = call i32 @llvm.amdgcn.workgroup.id.x()
  %gy = call i32 @llvm.amdgcn.workgroup.id.y()
  %gz = call i32 @llvm.amdgcn.workgroup.id.z()
  %lx = call i32 @llvm.amdgcn.workitem.id.x()
  %ly = call i32 @llvm.amdgcn.workitem.id.y()
  %lz = call i32 @llvm.amdgcn.workitem.id.z()
  %ax = mul i32 %gx, %sx
  %x = add i32 %ax, %lx
  %ay = mul i32 %gy, %sy
  %y = add i32 %ay, %ly
  %az = mul i32 %gz, %sz
  %z = add i32 %az, %lz
  %plane = mul i32 %z, %height
  %row = add i32 %plane, %y
  %first = mul i32 %row, %width
  %i = add i32 %first, %x
  %packet = call ptr addrspace(4) @llvm.amdgcn.dispatch.ptr()
  %field = getelementptr i8, ptr addrspace(4) %packet, i32 12
  %threads = load i32, ptr addrspace(4) %field
  %high = shl i32 %threads, 16
  %value = or i32 %high, %i
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %i
  store i32 %value, ptr addrspace(1) %to
  ret void
}
"""
_SPILL = """
define amdgpu_kernel void @spill(ptr addrspace(1) %out) #0 {
  %array = alloca [64 x i32], align 4, addrspace(5)
  %item = call i32 @llvm.amdgcn.workitem.id.x()
  br label %fill
fill:
  %i = phi i32 [ 0, %0 ], [ %following, %fill ]
  %at = getelementptr i32, ptr addrspace(5) %array, i32 %i
  %value = mul i32 %i, %item
  store volatile i32 %value, ptr addrspace(5) %at
  %following = add i32 %i, 1
  %more = icmp ult i32 %following, 64
  br i1 %more, label %fill, label %end
end:
  %place = and i32 %item, 63
  %from = getelementptr i32, ptr addrspace(5) %array, i32 %place
  %found = load volatile i32, ptr addrspace(5) %from
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %item
  store i32 %found, ptr addrspace(1) %to
  ret void
}
"""


def scale_code(arch: str) -> bytes:
    """Return code of `scale(float *out, const float *in, float factor, unsigned n)` in workgroups of 128."""
    return compiled(_SCALE, arch)


def places_code(arch: str) -> bytes:
    """`places(int *out, width, height, sx, sy, sz)`: each work-item writes the index of its place in an array
    [z, height, width], and in the upper half the grid's x of its dispatch packet; s* is the workgroup's size."""
    return compiled(_PLACES, arch)


def spill_code(arch: str) -> bytes:
    """Return code of `spill(int *out)`: out[i] = (i % 64) * i, by way of an array in scratch."""
    return compiled(_SPILL, arch)


@cache
def compiled(ir: str, arch: str) -> bytes:
    """Return the code object of LLVM IR."""
    compiler = pytest.importorskip("triton.compiler", reason="compiling a kernel for HIP needs the extra `build`")
    from triton.backends.compiler import Language

    from aot.targets import Target

    backend = compiler.make_backend(Target(arch).gpu_target())
    stages: dict = {}
    backend.add_stages(stages, backend.parse_options({"enable_fp_fusion": True}), Language.TRITON)
    text = stages["amdgcn"](_DECLARED + ir + _ATTRIBUTES, {})
    return stages["hsaco"](text, {})
