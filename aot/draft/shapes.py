"""The shapes of an op's tensors, from the launching function, or else from the kernel."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from .findings import READ
from .host_values import HostTensor
from .sizes import names_of
from .tensors import ONE, POINTER_NAME, Dim, DraftTensor, Extent, is_stride_name, strides_of
from .values import Sum
from .workbench import Workbench


class Shapes:
    """Finds the extents of each tensor, and its packed dims."""

    def __init__(self, work: Workbench):
        self.work, self.facts = work, work.launch.facts
        self.unseen: set[str] = set()
        self.counted: dict[str, str] = {}

    def find(self) -> None:
        """Fill `work.shapes`."""
        self._add_unseen()
        for tensor in self.work.tensors:
            self._order_dims(tensor)
        self._share_extents()
        for tensor in self.work.tensors:
            self._set_rank(tensor)
        self.work.launch.settle_names()
        for tensor in self.work.tensors:
            self._unify(tensor)
        for tensor in self.work.tensors:
            self.work.shapes[tensor.parameter] = self._shape(tensor)
        self._name_what_inputs_give()

    def _add_unseen(self) -> None:
        known = {tensor.parameter for tensor in self.work.tensors}
        for name, parameter in self.work.parameters.items():
            is_pointer = POINTER_NAME.search(name) or self.work.launch.is_tensor(name)
            if name not in known and is_pointer and not parameter.constexpr and not is_stride_name(name):
                self.work.tensors.append(DraftTensor(name, [Dim((), Sum({}))], frozenset({READ}), ()))
                self.unseen.add(name)

    def position(self, tensor: DraftTensor, dim: Dim) -> int | None:
        """Return the position of a dim, by the stride that the launch passes."""
        if len(dim.strides) != 1 or dim.strides[0] not in self.work.parameters:
            return None
        found = self.work.launch.stride(dim.strides[0])
        if found is None or not _are_alike(found[0], self.work.launch.tensor(tensor.parameter)):
            return None
        count = len(found[0].shape or ())
        return found[1] % count if count else found[1]

    def _order_dims(self, tensor: DraftTensor) -> None:
        """Put dims into the order of the positions that the launch gives their strides."""
        positions = [self.position(tensor, dim) for dim in tensor.dims]
        known = [position for position in positions if position is not None]
        strided = [dim for dim, position in zip(tensor.dims, positions, strict=True) if position is not None]
        if len(strided) > 1 and len(set(known)) == len(known) and len({item < 0 for item in known}) == 1:
            ordered = iter(sorted(strided, key=lambda dim: self.position(tensor, dim) or 0))
            tensor.dims = [next(ordered) if dim in strided else dim for dim in tensor.dims]

    def _share_extents(self) -> None:
        for stride, dims in strides_of(self.work.tensors).items():
            if not is_stride(self.work, stride):
                continue  # a size: what it multiplies may be anything
            every = [tensor.dims[position] for tensor, position in dims]
            known = [dim.extent for dim in every if dim.extent.is_known or dim.extent.program is not None]
            for dim in every if known else ():
                dim.extent = known[0] if not dim.extent.is_known else dim.extent

    def _set_rank(self, tensor: DraftTensor) -> None:
        host = self.work.launch.tensor(tensor.parameter)
        if host is None or host.shape is not None or tensor.parameter in self.unseen:
            return
        strided = [bool(dim.strides) and is_stride(self.work, dim.strides[0]) for dim in tensor.dims]
        # Where the launch counts dims from the first one, packed ones may be parts of the last.
        seen = sum(strided) + (not all(strided)) if host.counts_from_first else len(tensor.dims)
        host.set_rank(max(host.least_rank, seen))

    def placed(self, tensor: DraftTensor, count: int) -> dict[int, Dim]:
        """Return position in a shape of `count` dims → the kernel's dim, as far as known."""
        found: dict[int, Dim] = {}
        left: list[Dim] = []
        for dim in tensor.dims:
            position = self.position(tensor, dim)
            if position is not None and -count <= position < count:
                found[position % count] = dim
            else:
                left.append(dim)
        free = [position for position in range(count) if position not in found]
        if len(left) == len(free):
            found |= dict(zip(free, left, strict=True))
        elif len(left) == 1 and free and free[-1] == count - 1 and len(tensor.dims) > 1 and len(free) == 1:
            found[count - 1] = left[0]
        return found

    def _unify(self, tensor: DraftTensor) -> None:
        """Identify unknown extents with parameters that the kernel compares with."""
        host = self.work.launch.tensor(tensor.parameter)
        if host is None or host.shape is None or host.made or tensor.parameter in self.unseen:
            return
        final = self.work.launch.final
        for position, dim in self.placed(tensor, len(host.shape)).items():
            symbol = final(host.shape[position])
            text = final(self.work.extent(dim.extent))
            if dim.extent.note == ONE and len(tensor.dims) == 1:
                text = "1"
            if not text and dim.extent.note.startswith("quotient #"):
                text = self.counted.setdefault(dim.extent.note, symbol)
            hint = self.facts.hints.get(symbol)
            is_open = symbol.isidentifier() and (hint is None or hint == self.facts.hints.get(text))
            if not text or names_of(symbol) & names_of(text):
                continue
            if is_open:
                self.facts.same[symbol] = text
            elif dim.extent.is_sure and symbol != text:
                self.facts.required.append(f"{symbol} >= {text}")

    def _shape(self, tensor: DraftTensor) -> tuple[str, ...]:
        host = self.work.launch.tensor(tensor.parameter)
        if host is not None and host.shape is not None:
            final = [self.work.launch.final(text) for text in host.shape]
            return tuple(text or self._new(tensor, i) for i, text in enumerate(final))
        return tuple(
            self.work.launch.final(self.work.extent(dim.extent)) or self._noted(tensor, i, dim.extent)
            for i, dim in enumerate(tensor.dims)
        )

    def _noted(self, tensor: DraftTensor, position: int, extent: Extent) -> str:
        """Return a symbol for an extent that is only known to equal others."""
        if extent.note.startswith("quotient #"):
            return self.counted.setdefault(extent.note, self._new(tensor, position))
        return self._new(tensor, position)

    def _new(self, tensor: DraftTensor, position: int) -> str:
        return f"new__{self.work.tensor_name(tensor.parameter)}__{position}"

    def _name_what_inputs_give(self) -> None:
        """Make an input's extent a new dim if it is computed from sizes that no input has."""
        given = {key for key, tensor in self.facts.tensors.items() if tensor.is_given}
        for tensor in self.work.tensors:  # in the order in which a call looks at them
            for text in self.work.shapes[tensor.parameter] if READ in tensor.kinds else ():
                unknown = names_of(text) - given
                if len(unknown) == 1 and (text.isidentifier() or _is_solved_for(text, min(unknown))):
                    given |= unknown
                elif unknown:
                    self.facts.whole.setdefault(text, f"new__size__{len(self.facts.whole)}")
        self.work.shapes = {
            name: tuple(self.facts.whole.get(text, text) for text in shape) for name, shape in self.work.shapes.items()
        }
        self.work.launch.settle_names()

    # Packing

    def packed(self, tensor: DraftTensor) -> list[int]:
        """Return the positions of the dims that must be packed; none if only the last must be."""
        count = len(self.work.shapes[tensor.parameter])
        host = self.work.launch.tensor(tensor.parameter)
        if count < 2:
            return []
        if host is not None and host.is_packed:
            return list(range(count))
        shared = {s for s, dims in strides_of(self.work.tensors).items() if len({t.parameter for t, _ in dims}) > 1}
        own = {
            position
            for position, dim in self.placed(tensor, count).items()
            if len(dim.strides) == 1 and is_stride(self.work, dim.strides[0]) and dim.strides[0] not in shared
        }
        if tensor.is_handle or (not own and tensor.parameter in self.unseen):
            return []
        first = next((position for position in range(count) if position not in own), count)
        return list(range(first, count)) if first < count - 1 else []


def _is_solved_for(text: str, name: str) -> bool:
    match ast.parse(text, mode="eval").body:
        case ast.BinOp(left=ast.Name(id=left), op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv()) if left == name:
            return True
        case ast.BinOp(op=ast.Add() | ast.Mult(), right=ast.Name(id=right)) if right == name:
            return True
    return False


def is_stride(work: Workbench, name: str) -> bool:
    """Return True if a parameter is a stride, by its name or by the argument of the launch."""
    return is_stride_name(name) or (name in work.parameters and work.launch.stride(name) is not None)


def positions(shape: Sequence[str | int], dims: Iterable[int]) -> list[str | int]:
    """Return dims by name if it is unique, else by position."""
    return [shape[i] if shape.count(shape[i]) == 1 and str(shape[i]).isidentifier() else i for i in dims]


def _are_alike(one: HostTensor, other: HostTensor | None) -> bool:
    return other is not None and (one is other or one.like is other or other.like is one)
