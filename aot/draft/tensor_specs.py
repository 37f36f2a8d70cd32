"""The tensors of an op, combined from shapes, dtypes and roles."""

from __future__ import annotations

from typing import Any

from .dtypes import Dtypes
from .findings import READ
from .roles import add_presence, is_zeroed, role_of
from .shapes import Shapes, positions
from .tensors import DraftTensor, is_block_name
from .values import arguments
from .workbench import Workbench


def add_tensors(work: Workbench, shapes: Shapes) -> None:
    """Declare each tensor: inputs first, then outputs."""
    dtypes = Dtypes(work)
    found: dict[str, dict[str, Any]] = {}
    # Names of dims come from inputs, whichever order the kernel has its parameters in.
    for tensor in sorted(work.tensors, key=lambda item: work.launch.is_there and "write" in item.kinds):
        shape = [_dim(work, tensor, i) for i in range(len(work.shapes[tensor.parameter]))]
        found[tensor.parameter] = {"shape": shape}
    for tensor in work.tensors:
        name, item = work.tensor_name(tensor.parameter), found[tensor.parameter]
        work.op.tensors[name] = item
        item["dtype"] = dtypes.of(tensor)
        role = role_of(work, tensor)
        if role != "input":
            item["role"] = role
        if packed := shapes.packed(tensor):
            item["contiguous"] = positions(item["shape"], packed)
        if role == "output" and (is_zeroed(work, tensor) or READ in tensor.kinds):
            item["zero"] = True
        if tensor.is_handle and tensor.parameter in work.found.blocks_at:
            _bind_descriptor(work, tensor, name)
        elif name != tensor.parameter and f"{name}_ptr" != tensor.parameter:
            work.op.bind[tensor.parameter] = name
        _mark_unknown(work, tensor, shapes, name)
    for tensor in work.tensors:
        add_presence(work, tensor, work.op.tensors[work.tensor_name(tensor.parameter)])
    outputs = [name for name, item in work.op.tensors.items() if item.get("role") == "output"]
    inputs = [name for name in work.op.tensors if name not in outputs]
    work.op.tensors = {name: work.op.tensors[name] for name in (*inputs, *outputs)}
    dtypes.finish()


def _dim(work: Workbench, tensor: DraftTensor, position: int) -> str | int:
    """Return an extent in the op's names: a new dim if it depends on something that the op lacks."""
    shape = work.shapes[tensor.parameter]
    text = work.expression(shape[position], declared=False)
    if not text:
        new = f"new__{work.tensor_name(tensor.parameter)}__{position}"
        work.shapes[tensor.parameter] = (*shape[:position], new, *shape[position + 1 :])
        text = work.name_of(new)
    return int(text) if text.isdigit() else text


def _mark_unknown(work: Workbench, tensor: DraftTensor, shapes: Shapes, name: str) -> None:
    if tensor.parameter in shapes.unseen:
        work.op.note("tensors", name, "its shape; no use of it was found in the kernel")
    every = [text for shape in work.shapes.values() for text in shape]
    for text, dim in zip(work.shapes[tensor.parameter], work.op.tensors[name]["shape"], strict=True):
        is_counted = text.startswith("grid__") and work.launch.is_there
        if is_counted or (text.startswith("new__") and every.count(text) == 1):
            work.op.note("tensors", name, f"the extent of {dim}")


def _bind_descriptor(work: Workbench, tensor: DraftTensor, name: str) -> None:
    blocks: list[str | int] = []
    for dim in tensor.dims:
        lengths = [item for item in arguments(dim.index.atoms) if work.parameters[item].constexpr]
        blocks.append(next((item for item in lengths if is_block_name(item)), 64))
    work.op.bind[tensor.parameter] = {"value": name, "block": blocks}
    if 64 in blocks:
        work.op.note("bind", tensor.parameter, f"the blocks of {tensor.parameter}")
