"""Bind parameters to tensors as descriptors made by the host.

A Gluon kernel gets a tensor map, which has a layout and needs an aligned tensor; a Triton kernel gets pointers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aot.compile.descriptors import MapLayout, descriptor_type, parse_layout, widest_layout
from aot.manifest.schema import BindSpec
from aot_runtime.contract import records
from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import query_name
from aot_runtime.contract.layout import aligned_elements, divisors
from aot_runtime.contract.names import stride_position
from aot_runtime.contract.tensor_maps import map_fault
from aot_runtime.errors import ExpressionError

from .bound_parameter import BoundParameter
from .launch_scope import LaunchScope
from .variants import VariantSpec


def descriptor(
    scope: LaunchScope, name: str, given: BindSpec, variant: VariantSpec, known: Mapping[str, Any], arch: str,
    is_gluon: bool,
) -> BoundParameter:  # fmt: skip
    """Bind a parameter to a tensor with a `block`. Raises `ManifestError`."""
    text = str(given.value)
    if text not in scope.tensors:
        raise scope.error(scope.place(name), f"parameter '{name}': '{text}' has a `block`, but is not a tensor")
    tensor, op = scope.tensors[text], scope.op
    block = [scope.built(str(extent), name, known) for extent in given.block]
    try:
        dims = _dims(tensor, given)
        fault = _descriptor_fault(tensor, block, dims, known)
    except ExpressionError as error:
        fault = str(error)
    if fault:
        raise scope.error(scope.place(name), f"parameter '{name}': {fault}")
    if known.get(query_name("given", text)) is False:
        return BoundParameter(name, "constexpr", constant=None)
    dtype = str(known.get(tensor.dtype, tensor.dtype))
    shape = tuple(tensor.shape[dim].extent for dim in dims)
    whole = divisors(op, known)
    layout = None
    if is_gluon:
        layout = _map_layout(scope, name, given, block, dtype, variant, known)
        made = records.TensorMap(dtype, dims, layout.box(block), layout.swizzle, given.padding == "nan")
        if fault := _place_fault(arch, variant) or map_fault(made, tensor, op):
            raise scope.error(scope.place(name), f"parameter '{name}', a tensor map of '{text}': {fault}")
    elif given.layout is not None:
        raise scope.error(
            scope.place(name), f"parameter '{name}': a Triton kernel takes pointers, for which it cannot have a layout"
        )
    return BoundParameter(
        name, descriptor_type(DTYPES[dtype].triton, block, layout), value=text, dtype=dtype,
        divisible=aligned_elements(DTYPES[dtype].size) if tensor.align_strides else 1, ranged=not tensor.large,
        shape=shape, pads_with_nan=given.padding == "nan", whole=tuple(whole.get(extent, 1) for extent in shape),
        dims=dims,
    )  # fmt: skip


def _dims(tensor: records.Tensor, given: BindSpec) -> tuple[int, ...]:
    """Return the tensor's dims in the descriptor's order. Raises `ExpressionError` for a dim that the tensor lacks."""
    if given.dims is None:
        return tuple(range(len(tensor.shape)))
    return tuple(stride_position(tensor, dim) for dim in given.dims)


def _descriptor_fault(
    tensor: records.Tensor, block: Sequence[Any], dims: Sequence[int], known: Mapping[str, Any]
) -> str:
    """Return why a tensor cannot have a descriptor with blocks of these extents; empty if it can."""
    rank = len(tensor.shape)
    if len(block) != rank:
        return f"its block has {len(block)} extents, but '{tensor.name}' has {rank} dims"
    if sorted(dims) != list(range(rank)):
        return f"its dims must be those of '{tensor.name}', each once"
    if wrong := [extent for extent in block if type(extent) is not int or extent < 1 or extent & (extent - 1)]:
        return f"the extents of a block must be powers of two, not {wrong[0]!r}"
    last = dims[-1]
    innermost = known.get(query_name("innermost", tensor.name, str(last)), tensor.contiguous[-1:] == (last,))
    if not innermost or any(dim.broadcast for dim in tensor.shape):
        return f"'{tensor.name}' needs a contiguous last dim and no broadcast dim for a descriptor"
    if (tensor.optional or tensor.when) and query_name("given", tensor.name) not in known:
        return f"'{tensor.name}' is nullable, but a descriptor needs a tensor"
    return ""


def _map_layout(
    scope: LaunchScope, name: str, given: BindSpec, block: Sequence[int], dtype: str, variant: VariantSpec,
    known: Mapping[str, Any],
) -> MapLayout:  # fmt: skip
    """Return the layout that the manifest gives a tensor map, or else the one with the widest pattern."""
    bits = 8 * DTYPES[dtype].size
    if given.layout is None:
        return widest_layout(block, bits)
    try:
        layout = parse_layout(scope.layout(given.layout, name, known, dict(variant.options)).text)
    except ValueError as error:
        raise scope.error(scope.place(name), f"parameter '{name}': {error}") from None
    if (layout.bits, layout.rank) != (bits, len(block)):
        raise scope.error(
            scope.place(name),
            f"parameter '{name}': its layout is of {layout.bits} bits and rank {layout.rank}, but its blocks of {bits} "
            f"and {len(block)}",
        )
    return layout


def _place_fault(arch: str, variant: VariantSpec) -> str:
    if ARCHITECTURES[arch].descriptor_align == 1:
        return f"{arch} has none; a launch that needs them has `when: has_wgmma`, say"
    if not variant.aligned:
        return (
            "only the aligned specialisation is kept to what a map needs: write `specialisations: [aligned]`, or "
            "`when: aligned` of the launch, and have another launch for the rest"
        )
    return ""
