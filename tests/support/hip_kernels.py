"""The kernel of `launch_contract` as an AMD code object: from LLVM IR, by the same stages that Triton takes."""

from __future__ import annotations

from functools import cache

import pytest

_IR = """
declare i32 @llvm.amdgcn.workgroup.id.x()
declare i32 @llvm.amdgcn.workitem.id.x()
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
attributes #0 = { "amdgpu-flat-work-group-size"="1,1024" }
"""


@cache
def scale_code(arch: str) -> bytes:
    """`scale(float *out, const float *in, float factor, unsigned n)` in workgroups of 128."""
    compiler = pytest.importorskip("triton.compiler", reason="compiling a kernel for HIP needs the extra `build`")
    from triton.backends.compiler import Language

    from aot.targets import Target

    backend = compiler.make_backend(Target(arch).gpu_target())
    stages: dict = {}
    backend.add_stages(stages, backend.parse_options({"enable_fp_fusion": True}), Language.TRITON)
    text = stages["amdgcn"](_IR, {})
    return stages["hsaco"](text, {})
