"""Contracts made by hand, with every variant that their axes allow: planned on layouts, without device or compiler."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aot_runtime.call.choosing import Decision
from aot_runtime.call.planner import Origin, Planner
from aot_runtime.contract import records
from aot_runtime.contract.dtypes import SCALAR_TYPES
from aot_runtime.contract.layout import Layout, contiguous_order, make_layout, packed_strides
from aot_runtime.contract.names import axis_names
from aot_runtime.errors import ArgumentError

HERE = ("hip", 0)
ONE_CONFIG = (records.Config("base", {}, {}),)


def dims(*extents: str) -> tuple[records.Dim, ...]:
    """Return the dims of a tensor; `n|1` is broadcast."""
    return tuple(records.Dim(extent.removesuffix("|1"), extent.endswith("|1")) for extent in extents)


def tensor(name: str, *extents: str, dtype: str = "float32", **fields: Any) -> records.Tensor:
    """Return a tensor whose last dim is contiguous."""
    fields.setdefault("contiguous", (len(extents) - 1,) if extents else ())
    return records.Tensor(name, dims(*extents), dtype, **fields)


def launch(
    *grid: str, kernel: str = "kernel", configs: tuple[records.Config, ...] = ONE_CONFIG, when: str = ""
) -> records.Launch:
    """Return a launch over a grid of up to three extents."""
    x, y, z = ([*grid, "1", "1", "1"])[:3]
    return records.Launch(kernel, (x, y, z), configs, when)


def op(*tensors: records.Tensor, **fields: Any) -> records.Op:
    """Return an op called `op`, launched over one workgroup unless it says otherwise."""
    fields = {"name": "op", "scalars": (), "launches": (launch("1"),)} | fields
    return records.Op(tensors=tensors, **fields)


def contract(text: str, **fields: Any) -> records.Op:
    """As `op`, from text: parted by `;`, tensors (`x: float16[rows, cols] output when n > 1`, or `inout`, `optional`,
    `loose` for one that need not be aligned, `loose rows` for one whose strides need not be), scalars (`k: i32 = 1`)
    and derived values (`twice = k * 2`)."""
    tensors, scalars, derived = [], list(fields.pop("scalars", ())), []
    for item in text.split("; "):
        if found := re.fullmatch(r"(\w+): (\w+)\[(.*?)\] ?(.*?)(?:when (.*))?", item):
            name, dtype, extents, words, when = found.groups(default="")
            role = next((word for word in ("output", "inout") if word in words), "input")
            tensors.append(
                tensor(
                    name, *re.split(r", (?![^(]*\))", extents), dtype=dtype, role=role, when=when,
                    optional="optional" in words, align="loose" not in words or "loose rows" in words,
                    align_strides="loose" not in words,
                )
            )  # fmt: skip
        elif found := re.fullmatch(r"(\w+): (\w+)(?: = (.*))?", item):
            scalars.append(records.Scalar(*found.groups(default="")))
        else:
            derived.append(records.Derived(*item.split(" = ", 1)))
    return op(*tensors, scalars=tuple(scalars), derived=tuple(derived), **fields)


def kernargs(text: str) -> tuple[records.Kernarg, ...]:
    """Return kernargs from text, `x: *float16; rows: i32; half: fp64 = rows / 2`, laid out as compilers do: each at a
    multiple of its size. A value that is not given is the name."""
    placed: list[records.Kernarg] = []
    end = 0
    for name, kind, value in re.findall(r"(\w+): ([*\w]+)(?: = ([^;]*))?", text):
        size = 8 if kind.startswith("*") else SCALAR_TYPES[kind].size
        offset = -(-end // size) * size
        placed.append(records.Kernarg(name, kind, offset, size, value or name))
        end = offset + size
    return tuple(placed)


def variants(
    contract: records.Op, args: str = "", keep: Callable[[records.Variant], object] = lambda variant: True
) -> list[records.Variant]:
    """Return every variant of a contract that `keep` wants; all take the same kernargs."""
    placed = kernargs(args)
    axes = {**contract.dtypes, **{axis.name: axis.values for axis in contract.axes}}
    made = [
        records.Variant(
            op=contract.name, launch=index, axis_values=dict(zip(axis_names(contract), point, strict=True)),
            aligned=aligned, config=config, code="0" * 16, symbol=item.kernel, kernargs=placed,
            kernarg_bytes=max((arg.offset + arg.size for arg in placed), default=0), lds_bytes=0, num_warps=4,
            warp_size=64, resources=records.Resources(), options={}, compiler="none",
        )
        for aligned in (True, False)
        for point in itertools.product(*axes.values())
        for index, item in enumerate(contract.launches)
        for config in range(len(item.configs))
    ]  # fmt: skip
    return [variant for variant in made if keep(variant)]


def planner(made: records.Op | str, args: str = "", **fields: Any) -> Planner:
    """Return the planner of a contract, or of the text of one with these fields, with all variants that `keep`
    wants."""
    bundle = fields.pop("bundle", "")
    keep = {"keep": fields.pop("keep")} if "keep" in fields else {}
    if isinstance(made, str):
        made = contract(made, **fields)
    target = records.Target("gfx942", "hip", 64)
    index = records.Index(1, 1, "", bundle, target, {}, (made,), (), {}) if bundle else None
    return Planner(made, variants(made, args, **keep), "hip", Origin(index))


def layout(
    *shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None, aligned: bool = True,
    device: tuple[str, int] = HERE,
) -> Layout:  # fmt: skip
    """Return a layout at no memory; packed unless strides (in elements) are given."""
    order = contiguous_order(len(shape), ())
    return make_layout(device, dtype, shape, packed_strides(shape, order) if strides is None else strides, aligned)


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Return normally distributed numbers, the same for the same shape."""
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def decide(planned: Planner, /, **arguments: Any) -> Decision:
    """Plan a call, given layouts of tensors and values of scalars by name."""
    layouts = {name: value for name, value in arguments.items() if isinstance(value, Layout)}
    scalars = {name: value for name, value in arguments.items() if not isinstance(value, Layout)}
    names = {item.name for item in (*planned.op.tensors, *planned.op.scalars)}
    assert arguments.keys() <= names, arguments.keys() - names
    return planned.decide(layouts, scalars, HERE, 304, "gfx942")


def refused(words: str, planned: Planner, kind: type[Exception] = ArgumentError, /, **arguments: Any) -> None:
    """Assert that a call is refused with these words."""
    with pytest.raises(kind) as raised:
        decide(planned, **arguments)
    assert words in str(raised.value), str(raised.value)
