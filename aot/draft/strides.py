"""Bind stride parameters by the launch's arguments, else by the index that they multiply, else by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .host_values import HostTensor
from .shapes import Shapes, is_stride
from .tensors import DraftTensor, is_stride_name, strides_of
from .workbench import Workbench


class Strides:
    """Binds strides.

    Attributes:
        bound: the parameters that are strides, whether their names bind them or `bind` does.
    """

    def __init__(self, work: Workbench, shapes: Shapes):
        self.work, self._shapes = work, shapes
        self.bound: set[str] = set()

    def bind(self) -> None:
        """Bind each parameter that is a stride of a tensor."""
        for name, parameter in self.work.parameters.items():
            found = self._passed(name) or self._used(name) or self._named(name)
            if found is None:
                continue
            tensor, position = found
            self.bound.add(name)
            owner = self.work.tensor_name(tensor.parameter)
            shape = self.work.op.tensors[owner]["shape"]
            if parameter.constexpr:
                self._bind_constant(name, shape[position + 1 :])
                continue
            names = {str(position), *([shape[position]] if shape.count(shape[position]) == 1 else [])}
            if not any(name == f"stride_{owner}_{dim}" for dim in names):
                dim = next((item for item in names if str(item).isidentifier()), position)
                self.work.op.bind[name] = f"stride({owner}, {dim})"

    def _passed(self, name: str) -> tuple[DraftTensor, int] | None:
        passed = self.work.launch.stride(name)
        if passed is None:
            return None
        tensor = self.work.tensor_passed_for(passed[0]) or self._like(passed[0])
        if tensor is None:
            return None
        count = len(self.work.shapes[tensor.parameter])
        return (tensor, passed[1] % count) if -count <= passed[1] < count else None

    def _like(self, host: HostTensor) -> DraftTensor | None:
        passed = ((tensor, self.work.launch.tensor(tensor.parameter)) for tensor in self.work.tensors)
        return next((tensor for tensor, own in passed if own is not None and own.like is host), None)

    def _used(self, name: str) -> tuple[DraftTensor, int] | None:
        uses = strides_of(self.work.tensors).get(name, [])
        parameter = self.work.parameters[name]
        limits = {atom.key for bound in self.work.found.bounds for atom in bound.limit.atoms}
        is_size = parameter.constexpr or self.work.launch.size(name) or name in limits
        is_size = is_size or self.work.symbolic(name) in self._extents()
        if not uses or (is_size and not is_stride(self.work, name)):
            return None
        tensor, position = uses[0]
        count = len(self.work.shapes[tensor.parameter])
        places = self._shapes.placed(tensor, count)
        at = next((at for at, dim in places.items() if dim is tensor.dims[position]), position)
        return (tensor, at) if at < count else None

    def _extents(self) -> set[str]:
        return {text for shape in self.work.shapes.values() for text in shape}

    def _named(self, name: str) -> tuple[DraftTensor, int] | None:
        if not is_stride_name(name):
            return None
        for tensor in self.work.tensors:
            owner = self.work.tensor_name(tensor.parameter)
            for position, dim in enumerate(self.work.op.tensors[owner]["shape"]):
                if name in (f"stride_{owner}_{dim}", f"stride_{owner}_{position}"):
                    return tensor, position
        bare = re.sub(r"(?i)stride|row|col|_", "", name).lower()
        likely = [t for t in self.work.tensors if bare.startswith(self.work.tensor_name(t.parameter).lower())]
        tensors = likely or self.work.tensors[:1]
        if not tensors or not self.work.shapes[tensors[0].parameter]:
            return None
        self.work.op.note("bind", name, f"the stride that {name} is")
        return max(tensors, key=lambda tensor: len(tensor.parameter)), 0

    def _bind_constant(self, name: str, inner: Sequence[str | int]) -> None:
        """Bind a constexpr stride: in packed memory, the product of the inner extents, if these are constexprs too."""
        axes = {dim: axis for axis, dim in self.work.axis_dims.items()}
        factors = [str(axes.get(str(dim), dim)) for dim in inner]
        known = all(factor.isdigit() or factor in self.work.axis_dims for factor in factors)
        self.work.op.bind[name] = " * ".join(factors) if known and factors else 1024 if factors else 1
        if factors and not known:
            self.work.op.note("bind", name, f"{name}, which is compiled in")
