"""Describe a call as an entry of a calls file: only what decides its variants, on any device.

The keys are the fields of `aot_bundle.callspec.CallSpec`. Calls that get the same variants have the same entry:
strides and addresses are included only if they matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.expressions import evaluator, parse
from aot_runtime.contract.gpu_names import usual_cus
from aot_runtime.contract.layout import Layout, make_layout, packed_strides, packing_order
from aot_runtime.contract.names import Scope, stride_position
from aot_runtime.contract.records import Op, Tensor
from aot_runtime.errors import ExpressionError

from .rules import Rules

Entry = dict[str, Any]
"""An entry of a calls file: `bundle`, `op`, then whatever differs from the defaults."""


class Describing:
    """Describes calls of an op.

    Args:
        bundle: the bundle's name.
        static: scalars that decisions depend on.
        mapped: tensors that variants take as tensor maps.
    """

    def __init__(self, op: Op, bundle: str, static: Collection[str], rules: Rules, mapped: Collection[str] = ()):
        self.op, self.bundle, self.static, self.rules, self.mapped = op, bundle, static, rules, mapped
        read = [parse(text) for _, text, _ in Scope.of(op).expressions(op)]
        self.read_names = {name for expression in read for name in expression.names}
        self.strides: dict[str, set[int]] = {tensor.name: set() for tensor in op.tensors}
        """Dims whose stride is read by an expression, by tensor."""
        for query in (query for expression in read for query in expression.queries if query[0] == "stride"):
            tensor = next(tensor for tensor in op.tensors if tensor.name == query[1])
            self.strides[tensor.name].add(stride_position(tensor, query[2]))

    def entry(
        self, layouts: Mapping[str, Layout | None], scalars: Mapping[str, Any], names: Mapping[str, Any]
    ) -> Entry:
        """Return the entry of a valid call.

        Args:
            layouts, scalars: the caller's arguments.
            names: the values computed from them.
        """
        shapes: dict[str, list[int]] = {}
        strides: dict[str, list[int]] = {}
        innermost: dict[str, int] = {}
        unaligned: list[str] = []
        for tensor in self.op.tensors:
            layout = layouts.get(tensor.name)
            if layout is None:
                continue
            dim, steps = self._packing(tensor, layout)
            moved = not layout.aligned and (tensor.align or tensor.name in self.mapped)
            if tensor.role == "output" and dim is None and steps is None and not moved:
                continue  # no different from an allocated output
            shapes[tensor.name] = list(layout.shape)
            strides |= {} if steps is None else {tensor.name: list(steps)}
            innermost |= {} if dim is None else {tensor.name: dim}
            unaligned += [tensor.name] if moved else []
        words = {
            "shapes": shapes,
            "dtypes": {name: names[name] for name, allowed in self.op.dtypes.items() if len(allowed) > 1},
            "strides": strides,
            "innermost": innermost,
            "unaligned": unaligned,
            "scalars": self._scalars(scalars, names),
        }
        usual = {"num_cus": usual_cus(names["arch"]), "num_xcds": ARCHITECTURES[names["arch"]].num_xcds}
        words |= {name: names[name] for name in self.read_names & usual.keys() if names[name] != usual[name]}
        return {"bundle": self.bundle, "op": self.op.name, **{key: value for key, value in words.items() if value}}

    def _packing(self, tensor: Tensor, layout: Layout) -> tuple[int | None, tuple[int, ...] | None]:
        """Return (innermost dim, strides): the dim only if it is not the default, the strides only if no packed array
        leads to the same decision."""
        for position in tensor.innermost or (None,):
            order = packing_order(tensor, len(layout.shape), innermost=position)
            strides = packed_strides(layout.shape, order)
            packed = make_layout(layout.device, layout.dtype, layout.shape, strides, layout.aligned)
            if self._alike(tensor, packed, layout):
                return (None if position in (None, *tensor.innermost[:1]) else position), None
        return None, layout.kernel_strides

    def _alike(self, tensor: Tensor, one: Layout, other: Layout) -> bool:
        rules, name = self.rules, tensor.name
        return (
            rules.innermost(name, one) == rules.innermost(name, other)
            and self._specialised(name, one) == self._specialised(name, other)
            and all(one.kernel_strides[dim] == other.kernel_strides[dim] for dim in self.strides[name])
        )

    def _specialised(self, name: str, layout: Layout) -> tuple[bool, bool]:
        """Return (aligned variants accept the tensor, aligned variants that map it accept it)."""
        aligned = not any(self.rules.tensor_misalignment(name, layout))
        return aligned, aligned and (name not in self.mapped or not any(self.rules.unmappable(name, layout)))

    def _scalars(self, given: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
        """Return the scalars that decisions depend on and that differ from their defaults."""
        passed = [scalar for scalar in self.op.scalars if scalar.name in self.static]
        passed = [scalar for scalar in passed if given.get(scalar.name) is not None]
        return {item.name: names[item.name] for item in passed if names[item.name] != _default(item.default, names)}


def _default(text: str, names: Mapping[str, Any]) -> Any:
    try:
        return evaluator(text)(names) if text else None
    except (ExpressionError, ArithmeticError, TypeError):
        return None


# As YAML

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off"}
"""Words that some YAML parsers do not read as strings."""


def entry_lines(entry: Entry) -> Iterable[str]:
    """Write an entry as lines of a YAML list item."""
    for number, (key, value) in enumerate(entry.items()):
        yield f"{'- ' if number == 0 else '  '}{key}: {_text(value)}"


def _text(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{_text(key)}: {_text(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_text, value)) + "]"
        case bool():
            return "true" if value else "false"
        case str():
            return value if _PLAIN.match(value) and value.lower() not in _WORDS else json.dumps(value)
        case float():
            return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(repr(value), repr(value))
        case _:
            return str(value)
