"""What tensors there may be descriptors of, made by the host for a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aot_runtime.contract import records
from aot_runtime.contract.expressions import query_name


def descriptor_fault(tensor: records.Tensor, block: Sequence[Any], known: Mapping[str, Any]) -> str:
    """Why there is no descriptor of a tensor with blocks of these extents; empty if there is."""
    rank = len(tensor.shape)
    if len(block) != rank:
        return f"its block has {len(block)} extents, but '{tensor.name}' has {rank} dims"
    if wrong := [extent for extent in block if type(extent) is not int or extent < 1 or extent & (extent - 1)]:
        return f"a block has extents that are powers of two, not {wrong[0]!r}"
    if tensor.contiguous[-1:] != (rank - 1,) or any(dim.broadcast for dim in tensor.shape):
        return f"'{tensor.name}' needs a last dim that is contiguous, and no dim that is broadcast, for a descriptor"
    if (tensor.optional or tensor.when) and query_name("given", tensor.name) not in known:
        return f"'{tensor.name}' is nullable, and there is no descriptor of nothing"
    return ""
