"""What is known of a kernel while its op is put together, and what its parts are called there."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

from aot_runtime.contract.names import RESERVED, RESERVED_OPS

from .body import read_body
from .draft import OpDraft
from .findings import Guard
from .tensors import DraftTensor, Extent, find_tensors
from .texts import KernelText
from .wrapper import Launch, find_launch


class Workbench:
    """A kernel, what was found in it, and the op that is being made.

    Attributes:
        parameters: by name; of a parameter that is a tuple its members.
        dim_names: parameter, or what else an extent is known by → name of the dim.
        axis_dims: constexpr parameter that is an extent → name of the dim.
    """

    def __init__(self, kernel: KernelText, path: str):
        self.kernel = kernel
        self.found = read_body(kernel)
        self.tensors = find_tensors(kernel, self.found)
        self.parameters = {item.name: item for p in kernel.parameters for item in (p.members or (p,))}
        self.launch: Launch = find_launch(kernel.module, kernel.name, [p.name for p in kernel.parameters])
        self.op = OpDraft(op_name(kernel.name), path)
        self.dim_names: dict[str, str] = {}
        self.axis_dims: dict[str, str] = {}

    def tensor_name(self, parameter: str) -> str:
        """What a tensor is called: its parameter without what says that it is a pointer."""
        name = re.sub(r"(?i)_?(ptrs?|pointer|desc)$|^desc_", "", parameter.partition(".")[0]).strip("_")
        return free(clean(name or parameter), set())

    def tensor_of(self, text: str) -> DraftTensor | None:
        """The tensor that an expression of the launch is."""
        name = self.launch.parameter_of(text, [tensor.parameter for tensor in self.tensors])
        return next((tensor for tensor in self.tensors if tensor.parameter == name), None)

    def guarded_by(self, guard: Guard) -> list[DraftTensor]:
        """The tensors that are accessed only under a condition."""
        return [tensor for tensor in self.tensors if guard in tensor.guards]

    def made(self, tensor: DraftTensor) -> str:
        """How the launch's function makes a tensor, as text."""
        node = self.launch.names.get(self.launch.text(tensor.parameter))
        return ast.unparse(node) if node is not None else ""

    def dim_name(self, extent: Extent, tensor: str, position: int) -> str | int:
        if extent.number is not None:
            return extent.number
        if name := extent.argument or extent.length:
            return self.named_dim(name)
        if extent.program is not None:
            return self.program_dim(extent.program)
        factors = extent.note.split("*")
        if len(factors) > 1 and all(factor in self.parameters for factor in factors):
            return " * ".join(
                self.named_dim(factor) if self.parameters[factor].constexpr else self.dim_names.get(factor, factor)
                for factor in factors
            )
        key = (
            extent.note if extent.note.startswith("quotient") and extent.note != "quotient" else f"{tensor}.{position}"
        )
        if key not in self.dim_names:
            self.dim_names[key] = free(
                f"{tensor.lower()}_{'rows' if position == 0 else f'dim{position}'}", self.taken()
            )
        return self.dim_names[key]

    def named_dim(self, parameter: str) -> str:
        """The dim that a parameter is the extent of."""
        if parameter not in self.dim_names:
            name = clean(parameter)
            if self.parameters[parameter].constexpr:
                name = re.sub(r"^(n|num)_", "", name.lower())
                self.axis_dims[parameter] = name = free(name, {*self.taken(), *self.parameters})
            else:
                name = free(name, {"T", *(self.tensor_name(tensor.parameter) for tensor in self.tensors)})
                if name != parameter:
                    self.op.bind[parameter] = name
            self.dim_names[parameter] = name
        return self.dim_names[parameter]

    def program_dim(self, axis: int) -> str:
        key = f"#{axis}"
        if key not in self.dim_names:
            node = self.launch.grid[axis] if axis < len(self.launch.grid) else None
            written = node.id if isinstance(node, ast.Name) else ""
            passed = self.launch.parameter_of(written, self.parameters) if written else ""
            if passed:
                return self.named_dim(passed)
            default = "rows" if axis == 0 else f"n{axis}"
            self.dim_names[key] = free(clean(written) if written else default, self.taken())
        return self.dim_names[key]

    def taken(self) -> set[str]:
        tensors = {self.tensor_name(tensor.parameter) for tensor in self.tensors}
        return {*self.dim_names.values(), *tensors, *self.op.names(), "T"}


def op_name(kernel: str) -> str:
    """What an op is called whose kernel has a name."""
    name = clean(re.sub(r"(?i)^triton_|_kernel(?=_|$)|^kernel_", "", kernel.strip("_"))) or "op"
    return f"{name}_op" if name in RESERVED_OPS or name in RESERVED else name


def clean(name: str) -> str:
    """A name that manifests allow."""
    name = re.sub(r"_+", "_", re.sub(r"\W", "_", name)).strip("_")
    name = name if name[:1].isalpha() else f"n{name}"
    return f"{name}_value" if name in RESERVED else name


def free(name: str, taken: Collection[str]) -> str:
    return name if name not in taken else free(f"{name}_dim", taken)
