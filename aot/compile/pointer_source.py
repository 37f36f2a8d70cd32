"""Kernels that take tensor descriptors which the host makes, compiled to use pointers in their place.

Imports Triton.
"""

from __future__ import annotations

from typing import Any

from triton._C.libtriton import ir, passes
from triton.compiler import ASTSource


class PointerSource(ASTSource):
    """A kernel as `triton.compile` takes it, without descriptors: what Triton itself does where no hardware has them.
    NVIDIA's has from sm_90 on, but takes from the host an object of the driver for each."""

    def make_ir(self, target: Any, options: Any, codegen_fns: Any, module_map: Any, context: Any) -> Any:
        module = super().make_ir(target, options, codegen_fns, module_map, context)
        manager = ir.pass_manager(context)
        passes.common.add_inliner(manager)
        passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
        manager.run(module, "descriptors_to_pointers")
        return module
