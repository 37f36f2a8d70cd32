"""The state of drafting an op: a kernel's findings, and the names of its parts in the op.

A size is an expression of symbols until it is written into the op: the names of extents in the function that launches
the kernel (`aot.draft.host_values`), `arg__<parameter>` for a parameter of which that says nothing, `grid__<axis>` for
the number of programs, `new__<tensor>__<dim>` for an extent of which nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from aot_runtime.contract.manifest_rules import RESERVED_OPS
from aot_runtime.contract.names import RESERVED

from .body import read_body
from .draft import OpDraft
from .findings import Guard
from .host_values import HostTensor, atomic, size_text
from .sizes import functions_of, names_of, renamed, replaced, simplified
from .tensors import DraftTensor, Extent, find_tensors
from .texts import KernelText
from .wrapper import Launch, find_launch

FUNCTIONS = frozenset({"cdiv", "min", "max", "next_pow2", "num_cus"})


class Workbench:
    """A kernel, its findings, and the op that is being drafted.

    Attributes:
        parameters: by name; of a parameter that is a tuple its members.
        shapes: parameter that is a tensor → its extents, as expressions of symbols.
        dim_names: symbol → name of the dim.
        axis_dims: constexpr parameter that is an extent → name of the dim.
        scalar_names: argument of the function that launches the kernel → scalar of the op.
    """

    def __init__(self, kernel: KernelText, path: str):
        self.kernel = kernel
        self.found = read_body(kernel)
        self.parameters = {item.name: item for p in kernel.parameters for item in (p.members or (p,))}
        self.launch: Launch = find_launch(kernel.module, kernel.name, [p.name for p in kernel.parameters])
        passed = {name for name, p in self.parameters.items() if not p.constexpr and self.launch.is_tensor(name)}
        strides = {name for name in self.parameters if self.launch.stride(name) is not None}
        self.tensors = find_tensors(kernel, self.found, passed, strides)
        self.op = OpDraft(op_name(kernel.name), path)
        self.shapes: dict[str, tuple[str, ...]] = {}
        self.dim_names: dict[str, str] = {}
        self.axis_dims: dict[str, str] = {}
        self.scalar_names: dict[str, str] = {}

    # Tensors

    def tensor_name(self, parameter: str) -> str:
        """Return the name of a tensor: its parameter's, without a prefix or suffix for pointers."""
        name = re.sub(r"(?i)_?(ptrs?|pointer|desc)$|^desc_", "", parameter.partition(".")[0]).strip("_")
        return free(clean(name or parameter), set())

    def tensor_passed_for(self, host: HostTensor | None) -> DraftTensor | None:
        """The tensor of the kernel that a tensor of the launch is."""
        name = self.launch.parameter_of(host, [tensor.parameter for tensor in self.tensors])
        return next((tensor for tensor in self.tensors if tensor.parameter == name), None)

    def tensor_of_key(self, key: str) -> DraftTensor | None:
        """The tensor of the kernel that is, or is a view of, a tensor of the launch."""
        views = [
            tensor
            for tensor in self.tensors
            if (host := self.launch.tensor(tensor.parameter)) is not None and host.is_given and _is_of(host, key)
        ]
        return views[0] if views else None

    def guarded_by(self, guard: Guard) -> list[DraftTensor]:
        """Return the tensors that are accessed only under a condition."""
        return [tensor for tensor in self.tensors if guard in tensor.guards]

    def spec(self, tensor: DraftTensor) -> dict[str, object]:
        """A tensor as the op has it."""
        return self.op.tensors[self.tensor_name(tensor.parameter)]

    # Sizes

    def symbolic(self, parameter: str) -> str:
        """The size that a parameter is, as an expression of symbols."""
        constant = self.launch.constant(parameter)
        if type(constant) is int and self.parameters[parameter].constexpr:
            return str(constant)
        text = self.launch.size(parameter)
        return text or f"arg__{parameter.replace('.', '__dot__')}"

    def extent(self, extent: Extent) -> str:
        """An extent of the kernel's as an expression of symbols; empty where nothing is known of it."""
        if extent.number is not None:
            return str(extent.number)
        if name := extent.argument or extent.length:
            return self.symbolic(name)
        if extent.text:
            names = {name: f"({self.symbolic(name)})" for name in names_of(extent.text) if name in self.parameters}
            return simplified(renamed(extent.text, names))
        if extent.program is not None:
            programs = self._programs(extent.program)
            return programs if extent.times == 1 else f"{extent.times} * {atomic(programs)}"
        return ""

    def _programs(self, axis: int) -> str:
        written = size_text(self.launch.grid[axis]) if axis < len(self.launch.grid) else ""
        text = self.launch.final(written)
        tuned = names_of(text) & {name for name, p in self.parameters.items() if p.constexpr}
        return text if text and not tuned and "num_cus" not in names_of(text) else f"grid__{axis}"

    def expression(self, text: str, declared: bool = True) -> str:
        """Translate an expression of symbols into the op's names; empty if the op lacks one of them.

        Args:
            declared: dims must already be in the shape of a tensor.
        """
        if not text or not functions_of(text) <= FUNCTIONS:
            return ""
        names = {name: self.name_of(name) for name in names_of(text)}
        if not all(names.values()):
            return ""
        found = renamed(text, names)
        return found if not declared or names_of(found) <= self.usable() | FUNCTIONS else ""

    def with_blocks(self, text: str) -> str:
        """Replace the sizes that compiled blocks are computed from by the blocks' names, in an expression."""
        blocks = {self.launch.size(name): name for name, p in self.parameters.items() if p.constexpr}
        return replaced(text, {size: name for size, name in blocks.items() if size and not size.isidentifier()})

    def usable(self) -> set[str]:
        """The names that expressions of the op may have."""
        tuned = {name for config in self.kernel.autotuning.configs[:1] for name, _ in config.blocks}
        return {*self.op.dims(), *self.op.scalars, *self.op.constexprs, *self.op.blocks, *tuned}

    def name_of(self, symbol: str) -> str:
        """Return the op's name of a symbol; empty if it has none."""
        if symbol in self.dim_names:
            return self.dim_names[symbol]
        if symbol in FUNCTIONS:
            return symbol
        if symbol in self.scalar_names:
            return self.scalar_names[symbol]
        if (argument := self.launch.facts.tensors.get(symbol)) is not None and argument.is_given:
            return self._scalar(argument)
        if symbol in self.parameters and "__" not in symbol:
            bound = self.op.bind.get(symbol)
            return bound if isinstance(bound, str) else symbol  # a block, as a grid has it
        name = self._new_name(symbol)
        if name:
            self.dim_names[symbol] = name
        return name

    def _scalar(self, argument: HostTensor) -> str:
        """The scalar that an argument of the function that launches the kernel is, which is not a tensor there."""
        passed = self.launch.parameter_of(argument, [n for n, p in self.parameters.items() if not p.constexpr])
        name = free(clean(passed or argument.key), {*self._taken(), *self.parameters} - {passed, argument.key})
        if not passed and any(self.launch.arguments.get(n) is argument for n in self.parameters):
            name = free(clean(argument.key.lower()), {*self._taken(), *self.parameters})
        self.scalar_names[argument.key] = name
        default = getattr(argument.default, "value", None)
        self.op.scalars[name] = {"type": "i32", **({"default": default} if type(default) is int else {})}
        return name

    def _new_name(self, symbol: str) -> str:
        same = [name for name in self.parameters if self.symbolic(name) == symbol]
        plain = [name for name in same if not self.parameters[name].constexpr]
        if plain:
            name = clean(plain[0])
            return free(name, self._taken() - ({plain[0]} - {"T"}))
        if same:
            return self._axis_dim(same[0])
        if hint := self.launch.facts.hints.get(symbol):
            return free(clean(hint), {*self._taken(), *self.parameters})
        if symbol.startswith("grid__"):
            axis = symbol.removeprefix("grid__")
            return free("rows" if axis == "0" else f"n{axis}", self._taken())
        owner, _, position = symbol.rpartition("__")
        if not owner or not re.fullmatch(r"m?\d+|numel|v", position):
            return ""
        tensor = re.sub(r"(?i)_?(ptrs?|pointer)$", "", owner.removeprefix("new__"))
        kind = "rows" if position == "0" else "size" if position in ("numel", "v") else f"dim{position}"
        return free(clean(f"{tensor.lower()}_{kind}"), self._taken())

    def _axis_dim(self, parameter: str) -> str:
        name = re.sub(r"^(n|num)_", "", clean(parameter).lower())
        self.axis_dims[parameter] = name = free(name, {*self._taken(), *self.parameters})
        return name

    def _taken(self) -> set[str]:
        tensors = {self.tensor_name(tensor.parameter) for tensor in self.tensors}
        return {*self.dim_names.values(), *tensors, *self.op.names(), "T"}


def _is_of(tensor: HostTensor, key: str) -> bool:
    return tensor.key == key or re.fullmatch(rf"{re.escape(key)}_\d+", tensor.key) is not None


def op_name(kernel: str) -> str:
    """Return the name of an op, given its kernel's name."""
    name = clean(re.sub(r"(?i)^triton_|_kernel(?=_|$)|^kernel_", "", kernel.strip("_"))) or "op"
    return f"{name}_op" if name in RESERVED_OPS or name in RESERVED else name


def clean(name: str) -> str:
    """Return a name that manifests allow."""
    name = re.sub(r"_+", "_", re.sub(r"\W", "_", name)).strip("_")
    name = name if name[:1].isalpha() else f"n{name}"
    return f"{name}_value" if name in RESERVED else name


def free(name: str, taken: Collection[str]) -> str:
    """Return a name that is not taken."""
    return name if name not in taken else free(f"{name}_dim", taken)
