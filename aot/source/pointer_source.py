"""Sources of kernels with host-made tensor descriptors, compiled to pointers instead.

Imports Triton.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from triton._C.libtriton import ir, passes
from triton.compiler import ASTSource

Hints = Mapping[int, Sequence[tuple[str, int]]]
"""Position of a run-time argument → its hints."""


class PointerSource(ASTSource):
    """A kernel for `triton.compile`, with descriptors lowered to pointers as on hardware without them.

    NVIDIA's hardware has them since sm_90, but there the host has to pass an object of the driver for each.

    Attributes:
        ones: positions of the arguments that are 1.
        hints: hints of the other arguments.
    """

    ones: Collection[int] = ()
    hints: Hints = MappingProxyType({})

    def make_ir(self, target: Any, options: Any, codegen_fns: Any, module_map: Any, context: Any) -> Any:
        module = super().make_ir(target, options, codegen_fns, module_map, context)
        manager = ir.pass_manager(context)
        passes.common.add_inliner(manager)
        passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
        manager.run(module, "descriptors_to_pointers")
        kernel = module.get_function(module.get_entry_func_name())
        for position, hints in self.hints.items():
            for name, value in hints:
                kernel.set_arg_attr(position, name, value)
        builder, block = ir.builder(context), _body(module)
        builder.set_insertion_point_to_start(block)
        for position in self.ones:
            block.get_argument(position).replace_all_uses_with(builder.get_int64(1))
        return module


def _body(module: Any) -> Any:
    """Return a kernel's first block. Its helpers are inlined."""
    kernel, blocks = module.get_entry_func_name(), []

    def visit(op: Any) -> None:
        if op.get_name() == "tt.func" and op.get_str_attr("sym_name") == kernel:
            blocks.append(op.get_region(0).id())

    module.walk(visit)
    found: list[Any] = []

    def collect(op: Any) -> None:
        block = op.get_block()
        if op.get_name() != "builtin.module" and block.get_parent().id() in blocks:
            found.append(block)

    module.walk(collect)
    return found[0]
