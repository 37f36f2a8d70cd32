"""Contracts made by hand, with every variant that their axes allow: planned on layouts, without device or compiler."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from aot_runtime.call.decision import Decision
from aot_runtime.call.planner import Planner
from aot_runtime.contract import records
from aot_runtime.contract.dtypes import SCALAR_TYPES
from aot_runtime.contract.layout import Layout, contiguous_order, make_layout, packed_strides
from aot_runtime.contract.names import axis_names

HERE = ("hip", 0)
ONE_CONFIG = (records.Config("base", {}, {}),)


def dims(*extents: str) -> tuple[records.Dim, ...]:
    """Dims of a tensor; `n|1` is broadcast."""
    return tuple(records.Dim(extent.removesuffix("|1"), extent.endswith("|1")) for extent in extents)


def tensor(name: str, *extents: str, dtype: str = "float32", **fields: Any) -> records.Tensor:
    """A tensor whose last dim is contiguous."""
    fields.setdefault("contiguous", (len(extents) - 1,) if extents else ())
    return records.Tensor(name, dims(*extents), dtype, **fields)


def launch(
    *grid: str, kernel: str = "kernel", configs: tuple[records.Config, ...] = ONE_CONFIG, when: str = ""
) -> records.Launch:
    """A launch over a grid of up to three extents."""
    x, y, z = ([*grid, "1", "1", "1"])[:3]
    return records.Launch(kernel, (x, y, z), configs, when)


def op(*tensors: records.Tensor, **fields: Any) -> records.Op:
    """An op called `op`, launched over one workgroup unless it says otherwise."""
    fields = {"name": "op", "scalars": (), "launches": (launch("1"),)} | fields
    return records.Op(tensors=tensors, **fields)


def kernargs(fields: Mapping[str, tuple[str, str]]) -> tuple[records.Kernarg, ...]:
    """Kernargs from name → (type, value), laid out as compilers do: each at a multiple of its size."""
    placed: list[records.Kernarg] = []
    end = 0
    for name, (kind, value) in fields.items():
        size = 8 if kind.startswith("*") else SCALAR_TYPES[kind].size
        offset = -(-end // size) * size
        placed.append(records.Kernarg(name, kind, offset, size, value))
        end = offset + size
    return tuple(placed)


def variants(
    contract: records.Op,
    values: Mapping[str, tuple[str, str]] | None = None,
    keep: Callable[[records.Variant], bool] = lambda variant: True,
) -> list[records.Variant]:
    """Every variant of a contract that `keep` wants; all take the same kernargs."""
    args = kernargs(values or {})
    axes = {**contract.dtypes, **{axis.name: axis.values for axis in contract.axes}}
    made = [
        records.Variant(
            op=contract.name, launch=index, axis_values=dict(zip(axis_names(contract), point, strict=True)),
            aligned=aligned, config=config, code="0" * 16, symbol=item.kernel, kernargs=args,
            kernarg_bytes=max((arg.offset + arg.size for arg in args), default=0), lds_bytes=0, num_warps=4,
            warp_size=64, resources=records.Resources(), options={}, compiler="none",
        )
        for aligned in (True, False)
        for point in itertools.product(*axes.values())
        for index, item in enumerate(contract.launches)
        for config in range(len(item.configs))
    ]  # fmt: skip
    return [variant for variant in made if keep(variant)]


def planner(contract: records.Op, values: Mapping[str, tuple[str, str]] | None = None, **keep: Any) -> Planner:
    """The planner of a contract, all of whose variants are there unless `keep` says otherwise."""
    return Planner(contract, variants(contract, values, **keep), "hip")


def layout(
    *shape: int, dtype: str = "float32", strides: tuple[int, ...] | None = None, aligned: bool = True,
    device: tuple[str, int] = HERE,
) -> Layout:  # fmt: skip
    """A layout that nothing lies in; packed unless strides (in elements) are given."""
    order = contiguous_order(len(shape), ())
    return make_layout(device, dtype, shape, packed_strides(shape, order) if strides is None else strides, aligned)


def decide(planned: Planner, /, **arguments: Any) -> Decision:
    """What a call becomes; layouts by tensor, values by scalar."""
    layouts = {name: value for name, value in arguments.items() if isinstance(value, Layout)}
    scalars = {name: value for name, value in arguments.items() if not isinstance(value, Layout)}
    names = {item.name for item in (*planned.op.tensors, *planned.op.scalars)}
    assert arguments.keys() <= names, arguments.keys() - names
    return planned.decide(layouts, scalars, HERE, 304, "gfx942")
