"""Explain in words why a call gets its variants."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from aot_runtime.contract import expressions
from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.dtypes import dtype_name
from aot_runtime.contract.index_encoding import spelled
from aot_runtime.contract.layout import Layout, make_layout, packed_strides, packing_order
from aot_runtime.contract.names import Scope
from aot_runtime.contract.records import POINTER, PROFILE_SCRATCH, Blob, Config, Kernarg, Launch, Op, Tensor, Variant
from aot_runtime.device.array import DeviceArray
from aot_runtime.device.device import Device
from aot_runtime.texts import escaped

from .choosing import AxisChoice, ConfigChoice, Decision, LaunchDecision
from .planner import Planner

_RULES = {">=": "the smallest that is >=", ">": "the smallest that is >", "<=": "the largest that is <=",
          "<": "the largest that is <"}  # fmt: skip


def explain_call(
    function: Callable[..., Any],
    device: Device,
    blobs: Mapping[str, Blob],
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
) -> str:
    """Explain what a call of an op's function (see `op.build_op`) would do. Nothing is allocated or launched.

    Args:
        blobs: the bundle's blobs, for file names.

    Raises:
        ArgumentError: the call itself would raise this error.
        TypeError: the arguments do not match the function's signature.
    """
    planner: Planner = function.planner  # type: ignore[attr-defined]
    bound = inspect.signature(function).bind(*arguments, **keywords).arguments
    outputs = [tensor.name for tensor in planner.op.tensors if tensor.role == "output"]
    if len(outputs) == 1 and "out" in bound and "out" not in _names(planner.op):
        bound[outputs[0]] = bound["out"]
    layouts = {tensor.name: _layout(device, tensor, bound.get(tensor.name)) for tensor in planner.op.tensors}
    scalars = {scalar.name: bound.get(scalar.name) for scalar in planner.op.scalars}
    return explain_decision(planner, function.decide(layouts, scalars), blobs)  # type: ignore[attr-defined]


def _names(op: Op) -> set[str]:
    return {tensor.name for tensor in op.tensors} | {scalar.name for scalar in op.scalars}


def _layout(device: Device, tensor: Tensor, value: Any) -> Layout | None:
    """Return the layout that an argument has on the device. Copying a numpy array packs it."""
    if value is None:
        return None
    if isinstance(value, np.ndarray | np.generic):
        order = packing_order(tensor, value.ndim, value.strides)
        return make_layout(device.key, dtype_name(value.dtype), value.shape, packed_strides(value.shape, order), True)
    return (value if isinstance(value, DeviceArray) else device.wrap(value)).layout


def explain_decision(planner: Planner, decision: Decision, blobs: Mapping[str, Blob]) -> str:
    """Describe a decision: dims, specialisation, axes, and each launch with its config, grid and kernargs.

    Args:
        blobs: the bundle's blobs, for file names.
    """
    return "\n".join(map(escaped, decision_lines(planner, decision, blobs)))


def decision_lines(planner: Planner, decision: Decision, blobs: Mapping[str, Blob]) -> Iterator[str]:
    """Like `explain_decision`, line by line and without escaping the bundle's texts."""
    op = planner.op
    yield from (*_call(op, decision), *_specialisation(decision), *_alternatives(decision), *_axes(op, decision))
    taken = {launch.index: launch for launch in decision.launches}
    for index, launch in enumerate(op.launches):
        if index in taken:
            yield from _launch(index, launch, taken[index], decision, blobs)
        else:
            yield f"launch {index}: {launch.kernel} is left out: {_unmet(launch.when, decision)}"


def decision_data(planner: Planner, decision: Decision, blobs: Mapping[str, Blob]) -> dict[str, Any]:
    """Return a decision as JSON-ready data."""
    names, scope = decision.names, Scope.of(planner.op)
    data = {
        "op": planner.op.name,
        "arch": names["arch"],
        "num_cus": names["num_cus"],
        "aligned": decision.aligned,
        "misaligned": decision.misaligned,
        "tensors": {
            name: {"dtype": layout.dtype, "shape": layout.shape, "strides": layout.strides}
            for name, layout in decision.layouts.items()
        },
        "dims": {name: names[name] for name in scope.dims},
        "scalars": {scalar.name: names[scalar.name] for scalar in planner.op.scalars},
        "alternatives": [{"values": values, "us": cost} for values, cost in decision.alternatives],
        "axes": {choice.axis.name: choice.value for choice in decision.axes},
        "workspace_bytes": {name: size for name, size, _ in decision.workspaces},
        "launches": [_launch_data(planner.op, taken, blobs) for taken in decision.launches],
    }
    return msgspec.to_builtins(spelled(data))


def _launch_data(op: Op, taken: LaunchDecision, blobs: Mapping[str, Blob]) -> dict[str, Any]:
    variant, config = taken.variant, taken.tried[-1].config if taken.tried else None
    return {
        "kernel": op.launches[taken.index].kernel,
        "symbol": variant.symbol,
        "file": blobs[variant.code].file,
        "config": config.name if config else "",
        "us": taken.tried[-1].cost if taken.tried else None,
        "grid": taken.grid,
        "block_threads": variant.num_warps * variant.warp_size,
        "lds_bytes": variant.lds_bytes,
        "kernargs": {arg.name: taken.values[arg.value] for arg in variant.kernargs if arg.is_expression},
    }


def _call(op: Op, decision: Decision) -> Iterator[str]:
    names = decision.names
    yield f"{op.name} on {names['arch']}{_hardware(names)}"
    zeroed = {tensor.name for tensor in op.tensors if tensor.zero}
    tensors = {name: f"{layout}{', zeroed' * (name in zeroed)}" for name, layout in decision.layouts.items()}
    yield from _group("tensors", tensors)
    yield from _group("dims", {name: names[name] for name in Scope.of(op).dims})
    yield from _group("scalars", {scalar.name: names[scalar.name] for scalar in op.scalars})
    yield from _group("derived", {item.name: f"{names[item.name]} = {item.value}" for item in op.derived})
    spaces = {name: f"{size} bytes{', zeroed' if zero else ''}" for name, size, zero in decision.workspaces}
    yield from _group("workspace", spaces)


def _hardware(names: Mapping[str, Any]) -> str:
    cus, xcds = names["num_cus"], names["num_xcds"]
    usual = ARCHITECTURES[names["arch"]].num_xcds
    parts = [f"{cus} compute units"] * bool(cus) + [f"{xcds} of {usual} XCDs"] * (xcds != usual)
    return f" with {' and '.join(parts)}" if parts else ""


def _group(title: str, items: Mapping[str, Any]) -> Iterator[str]:
    if items:
        width = max(map(len, items))
        yield f"{title}:"
        yield from (f"  {name:<{width}}  {value}" for name, value in items.items())


def _specialisation(decision: Decision) -> Iterator[str]:
    if decision.aligned:
        yield "specialisation: aligned"
    elif decision.misaligned:
        yield "specialisation: general, because"
        yield from (f"  {reason}" for reason in decision.misaligned)
    else:
        yield "specialisation: general, because no aligned variant of this call is in the bundle"


def _alternatives(decision: Decision) -> Iterator[str]:
    """Yield the combinations of alternatives that were tried, with the modelled time of the call's launches."""
    costs = {}
    for values, cost in decision.alternatives:
        is_taken = all(decision.names[name] == value for name, value in values.items())
        shown = "not built" if cost is None else f"{cost:.2f} us{', taken' * is_taken}"
        costs[", ".join(f"{name}={value}" for name, value in values.items())] = shown
    yield from _group("alternatives, by cost", costs)


def _axes(op: Op, decision: Decision) -> Iterator[str]:
    dtypes = {name: f"{decision.names[name]}, the dtype of {_holders(op, name)}" for name in op.dtypes}
    yield from _group("axes", dtypes | {choice.axis.name: _picked(choice) for choice in decision.axes})


def _holders(op: Op, variable: str) -> str:
    return ", ".join(tensor.name for tensor in op.tensors if tensor.dtype == variable)


def _picked(choice: AxisChoice) -> str:
    axis, wanted = choice.axis, choice.wanted
    built = ", ".join(map(str, axis.values))
    rule = f"{_RULES[axis.rule]} {axis.pick}" if axis.rule != "equal" else axis.pick
    shown = "" if axis.pick == str(wanted) else f" = {wanted}"
    return f"{choice.value}, {'' if axis.rule != 'equal' else 'being '}{rule}{shown}, of {built}"


# Launches


def _launch(
    index: int, launch: Launch, taken: LaunchDecision, decision: Decision, blobs: Mapping[str, Blob]
) -> Iterator[str]:
    variant = taken.variant
    code = blobs[variant.code].file if variant.code in blobs else f"code object {variant.code}"
    yield f"launch {index}: {variant.symbol} of {code}"
    *passed_over, last = taken.tried
    for choice in passed_over:
        yield f"  not config {_config(choice)}: {_passed_over(choice, decision)}"
    yield f"  config {_config(last)}{_priced(last)}{_holding(last.config, decision)}: {_settings(last.config)}"
    threads = variant.num_warps * variant.warp_size
    size = f"{' x '.join(map(str, taken.grid))} ({', '.join(launch.grid)})"
    yield f"  grid {size}{'; nothing to do, not launched' if 0 in taken.grid else ''}"
    yield f"  block {threads} threads ({variant.num_warps} waves of {variant.warp_size}), LDS {variant.lds_bytes} bytes"
    yield f"  kernargs, {variant.kernarg_bytes} bytes:"
    yield from _kernargs(variant, taken, decision)


def _config(choice: ConfigChoice) -> str:
    return f"{choice.number} '{choice.config.name}'" if choice.config.name else str(choice.number)


def _priced(choice: ConfigChoice) -> str:
    return "" if choice.cost is None else f" at {choice.cost:.2f} us"


def _settings(config: Config) -> str:
    return ", ".join(f"{name}={value}" for name, value in {**config.values, **config.options}.items()) or "all default"


def _holding(config: Config, decision: Decision) -> str:
    return f", as {config.when} ({_values(config.when, decision)})" if config.when else ""


def _passed_over(choice: ConfigChoice, decision: Decision) -> str:
    if not choice.holds:
        return _unmet(choice.config.when, decision)
    if choice.variant is not None:
        return f"it takes {choice.cost:.2f} us"
    return "it serves this call, but no variant of it is in the bundle for these axis values"


def _unmet(condition: str, decision: Decision) -> str:
    return f"{condition} does not hold ({_values(condition, decision)})"


def _values(condition: str, decision: Decision) -> str:
    parsed = expressions.parse(condition)
    queries = {
        f"{function}({', '.join(map(str, rest))})": expressions.query_name(str(function), *rest)
        for function, *rest in sorted(parsed.queries, key=str)
    }
    read = {name: name for name in sorted(parsed.names)} | queries
    return ", ".join(f"{shown}={decision.names[name]}" for shown, name in read.items()) or "always"


def _kernargs(variant: Variant, taken: LaunchDecision, decision: Decision) -> Iterator[str]:
    names = max((len(arg.name) for arg in variant.kernargs), default=0)
    types = max((len(arg.type) for arg in variant.kernargs), default=0)
    for arg in variant.kernargs:
        value = _kernarg_value(arg, variant, taken, decision)
        yield f"    {arg.offset:>4}  {arg.name:<{names}}  {arg.type:<{types}}  {value}"


def _kernarg_value(arg: Kernarg, variant: Variant, taken: LaunchDecision, decision: Decision) -> str:
    if arg.map is not None:
        swizzled = f", swizzled by {arg.map.swizzle} bytes" if arg.map.swizzle else ""
        return f"map of {arg.value}, in boxes of {list(arg.map.box)}{swizzled}"
    if arg.type.startswith(POINTER):
        there = decision.layouts.keys() | {name for name, *_ in decision.workspaces}
        if arg.value and arg.value not in there:
            return f"0, as {arg.value} is absent"
        return f"address of {arg.value}" if arg.value else _scratch(arg, variant, taken)
    value = taken.values[arg.value]
    return str(value) if arg.value in (arg.name, str(value)) else f"{value} = {arg.value}"


def _scratch(arg: Kernarg, variant: Variant, taken: LaunchDecision) -> str:
    per_group = (variant.profile_scratch if arg.name == PROFILE_SCRATCH else variant.global_scratch).bytes
    x, y, z = taken.grid
    return f"address of {per_group * x * y * z} bytes of scratch memory" if per_group else "0, as it needs no scratch"
