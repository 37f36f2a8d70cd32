"""First step of planning: check a call's arguments against the contract and compute the value of every name."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import (
    DIM_QUERIES,
    POINTER_QUERIES,
    Evaluator,
    evaluator,
    parse,
    query_name,
)
from aot_runtime.contract.layout import Layout, strides_for
from aot_runtime.contract.names import DimSource, Scope, stride_position
from aot_runtime.contract.records import Op, Scalar, Tensor

from .rules import Rules

Query = tuple[str | int, ...]


class Call(msgspec.Struct):
    """A call during planning.

    Attributes:
        layouts: layout of each tensor, or None if it is absent. Outputs are added once they are laid out.
        names: the values computed so far, by name; queries by their `query_name`.
        device: (driver name, device index), where outputs are allocated.
    """

    layouts: dict[str, Layout | None]
    names: dict[str, Any]
    device: tuple[str, int]


class _Dim(msgspec.Struct, frozen=True):
    name: str
    source: DimSource
    inverse: Evaluator | None
    low: int
    high: int


class _Output(msgspec.Struct, frozen=True):
    tensor: Tensor
    shape: tuple[Evaluator, ...]
    when: Evaluator | None
    like: str
    """A required input with the same dtype variable; empty if the dtype is fixed."""


class Checking:
    """The checks of an op's calls, prepared once and made in the order in which they are defined here.

    Args:
        reads: the queries in the op's expressions.
    """

    def __init__(self, op: Op, reads: Iterable[Query], rules: Rules):
        self.op, self.rules = op, rules
        self.scope = scope = Scope.of(op)
        queries = sorted(reads, key=str)
        self.inputs = [tensor for tensor in op.tensors if tensor.role != "output"]
        self.variables: dict[str, list[str]] = {name: [] for name in op.dtypes}
        for tensor in self.inputs:
            if tensor.dtype in self.variables:
                self.variables[tensor.dtype].append(tensor.name)
        self.given = [(query_name(*query), str(query[1])) for query in queries if query[0] == "given"]
        self.sizes = [(query_name(*query), self._dtype_of(str(query[1]))) for query in queries if query[0] == "elsize"]
        layout_queries = [query for query in queries if query[0] in (*DIM_QUERIES, *POINTER_QUERIES)]
        self.input_queries = [self._query(query) for query in layout_queries if not self._of_output(query)]
        self.output_queries = [self._query(query) for query in layout_queries if self._of_output(query)]
        limits = {limit.name: (limit.min, limit.max) for limit in op.dims}
        self.dims = [
            _Dim(
                name,
                source,
                None if source.inverse == "extent" else evaluator(source.inverse),
                *limits.get(name, (1, 2**31 - 1)),
            )
            for name, source in scope.dims.items()
        ]
        self.scalars: list[tuple[Scalar, Evaluator | None]] = [
            (scalar, evaluator(scalar.default) if scalar.default else None) for scalar in op.scalars
        ]
        self.required = [(text, evaluator(text), sorted(parse(text).names)) for text in op.require]
        self.derived = [(item.name, evaluator(item.value)) for item in op.derived]
        self.extents = [
            (tensor.name, position, evaluator(dim.extent))
            for tensor in self.inputs
            for position, dim in enumerate(tensor.shape)
            if not self._is_source(tensor, position)
        ]
        first = {tensor.dtype: tensor.name for tensor in reversed(self.inputs) if not tensor.optional}
        self.outputs = [self._output(tensor, first) for tensor in op.tensors if tensor.role == "output"]

    # Preparation

    def _dtype_of(self, subject: str) -> str:
        return self.scope.subjects[subject].dtype if subject in self.scope.subjects else subject

    def _of_output(self, query: Query) -> bool:
        return self.scope.subjects[str(query[1])].role == "output"

    def _query(self, query: Query) -> tuple[str, str, str, int]:
        function, subject, *dim = query
        tensor = self.scope.subjects[str(subject)]
        return query_name(*query), str(function), tensor.name, stride_position(tensor, dim[0]) if dim else 0

    def _is_source(self, tensor: Tensor, position: int) -> bool:
        source = self.scope.dims.get(tensor.shape[position].extent)
        return source is not None and (source.tensor, source.position) == (tensor.name, position)

    def _output(self, tensor: Tensor, first: Mapping[str, str]) -> _Output:
        shape = tuple(evaluator(dim.extent) for dim in tensor.shape)
        like = first[tensor.dtype] if tensor.dtype in self.op.dtypes else ""
        return _Output(tensor, shape, evaluator(tensor.when) if tensor.when else None, like)

    # The steps

    def check(
        self,
        layouts: Mapping[str, Layout | None],
        scalars: Mapping[str, Any],
        device: tuple[str, int],
        hardware: Mapping[str, Any],
    ) -> Call:
        """Check a call's arguments. Raises `ArgumentError` for the first that breaks the contract.

        Args:
            device: (driver name, device index), where outputs are allocated.
            hardware: values of the names that describe the device.
        """
        call = Call({tensor.name: layouts.get(tensor.name) for tensor in self.op.tensors}, dict(hardware), device)
        self._check_tensors(call)
        self._find_dims(call)
        self._check_scalars(call, scalars)
        self._check_requirements(call)
        self._check_extents(call)
        self._lay_out_outputs(call)
        self.rules.reach(call.layouts)
        return call

    def _check_tensors(self, call: Call) -> None:
        """Check rank, dtype, contiguity and device of the inputs, and bind dtype variables and queries."""
        layouts, names = call.layouts, call.names
        for tensor in self.inputs:
            layout = layouts[tensor.name]
            if layout is not None:
                self.rules.form(tensor.name, layout)
            elif not tensor.optional:
                self.rules.missing(tensor.name)
        self.rules.same_device(layouts)
        for variable, holders in self.variables.items():
            names[variable] = self.rules.dtype(variable, {name: layouts[name] for name in holders})
        for key, name in self.given:
            names[key] = layouts[name] is not None
        for key, dtype in self.sizes:
            names[key] = DTYPES[names.get(dtype, dtype)].size
        self._answer(self.input_queries, call)

    def _answer(self, queries: Iterable[tuple[str, str, str, int]], call: Call) -> None:
        """Answer queries about layouts. The stride along an extent of 1 is 0, as kernels see it."""
        for key, function, name, position in queries:
            layout = call.layouts[name]
            if function == "stride":
                call.names[key] = 0 if layout is None else strides_for(self.scope.subjects[name], layout)[position]
            elif function == "innermost":
                call.names[key] = layout is not None and self.rules.innermost(name, layout) == position
            elif function == "is_aligned":
                call.names[key] = layout is not None and layout.aligned
            else:
                call.names[key] = layout is not None and layout.fits_32_bits

    def _find_dims(self, call: Call) -> None:
        """Compute each dim from its source tensor and check its limits; 0 if the tensor is absent."""
        names = call.names
        for dim in self.dims:
            layout = call.layouts[dim.source.tensor]
            if layout is None:
                names[dim.name] = 0
                continue
            extent = layout.shape[dim.source.position]
            names[dim.name] = extent if dim.inverse is None else dim.inverse(ChainMap({"extent": extent}, names))
            if not dim.low <= names[dim.name] <= dim.high:
                self.rules.out_of_range(dim.name, names[dim.name], dim.low, dim.high)

    def _check_scalars(self, call: Call, given: Mapping[str, Any]) -> None:
        for scalar, default in self.scalars:
            value = given.get(scalar.name)
            if value is None and default is not None:
                value = default(call.names)
            call.names[scalar.name] = self.rules.scalar(scalar, value)

    def _check_requirements(self, call: Call) -> None:
        names = call.names
        for text, holds, read in self.required:
            if not holds(names):
                self.rules.unmet(text, {name: names[name] for name in read})
        for name, value in self.derived:
            names[name] = self.rules.derived(name, value(names))

    def _check_extents(self, call: Call) -> None:
        for name, position, expected in self.extents:
            layout = call.layouts[name]
            if layout is not None:
                self.rules.extent(name, position, layout, expected(call.names))

    def _lay_out_outputs(self, call: Call) -> None:
        """Check outputs that the caller passed and lay out the others; None for outputs whose condition is false."""
        layouts, names = call.layouts, call.names
        for output in self.outputs:
            tensor = output.tensor
            exists = output.when is None or output.when(names)
            shape = tuple(extent(names) for extent in output.shape)
            dtype = names[tensor.dtype] if output.like else tensor.dtype
            layouts[tensor.name] = self.rules.output(tensor, exists, layouts[tensor.name], dtype, shape, call.device)
            if output.like:
                alike = {output.like: layouts[output.like], tensor.name: layouts[tensor.name]}
                self.rules.dtype(tensor.dtype, alike)
        self._answer(self.output_queries, call)
