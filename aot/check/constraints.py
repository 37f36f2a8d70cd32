"""Conditions that an op sets for calls, evaluated while a call is drawn name by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aot_runtime.call.rules import pick_value
from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import parse, query_name
from aot_runtime.contract.layout import divisors
from aot_runtime.contract.names import Scope, stride_position
from aot_runtime.contract.partial_evaluation import UNKNOWN, partial_value
from aot_runtime.contract.records import Op
from aot_runtime.errors import ExpressionError

Point = Mapping[str, Any]
"""Dtype variables and axes of a variant, and `aligned`."""


class Constraints:
    """Conditions under which a call gets the variants of one point: the op's `require`, and the pick of each axis."""

    def __init__(self, op: Op, point: Point):
        self.op, self.point = op, point
        self.scope = Scope.of(op)
        self._required = [parse(text) for text in op.require]
        self._derived = [(item.name, parse(item.value)) for item in op.derived]
        self._picks = [(axis, parse(axis.pick)) for axis in op.axes]
        self._defaults = [(item.name, parse(item.default)) for item in op.scalars if item.default]
        texts = {text for _, text, _ in self.scope.expressions(op)}
        self._innermost = {query for text in texts for query in parse(text).queries if query[0] == "innermost"}
        self.divisors = divisors(op, point) if point["aligned"] else {}

    def answers(self, given: Iterable[str], innermost: Mapping[str, int]) -> dict[str, Any]:
        """Return the answers of `given`, `elsize` and `innermost`, for the tensors that are passed."""
        passed = {*given, *(item.name for item in self.op.tensors if item.role == "output" or not item.optional)}
        names: dict[str, Any] = {variable: self.point[variable] for variable in self.op.dtypes}
        for tensor in self.op.tensors:
            names[query_name("given", tensor.name)] = tensor.name in passed
            names[query_name("elsize", tensor.name)] = DTYPES[str(self.point.get(tensor.dtype, tensor.dtype))].size
        for variable in self.op.dtypes:
            names[query_name("elsize", variable)] = DTYPES[str(self.point[variable])].size
        for query in self._innermost:
            tensor = self.scope.subjects[str(query[1])]
            there = tensor.name in passed
            last = innermost.get(tensor.name, tensor.innermost[0] if tensor.innermost else -1)
            names[query_name(*query)] = there and stride_position(tensor, query[2]) == last
        return names

    def allow(self, names: Mapping[str, Any]) -> bool:
        """Return True if a call with these names can still get the variants of this point."""
        known: dict[str, Any] = {**names}
        try:
            for name, expression in (*self._defaults, *self._derived):
                value = UNKNOWN if name in known else partial_value(expression, known)
                if value is not UNKNOWN:
                    known[name] = value
            if any(partial_value(item, known) in (False, 0) for item in self._required):
                return False
            if any(known[name] % number for name, number in self.divisors.items() if name in known):
                return False
            known |= self.point  # a pick may read the axes before it
            return all(self._picked(axis, partial_value(pick, known)) for axis, pick in self._picks)
        except ExpressionError:
            return False

    def _picked(self, axis: Any, wanted: Any) -> bool:
        return wanted is UNKNOWN or pick_value(axis, wanted) == self.point[axis.name]
