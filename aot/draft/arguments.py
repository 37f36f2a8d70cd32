"""The tensors and scalars of an op: what each parameter of its kernel is, and how the parameters are bound."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from aot.manifest.schema import TensorSpec

from .findings import READ, UPDATE
from .tensors import POINTER_NAME, Dim, DraftTensor, Extent, is_block_name, is_stride_name, strides_of
from .values import Sum, arguments
from .workbench import Workbench, clean, free

_STATISTIC = re.compile(r"(?i)mean|rstd|rvar|rms|lse|logsumexp|loss|delta|lock|(^|_)(m|l)(_ptr)?$|stat")
_INDEX = re.compile(
    r"(?i)idx|index|indices|label|target|(^|_)ids?(_|$)|offs|cu_seq|lens?(_|$)|lock|count|table|freq|slots?"
)
_NARROW = re.compile(r"(?i)offs|start|cu_|len|count|table|lock|freq|lut|block|tile")
_MASK = re.compile(r"(?i)(^|_)mask")
_FRACTION = re.compile(
    r"(?i)eps|scale|alpha|beta|gamma|prob|drop|temp|momentum|factor|mult|decay|smooth|softcap|^lr$|^p$|rate|weight"
)
_INTEGER = re.compile(
    r"(?i)index|idx|seed|start|^n_|num|_len|size|count|vocab|^[A-Z]{1,3}$|stride|^n[a-z]$|offset_?[a-z]$|pos|bs$|sl$"
)
FLOATS = ["float16", "bfloat16", "float32"]


class Arguments:
    """Declares the tensors and scalars of an op."""

    def __init__(self, work: Workbench):
        self.work = work

    def add_tensors(self) -> None:
        self._add_unseen()
        self._order_dims()
        self._take_shapes()
        self._share_extents()
        self._add_tensors()
        self._bind_strides()

    def _add_unseen(self) -> None:
        """Pointers by name that no access was found of."""
        known = {tensor.parameter for tensor in self.work.tensors}
        for name, parameter in self.work.parameters.items():
            if name not in known and POINTER_NAME.search(name) and not parameter.constexpr and not is_stride_name(name):
                self.work.tensors.append(DraftTensor(name, [Dim((), Sum({}))], frozenset({READ}), ()))

    def _order_dims(self) -> None:
        """By the positions that the launch gives strides."""
        for tensor in self.work.tensors:
            positions = [self._position(dim) for dim in tensor.dims]
            known = [position for position in positions if position is not None]
            strided = [dim for dim, position in zip(tensor.dims, positions, strict=True) if position is not None]
            if len(strided) > 1 and len(set(known)) == len(known):
                ordered = iter(sorted(strided, key=lambda dim: self._position(dim) or 0))
                tensor.dims = [next(ordered) if dim in strided else dim for dim in tensor.dims]

    def _position(self, dim: Dim) -> int | None:
        stride = self.work.launch.stride(dim.strides[0]) if len(dim.strides) == 1 else None
        return stride[1] if stride else None

    def _take_shapes(self) -> None:
        """Parameters that the launch takes from shapes are the extents of dims of which no more is known."""
        for name in self.work.parameters:
            if name not in self.work.launch.arguments:
                continue
            place = self.work.launch.size(self.work.launch.arguments[name])
            tensor = self.work.tensor_of(place[0]) if place else None
            if tensor is None or place is None or (place[2] and place[2] != len(tensor.dims)):
                continue
            if place[1] < len(tensor.dims) and not tensor.dims[place[1]].extent.is_known:
                old = tensor.dims[place[1]].extent
                for other in self.work.tensors:
                    for dim in other.dims:
                        if (dim.extent == old and old.program is not None) or dim is tensor.dims[place[1]]:
                            dim.extent = Extent(argument=name)

    def _share_extents(self) -> None:
        """Dims that have one stride have one extent."""
        for stride, dims in strides_of(self.work.tensors).items():
            if not is_stride_name(stride):
                continue  # a size: what it multiplies may be anything
            every = [tensor.dims[position] for tensor, position in dims]
            known = [dim.extent for dim in every if dim.extent.is_known or dim.extent.program is not None]
            for dim in every if known else ():
                dim.extent = known[0] if not dim.extent.is_known else dim.extent

    def _add_tensors(self) -> None:
        shared = {s for s, dims in strides_of(self.work.tensors).items() if len({t.parameter for t, _ in dims}) > 1}
        for tensor in self.work.tensors:
            _with_packed_extents(tensor)
            name = self.work.tensor_name(tensor.parameter)
            shape = [self.work.dim_name(dim.extent, name, i) for i, dim in enumerate(tensor.dims)]
            item: dict[str, object] = {"shape": shape, "dtype": self._dtype(tensor)}
            role = self._role(tensor)
            if role != "input":
                item["role"] = role
            packed = [i for i, dim in enumerate(tensor.dims) if i + 1 < len(shape) and _is_packed(dim, shared)]
            if packed:
                item["contiguous"] = _positions(shape, range(min(packed), len(shape)))
            self._add_presence(tensor, item)
            if tensor.kinds & {UPDATE} and role == "output":
                item["zero"] = True
            self.work.op.tensors[name] = item
            if tensor.is_handle and tensor.parameter in self.work.found.blocks_at:
                self._bind_descriptor(tensor, name)
            elif name != tensor.parameter and f"{name}_ptr" != tensor.parameter:
                self.work.op.bind[tensor.parameter] = name
        outputs = [name for name, item in self.work.op.tensors.items() if item.get("role") == "output"]
        inputs = [name for name in self.work.op.tensors if name not in outputs]
        self.work.op.tensors = {name: self.work.op.tensors[name] for name in (*inputs, *outputs)}
        required = [item for name in inputs if not (item := self.work.op.tensors[name]).get("optional")]
        if any(item["dtype"] == "T" for item in required):
            self.work.op.dtypes["T"] = FLOATS
        else:
            for item in self.work.op.tensors.values():
                item["dtype"] = "float32" if item["dtype"] == "T" else item["dtype"]

    def _bind_descriptor(self, tensor: DraftTensor, name: str) -> None:
        """A descriptor of blocks whose lengths multiply the indices of the dims."""
        blocks: list[str | int] = []
        for dim in tensor.dims:
            lengths = [item for item in arguments(dim.index.atoms) if self.work.parameters[item].constexpr]
            blocks.append(next((item for item in lengths if is_block_name(item)), 64))
        self.work.op.bind[tensor.parameter] = {"value": name, "block": blocks}
        if 64 in blocks:
            self.work.op.notes["bind", tensor.parameter] = f"the blocks of {tensor.parameter}"

    def _role(self, tensor: DraftTensor) -> str:
        name = self.work.tensor_name(tensor.parameter)
        if tensor.kinds <= {READ}:
            return "input"
        if UPDATE in tensor.kinds:
            zeroed = tensor.parameter in self.work.kernel.autotuning.zeroed or "zeros" in self.work.made(tensor)
            if zeroed and "zero" in TensorSpec.model_fields and READ not in tensor.kinds:
                return "output"
            self.work.op.notes["tensors", name] = "the kernel adds to it: pass zeros, or what is to be added to"
            return "inout"
        return "inout" if READ in tensor.kinds else "output"

    def _dtype(self, tensor: DraftTensor) -> str:
        made = re.search(r"torch\.(float32|float16|bfloat16|int32|int64|int8|uint8|bool)\b", self.work.made(tensor))
        if made and (tensor.kinds != {READ} or not made[1].endswith(("16", "float32"))):
            return made[1]
        name = tensor.parameter
        if tensor.is_index or (_INDEX.search(name) and not tensor.kinds & {UPDATE}) or "lock" in name.lower():
            return "int32" if _NARROW.search(name) else "int64"
        if _MASK.search(name) and tensor.kinds <= {READ}:
            return "bool"
        return "float32" if _STATISTIC.search(name) and not re.search(r"(?i)scale|^d[a-z]$", name) else "T"

    def _add_presence(self, tensor: DraftTensor, item: dict[str, object]) -> None:
        for guard in tensor.guards:
            if guard.presence and guard.parameter == tensor.parameter and item.get("role") != "output":
                item["optional"] = True

    def _bind_strides(self) -> None:
        accessed = strides_of(self.work.tensors)
        for name, parameter in self.work.parameters.items():
            is_size = name in self.work.dim_names or parameter.constexpr
            if name in accessed and (is_stride_name(name) or not is_size):
                tensor, position = accessed[name][0]
            elif is_stride_name(name) and (found := self._named_stride(name)):
                tensor, position = found
            else:
                continue
            owner = self.work.tensor_name(tensor.parameter)
            shape = self.work.op.tensors[owner]["shape"]
            dim = (
                shape[position]
                if shape.count(shape[position]) == 1 and str(shape[position]).isidentifier()
                else position
            )
            if name != f"stride_{owner}_{dim}":
                self.work.op.bind[name] = f"stride({owner}, {dim})"
            if parameter.constexpr:
                self._bind_constant_stride(name, shape[position + 1 :])

    def _bind_constant_stride(self, name: str, inner: Sequence[str | int]) -> None:
        """A stride that is compiled in: of packed memory the product of what lies inside, if that is, too."""
        axes = {dim: axis for axis, dim in self.work.axis_dims.items()}
        factors = [str(axes.get(str(dim), dim)) for dim in inner]
        known = all(factor.isdigit() or factor in self.work.axis_dims for factor in factors)
        self.work.op.bind[name] = " * ".join(factors) if known and factors else 1024 if factors else 1
        if factors and not known:
            self.work.op.notes["bind", name] = f"{name}, which is compiled in"

    def _named_stride(self, name: str) -> tuple[DraftTensor, int] | None:
        """The tensor that a stride which the kernel does not use belongs to, by the launch, else by its name."""
        passed = self.work.launch.stride(name)
        tensor = self.work.tensor_of(passed[0]) if passed else None
        if tensor is None:
            bare = re.sub(r"(?i)stride|row|col|_", "", name)
            likely = [
                t for t in self.work.tensors if bare.lower().startswith(self.work.tensor_name(t.parameter).lower())
            ]
            tensor = max(
                likely, key=lambda t: len(t.parameter), default=self.work.tensors[0] if self.work.tensors else None
            )
        if tensor is None or not tensor.dims:
            return None
        count = len(tensor.dims)
        position = passed[1] if passed else 0
        return tensor, min(max(position + count if position < 0 else position, 0), count - 1)

    # Scalars, and what is left

    def add_scalars(self) -> None:
        taken = {*self.work.dim_names, *self.work.op.bind, *self.work.op.blocks, *self.work.op.constexprs}
        tensors = {tensor.parameter for tensor in self.work.tensors}
        for name, parameter in self.work.parameters.items():
            if parameter.constexpr or name in taken or name in tensors or parameter.has_default or parameter.members:
                continue
            scalar = free(clean(name), {*self.work.op.tensors, "T"})
            if scalar != name:
                self.work.op.bind[name] = scalar
            self.work.op.scalars[scalar] = {"type": parameter.type or self._scalar_type(name)}
            default = self.work.launch.constant(self.work.launch.arguments.get(name))
            if type(default) in (int, float):
                self.work.op.scalars[scalar]["default"] = default

    def _scalar_type(self, name: str) -> str:
        passed = self.work.launch.constant(self.work.launch.arguments.get(name))
        text = self.work.launch.text(name)
        if isinstance(passed, bool):
            return "i1"
        if type(passed) is int:
            return "i32" if abs(passed) < 2**31 and not _FRACTION.search(name) else "fp32"
        if isinstance(passed, float) or text.startswith("float(") or name.endswith(("eps", "scale")):
            return "fp32"
        limits = {atom.key for bound in self.work.found.bounds for atom in bound.limit.below}
        indices = {atom.key for access in self.work.found.accesses for atom in access.pointer.below}
        if name in limits or name in indices:
            return "i32"
        if _FRACTION.search(name):
            return "fp32"
        if name in self.work.found.integers or (_INTEGER.search(name) and name not in self.work.found.floats):
            return "i32"
        return "fp32"

    def give_dims_to_inputs(self) -> None:
        """A dim that only outputs have is that of an array which the caller passes: an inout."""
        for name, item in self.work.op.tensors.items():
            if item.get("role") != "output":
                continue
            others = [other for other in self.work.op.tensors.values() if other.get("role") != "output"]
            given = {dim for other in others if not other.get("optional") for dim in other["shape"]}
            if {dim for dim in item["shape"] if str(dim).isidentifier()} - given:
                item["role"] = "inout"
                item.pop("when", None)
                item.pop("zero", None)
                note = "only this tensor has its extents, so the caller passes it"
                self.work.op.notes["tensors", name] = note

    def add_divisible(self) -> None:
        last = [item["shape"][-1] for item in self.work.op.tensors.values() if item["shape"]]
        names = [dim for dim in last if dim in self.work.parameters and not self.work.parameters[dim].constexpr]
        self.work.op.divisible = list(dict.fromkeys(names))


def _is_packed(dim: Dim, shared: set[str]) -> bool:
    """Whether a dim's stride is that of packed memory: made of sizes, or one for several tensors."""
    return bool(dim.strides) and (not is_stride_name(dim.strides[0]) or dim.strides[0] in shared)


def _with_packed_extents(tensor: DraftTensor) -> None:
    """A row of a packed tensor is as long as the number that multiplies its index."""
    for outer, inner in zip(tensor.dims, tensor.dims[1:], strict=False):
        strides = outer.strides
        if (
            len(strides) == 1
            and not is_stride_name(strides[0])
            and not inner.strides
            and inner.extent.argument != strides[0]
        ):
            inner.extent = Extent(argument=strides[0])


def _positions(shape: Sequence[str | int], dims: Iterable[int]) -> list[str | int]:
    return [shape[i] if shape.count(shape[i]) == 1 and str(shape[i]).isidentifier() else i for i in dims]
