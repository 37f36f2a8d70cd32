"""Check the values of index tensors: offsets, block tables, lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aot_runtime.contract.expressions import parse
from aot_runtime.contract.names import Scope
from aot_runtime.contract.partial_evaluation import evaluate
from aot_runtime.contract.records import Op, Tensor
from aot_runtime.device.array import DeviceArray
from aot_runtime.errors import ArgumentError


class Contents:
    """Checks of the values in an op's index tensors.

    Args:
        read_devices: also check arrays on the device. They are copied back, so each call waits for the stream and
            cannot be captured.
    """

    def __init__(self, op: Op, read_devices: bool):
        self.op = op
        self.tensors = [tensor for tensor in op.tensors if tensor.offsets or tensor.range]
        self.reads_devices = read_devices and bool(self.tensors)
        self._dims = Scope.of(op).dims
        self._defaults = {scalar.name: scalar.default for scalar in op.scalars}

    def check(
        self, tensors: Mapping[str, Any], arrays: Mapping[str, Any], scalars: Mapping[str, Any], stream: Any
    ) -> None:
        """Check a call's index tensors. Device arrays are skipped unless `read_devices`. Raises `ArgumentError`.

        Args:
            tensors: the arrays that the caller passed.
            arrays: the same arrays on the device.
        """
        for tensor in self.tensors:
            values = tensors[tensor.name]
            if not isinstance(values, np.ndarray):
                array = arrays[tensor.name]
                values = array.numpy(stream) if self.reads_devices and isinstance(array, DeviceArray) else None
            if values is None or not values.size:
                continue
            if tensor.offsets:
                extent = self._extent(tensor.offsets.into, arrays)
                self._check_offsets(tensor, values, extent, scalars.get(tensor.offsets.longest))
            if tensor.range:
                self._check_range(tensor, values, arrays, scalars)

    def _extent(self, dim: str, arrays: Mapping[str, Any]) -> int:
        source = self._dims[dim]
        return int(arrays[source.tensor].shape[source.position])

    def _value(self, text: str, arrays: Mapping[str, Any], scalars: Mapping[str, Any]) -> Any:
        """Evaluate an expression of dims and scalars, with defaults for scalars that are not passed."""
        expression, names = parse(text), {}
        for name in expression.reads:
            if name in self._dims:
                names[name] = self._extent(name, arrays)
            elif scalars.get(name) is not None:
                names[name] = scalars[name]
            else:
                names[name] = self._value(self._defaults[name], arrays, scalars)
        return evaluate(expression, names)

    def _check_range(
        self, tensor: Tensor, values: np.ndarray[Any, Any], arrays: Mapping[str, Any], scalars: Mapping[str, Any]
    ) -> None:
        low, high = (self._value(text, arrays, scalars) for text in tensor.range)
        wrong = (values < low) | (values > high)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            allowed = f"{low} to {high} ({' to '.join(tensor.range)})"
            raise self._error(tensor, f"has {values[at]} at {list(at)}; {allowed} is allowed")

    def _check_offsets(self, tensor: Tensor, values: np.ndarray[Any, Any], extent: int, longest: int | None) -> None:
        assert tensor.offsets is not None
        steps = np.diff(values, prepend=values.dtype.type(0))
        steps[:1] = 0
        if values[0] < 0:
            raise self._error(tensor, f"begins with {values[0]}; 0 or more is allowed")
        if (steps < 0).any():
            i = int(np.argmax(steps < 0))
            raise self._error(
                tensor, f"decreases at {i}, from {values[i - 1]} to {values[i]}; offsets may not decrease"
            )
        if values[-1] > extent:
            raise self._error(tensor, f"ends with {values[-1]}, but {tensor.offsets.into} is {extent}")
        if longest is not None and (steps > longest).any():
            i = int(np.argmax(steps > longest))
            name = tensor.offsets.longest
            raise self._error(tensor, f"gives sequence {i - 1} a length of {steps[i]}, but {name} is {longest}")

    def _error(self, tensor: Tensor, text: str) -> ArgumentError:
        return ArgumentError(f"{self.op.name}: argument '{tensor.name}' {text}")
