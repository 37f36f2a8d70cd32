"""Parameters of a kernel bound for one variant, and the compile job and kernargs that follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aot.compile.descriptors import DescriptorField, descriptor_fields, is_descriptor, is_map, map_box
from aot.compile.jobs import CompileJob
from aot.manifest.loading import Manifest
from aot.manifest.schema import LaunchSpec
from aot.source.constants import Constant
from aot.source.kernel_source import split_function
from aot_runtime.contract.layout import ALIGNMENT
from aot_runtime.contract.records import TensorMap

from .variants import VariantSpec


@dataclass(frozen=True)
class BoundParameter:
    """A kernel parameter, or a member of one that is a tuple, bound for one variant.

    Attributes:
        name: the parameter; for a member its path, such as `q.stride_heads`.
        type: `constexpr`, a scalar type, `*` and a Triton dtype, or the type of a tensor descriptor.
        constant: the value of a `constexpr`.
        value: the expression of the kernarg at a call, unless it is a `constexpr`; a pointer's tensor.
        dtype: the dtype of a pointer or a descriptor.
        divisible: the number that the value is a multiple of in the aligned specialisation: bytes of a pointer,
            elements of a stride or an extent; of a descriptor, the elements of its strides.
        ranged: all offsets from the pointer fit 32 bits in the aligned specialisation.
        function: the `path.py:function` of a `constexpr` that is a function.
        shape: expressions of the extents of a descriptor's tensor.
        pads_with_nan: a descriptor's loads beyond the ends of its tensor give NaN instead of zeros.
        whole: for each dim of a descriptor, the number of which its extent is a multiple in the aligned specialisation.
        specialised: `divisible` and `ranged` hold in every specialisation: a config's signature says so, the value is a
            workspace, or its form tells.
        dims: dims of a descriptor's tensor in the descriptor's order, outermost first; `shape` and `whole` use it, too.
    """

    name: str
    type: str
    constant: Constant = None
    value: str = ""
    dtype: str = ""
    divisible: int = 1
    ranged: bool = False
    function: str = ""
    shape: tuple[str, ...] = ()
    pads_with_nan: bool = False
    whole: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()
    specialised: bool = False

    @property
    def pointer(self) -> str:
        """Name of the kernarg with its address or its tensor map."""
        if is_map(self.type):
            return f"{self.name}.map"
        return f"{self.name}.ptr" if is_descriptor(self.type) else self.name


def compile_job(
    manifest: Manifest,
    launch: LaunchSpec,
    bound: tuple[BoundParameter, ...],
    variant: VariantSpec,
    arch: str,
    line_info: bool,
) -> CompileJob:
    """Return the compile job of a bound variant."""
    source, function = split_function(launch.kernel)
    hints = tuple(item for item in bound if variant.aligned or item.specialised)
    return CompileJob(
        root=str(manifest.root),
        source=source,
        function=function,
        signature=tuple((item.name, item.type) for item in bound),
        constants=tuple((item.name, item.constant) for item in bound if item.type == "constexpr" and not item.function),
        functions=tuple((item.name, item.function) for item in bound if item.function),
        divisible=tuple(hint for item in hints for hint in _divisible(item) if hint[1] > 1),
        pointer_range_32=tuple(item.pointer for item in hints if item.ranged and not is_map(item.type)),
        options=variant.options,
        arch=arch,
        line_info=line_info,
    )


def _divisible(item: BoundParameter) -> Iterator[tuple[str, int]]:
    if not is_descriptor(item.type):
        yield item.name, item.divisible
        return
    for field in () if is_map(item.type) else descriptor_fields(item.name, item.type):
        if field.kind == "ptr" and item.divisible > 1:
            yield field.name, ALIGNMENT
        elif field.kind == "stride" and not field.is_one:
            yield field.name, item.divisible
        elif field.kind == "shape":
            yield field.name, item.whole[field.dim]


def kernarg_values(bound: tuple[BoundParameter, ...]) -> Iterator[tuple[str, str, str]]:
    """Return (parameter, type, expression) of each parameter in the kernarg segment.

    The type of a pointer is `*dtype`. The expression of a pointer or a tensor map is the tensor's name.
    """
    for item in bound:
        if is_descriptor(item.type):
            for field in descriptor_fields(item.name, item.type):
                yield field.name, f"*{item.dtype}" if field.kind == "ptr" else field.type, _part(item, field)
        elif item.type != "constexpr":
            yield item.name, f"*{item.dtype}" if item.dtype else item.type, item.value


def tensor_maps(bound: tuple[BoundParameter, ...]) -> dict[str, TensorMap]:
    """Return kernarg → tensor map, for kernargs that are tensor maps."""
    found = {}
    for item in bound:
        if is_map(item.type):
            layout, box = map_box(item.type)
            found[item.pointer] = TensorMap(item.dtype, item.dims, box, layout.swizzle, item.pads_with_nan)
    return found


def _part(item: BoundParameter, field: DescriptorField) -> str:
    """Return the expression of one argument of a descriptor, whose last dim is packed."""
    match field.kind:
        case "shape":
            return item.shape[field.dim]
        case "stride":
            return "1" if field.is_one else f"stride({item.value}, {item.dims[field.dim]})"
        case "nan":
            return str(item.pads_with_nan)
        case "tf32":
            return "False"
    return item.value
