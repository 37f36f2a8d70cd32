"""Random calls of any op: most satisfy its contract, and many break a single rule."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aot_runtime.contract.arch import device_names
from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import parse, query_name
from aot_runtime.contract.layout import Layout, make_layout, packed_strides, packing_order
from aot_runtime.contract.names import Scope
from aot_runtime.contract.partial_evaluation import evaluate
from aot_runtime.contract.records import Op, Scalar, Target, Tensor
from aot_runtime.errors import AotError

EXTENTS = (1, 1, 2, 3, 4, 8, 16, 17, 32, 48, 64, 64, 96, 128, 128, 256, 300, 512, 1024, 4096, 5000, 40000)
NUMBERS = (-2, -1, 0, 1, 2, 3, 7, 16, 64, 128, 1000, 2**20, 2**31 - 1, 2**31, -(2**31) - 1, 2**62)
FLOATS = (0.0, 1.0, -1.0, 0.125, 1e-6, 0.1, 3e38, 1e39, float("inf"), float("nan"))
ADDRESS = 1 << 56


@dataclass(frozen=True)
class RandomCall:
    """A call's tensors and scalars; what is None is not passed."""

    layouts: Mapping[str, Layout | None]
    addresses: Mapping[str, int]
    scalars: Mapping[str, Any]


class RandomCalls:
    """Calls of one op."""

    def __init__(self, op: Op, target: Target, source: random.Random):
        self.op, self.target, self.random = op, target, source
        self.dims = list(Scope.of(op).dims)
        self.limits = {limit.name: limit.max for limit in op.dims}

    def make(self, cus: int) -> RandomCall | None:
        """Draw a call; return None if no shapes follow from what was drawn."""
        op, pick = self.op, self.random.choice
        pool = self.random.sample(EXTENTS, 3)
        names: dict[str, Any] = {name: self._extent(name, pool) for name in self.dims}
        names |= {variable: pick(dtypes) for variable, dtypes in op.dtypes.items()} | device_names(
            self.target.arch, cus
        )
        present = {t.name for t in op.tensors if not t.optional or self.random.random() < 0.4}
        scalars = {scalar.name: self._scalar(scalar) for scalar in op.scalars}
        for tensor in op.tensors:
            names[query_name("given", tensor.name)] = tensor.name in present
            names[query_name("elsize", tensor.name)] = DTYPES[names.get(tensor.dtype, tensor.dtype)].size
        names |= {query_name("elsize", variable): DTYPES[names[variable]].size for variable in op.dtypes}
        try:
            for scalar in op.scalars:
                default = evaluate(parse(scalar.default), names) if scalar.default else 0
                names[scalar.name] = default if scalars[scalar.name] is None else scalars[scalar.name]
            for item in op.derived:
                names[item.name] = evaluate(parse(item.value), names)
            absent = {t.name for t in op.tensors if t.when and not evaluate(parse(t.when), names)}
            kept = [t for t in op.tensors if t.name in present - absent or self.random.random() < 0.01]
            layouts = {tensor.name: self._layout(tensor, names) for tensor in kept}
        except AotError:
            return None
        outputs = {tensor.name for tensor in op.tensors if tensor.role == "output"}
        layouts = {name: item for name, item in layouts.items() if name in outputs or self.random.random() > 0.01}
        if any(min(item.shape, default=1) < 0 or len(item.shape) > 8 for item in layouts.values()):
            return None
        # Far apart, and in the same order as the tensors are.
        addresses = {t.name: ADDRESS * (i + 1) + (0 if layouts[t.name].aligned else 4)
                     for i, t in enumerate(op.tensors) if t.name in layouts}  # fmt: skip
        return RandomCall({t.name: layouts.get(t.name) for t in op.tensors}, addresses, scalars)

    def _extent(self, dim: str, pool: list[int]) -> int:
        """Draw an extent, mostly one that the dim may have. Extents that must agree often do, as few are drawn from."""
        most = self.limits.get(dim, 2**31)
        allowed = [extent for extent in pool if extent <= most] or [extent for extent in EXTENTS if extent <= most]
        return self.random.choice(allowed if allowed and self.random.random() < 0.97 else pool)

    def _scalar(self, scalar: Scalar) -> Any:
        if scalar.default and self.random.random() < 0.6:
            return None
        match scalar.type:
            case "choice":
                return self.random.choice(scalar.choices)
            case "flag" | "i1":
                return self.random.choice((True, False))
            case "fp16" | "bf16" | "fp32" | "fp64":
                return self.random.choice(FLOATS)
        return self.random.choice(NUMBERS if self.random.random() < 0.5 else NUMBERS[1:10])

    def _layout(self, tensor: Tensor, names: Mapping[str, Any]) -> Layout:
        draw = self.random.random
        shape = [1 if dim.broadcast and draw() < 0.3 else evaluate(parse(dim.extent), names) for dim in tensor.shape]
        dtype = "int64" if tensor.also_int64 and draw() < 0.5 else names.get(tensor.dtype, tensor.dtype)
        if draw() < 0.01:
            dtype = self.random.choice(tuple(DTYPES))
        if draw() < 0.02 and shape:
            shape[self.random.randrange(len(shape))] += 1
        if draw() < 0.01:
            shape.append(2)
        if any(not isinstance(extent, int) for extent in shape):
            raise AotError("no shape")
        innermost = self.random.choice(tensor.innermost) if tensor.innermost else None
        order = packing_order(tensor, len(shape), innermost=innermost)
        strides = list(packed_strides(tuple(shape), order))
        for dim in range(len(strides)):
            if draw() < 0.03:
                strides[dim] = self.random.choice((0, 1, -1, 2, strides[dim] + 16, strides[dim] * 3, 2**33))
        device = (self.target.backend, 0)
        return make_layout(device, dtype, tuple(shape), tuple(strides), draw() > 0.05)


def damaged(call: Mapping[str, Any], source: random.Random) -> None:
    """Put nonsense into some members of a call's tensors, as a faulty program might."""
    numbers = (0, 1, -1, 2, 8, 9, 63, 2**31, -(2**31), 2**53, 2**62, 2**63 - 1, -(2**63))
    for tensor in filter(None, call.values()):
        for _ in range(source.choice((0, 0, 0, 1, 2))):
            match source.randrange(5):
                case 0:
                    tensor.rank = source.choice((-1, 0, 1, 5, 8, 9, 2**31 - 1))
                case 1:
                    tensor.dtype = source.choice((-1, 0, 1, 17, 18, 2**31 - 1, -(2**31)))
                case 2:
                    tensor.shape[source.randrange(8)] = source.choice(numbers)
                case 3:
                    tensor.strides[source.randrange(8)] = source.choice(numbers)
                case 4:
                    tensor.address = source.choice((0, 1, 16, 2**63, 2**64 - 1))
