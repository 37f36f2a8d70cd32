"""Roles of an op's tensors: passed by the caller, optional, or zeroed before a launch."""

from __future__ import annotations

import re
from typing import Any

from . import values
from .findings import READ, UPDATE
from .host_values import ZEROS
from .sizes import names_of
from .tensors import DraftTensor
from .workbench import Workbench, clean


def role_of(work: Workbench, tensor: DraftTensor) -> str:
    """Return `input`, `output` or `inout`."""
    if tensor.kinds <= {READ}:
        return "input"
    name = work.tensor_name(tensor.parameter)
    if UPDATE in tensor.kinds and READ not in tensor.kinds and is_zeroed(work, tensor):
        return "output"
    if UPDATE in tensor.kinds:
        work.op.note("tensors", name, "the kernel adds to it: pass zeros, or the values to add to")
        return "inout"
    host = work.launch.tensor(tensor.parameter)
    if READ in tensor.kinds and host is not None and host.made:
        if host.made != ZEROS:
            work.op.note("tensors", name, "the kernel also reads it: check that it reads only what it has written")
        return "output"
    is_scattered = any(atom.kind == values.LOADED for dim in tensor.dims for atom in dim.index.below)
    if READ in tensor.kinds or (is_scattered and not (host is not None and host.made)):
        return "inout"  # where indices say what is written, the rest is the caller's
    return "output"


def is_zeroed(work: Workbench, tensor: DraftTensor) -> bool:
    """Return True if a tensor is zero before the launch."""
    host = work.launch.tensor(tensor.parameter)
    return tensor.parameter in work.kernel.autotuning.zeroed or (host is not None and host.made == ZEROS)


def add_presence(work: Workbench, tensor: DraftTensor, item: dict[str, Any]) -> None:
    """Declare the condition under which a tensor exists, if any."""
    name = work.tensor_name(tensor.parameter)
    own = any(guard.presence and guard.parameter == tensor.parameter and guard.value for guard in tensor.guards)
    others = [g for g in tensor.guards if g.presence and g.value and g.parameter != tensor.parameter]
    host = work.launch.tensor(tensor.parameter)
    if item.get("role") != "output":
        if own:
            item["optional"] = True
        return
    if others:
        item["when"] = " and ".join(f"given({work.tensor_name(guard.parameter)})" for guard in others)
        return
    made = host.when if host is not None else ""
    text = condition(work, work.launch.final(made)) if made else ""
    if text:
        item["when"] = text
    elif made or own:
        scalar = f"return_{clean(name).lower()}"
        work.op.scalars[scalar] = {"type": "flag", "default": False}
        item["when"] = scalar
        work.op.note("tensors", name, f"when it exists; {scalar} is a flag that the caller sets")


def condition(work: Workbench, text: str) -> str:
    """Translate a condition of the launching function to the op's names; empty if that is impossible."""
    if not text:
        return ""
    keys = set(re.findall(r"given\((\w+)\)", text))
    for key in keys:
        tensor = work.tensor_of_key(key)
        if tensor is None:
            return ""
        text = text.replace(f"given({key})", f"given({work.tensor_name(tensor.parameter)})")
    for name in names_of(re.sub(r"given\(\w+\)", "True", text)):
        if name in work.scalar_names:
            text = re.sub(rf"\b{name}\b", work.scalar_names[name], text)
            continue
        if re.search(r"[<>=]|[-+*/%]", text):
            return ""  # a number, and no flag
        argument = work.launch.facts.tensors.get(name)
        if argument is None or not argument.is_given:
            return ""
        if name not in work.scalar_names:
            default = getattr(argument.default, "value", False)
            work.scalar_names[name] = clean(name)
            work.op.scalars[clean(name)] = {"type": "flag", "default": bool(default)}
        text = re.sub(rf"\b{name}\b", work.scalar_names[name], text)
    return text


def give_dims_to_inputs(work: Workbench) -> None:
    """Make an output an inout if no input has one of its dims, so that the caller passes it."""
    for name, item in work.op.tensors.items():
        if item.get("role") != "output":
            continue
        others = [other for key, other in work.op.tensors.items() if _is_passed(key, other, item)]
        given = {part for other in others for dim in other["shape"] for part in names_of(str(dim))}
        missing = {part for dim in item["shape"] for part in names_of(str(dim))} - given - set(work.op.scalars)
        if missing:
            item["role"] = "inout"
            item["shape"] = [_own_dim(work, name, i, dim, given) for i, dim in enumerate(item["shape"])]
            for key in ("when", "zero"):
                item.pop(key, None)
            work.op.note("tensors", name, "no other tensor has its extents, so the caller passes it")


def _is_passed(name: str, tensor: dict[str, Any], output: dict[str, Any]) -> bool:
    is_left_out = tensor.get("optional") and f"given({name})" not in output.get("when", "")
    return tensor.get("role") != "output" and not is_left_out


def _own_dim(work: Workbench, tensor: str, position: int, dim: str | int, given: set[str]) -> str | int:
    """Return an extent of a tensor that the caller passes: a new dim if it cannot be computed from inputs."""
    if str(dim).isidentifier() or names_of(str(dim)) <= given:
        return dim
    return work.name_of(f"new__{tensor}__{position}")
