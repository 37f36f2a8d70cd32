"""Code objects of AMD kernels that use given registers: from LLVM IR, by the same stages that Triton takes."""

from triton.backends.compiler import Language
from triton.compiler import make_backend

from aot.targets import Target

IR = """
define amdgpu_kernel void @kernel(ptr addrspace(1) %p) #0 {{
  %value = load volatile i32, ptr addrspace(1) %p
  call void asm sideeffect "; used", "{clobbers}"()
  store i32 %value, ptr addrspace(1) %p
  ret void
}}
attributes #0 = {{ "amdgpu-flat-work-group-size"="1,256" "amdgpu-waves-per-eu"="{waves}" }}
"""


def assembled(arch: str, clobbered: str, waves: str = "1,1") -> tuple[str, bytes]:
    """Return (assembly, code object) of `kernel`, which uses a register and so all before it: `v40`; or `all`.

    waves: least and most waves per SIMD that LLVM aims at.
    """
    names = [f"{kind}{i}" for kind in "va" for i in range(256)] if clobbered == "all" else [clobbered]
    backend = make_backend(Target(arch).gpu_target())
    stages: dict = {}
    backend.add_stages(stages, backend.parse_options({"enable_fp_fusion": True}), Language.TRITON)
    clobbers = ",".join(f"~{{{name}}}" for name in names)
    text = stages["amdgcn"](IR.format(clobbers=clobbers, waves=waves), {})
    return text, stages["hsaco"](text, {})
