"""Read how a kernel's file launches it: the argument of each parameter, the options, the grid.

If there are several launches, the first is used. The function around it is interpreted by `aot.draft.host`; nothing is
run.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .host import Facts, Host
from .host_values import (
    UNKNOWN,
    Condition,
    Const,
    Function,
    HostTensor,
    Several,
    Shape,
    Size,
    Stride,
    Strides,
    Table,
    Unknown,
    Value,
    size_text,
)
from .sizes import names_of, renamed, simplified


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel; empty if its file has none.

    Attributes:
        arguments: parameter → value that is passed for it.
        options: compiler options that are passed.
        grid: extents of the grid, if they are a list.
        facts: facts about the launching function's arguments.
        others: number of further launches of the kernel in the file.
    """

    arguments: Mapping[str, Value] = field(default_factory=dict)
    options: Mapping[str, Value] = field(default_factory=dict)
    grid: tuple[Value, ...] = ()
    facts: Facts = field(default_factory=Facts)
    others: int = 0
    is_there: bool = False

    def constant(self, parameter: str) -> Any:
        """The number, boolean or text that is passed for a parameter; None where it is none."""
        return constant_of(self.arguments.get(parameter))

    def options_of(self, parameter: str) -> tuple[Any, ...]:
        """The constants of which one is passed for a parameter, by a condition that is not known."""
        value = self.arguments.get(parameter)
        found = [constant_of(item) for item in value.options] if isinstance(value, Several) else []
        return tuple(dict.fromkeys(found)) if all(item is not None for item in found) else ()

    def tensor(self, parameter: str) -> HostTensor | None:
        """The tensor that is passed for a parameter, if it is one."""
        value = self.arguments.get(parameter)
        return value if isinstance(value, HostTensor) else None

    def is_tensor(self, parameter: str) -> bool:
        """Return True if the function uses the value that it passes for a parameter as a tensor."""
        value = self.tensor(parameter)
        return value is not None and (bool(value.made) or value.shape is not None or bool(value.least_rank)
                                      or "Tensor" in value.annotation or not value.is_given)  # fmt: skip

    def stride(self, parameter: str) -> tuple[HostTensor, int] | None:
        """(tensor, dim) of the stride that is passed for a parameter."""
        value = self.arguments.get(parameter)
        if isinstance(value, Several):  # a stride, or 0 where there is no tensor
            value = next((item for item in value.options if isinstance(item, Stride)), None)
        return (value.tensor, value.dim) if isinstance(value, Stride) else None

    def size(self, parameter: str) -> str:
        """The size that is passed for a parameter, as text; empty where it is none."""
        value = self.arguments.get(parameter)
        return self.final(size_text(value)) if value is not None and not isinstance(value, Const) else ""

    def condition(self, parameter: str) -> str:
        """The condition that is passed for a parameter, as text; empty where it is none."""
        value = self.arguments.get(parameter)
        return self.final(value.text) if isinstance(value, Condition) else ""

    def final(self, text: str) -> str:
        """The text of a size with one name for each extent, simplified."""
        if not text or UNKNOWN in text:
            return ""
        named = {key: value for tensor in self.facts.tensors.values() for key, value in tensor.final_names().items()}
        for _ in range(8):
            names = names_of(text)
            known = {name: self.facts.defined[name] for name in names & self.facts.defined.keys()
                     if self._is_counted(name, named)}  # fmt: skip
            later = renamed(text, {**named, **self.facts.same, **known})
            if later == text:
                break
            text = later
        text = simplified(text)
        return self.facts.whole.get(text, text)

    def _is_counted(self, name: str, named: Collection[str]) -> bool:
        """Tell whether a size is computed from numbers of elements that are known as products of extents."""
        return all(part in named for part in names_of(self.facts.defined[name]) if part.endswith("__numel"))

    def settle_names(self) -> None:
        """Let variables that were found to have one extent name it, now that the dims of tensors are known."""
        for text, name in list(self.facts.hints.items()):
            final = self.final(text)
            if final.isidentifier():
                self.facts.hints.setdefault(final, name)

    def parameter_of(self, tensor: HostTensor | None, among: Collection[str]) -> str:
        """The parameter of some that a tensor is passed for."""
        return next((name for name in among if tensor is not None and self.arguments.get(name) is tensor), "")

    def present(self, parameter: str) -> str:
        """The key of the tensor that a parameter says is there; empty for anything else."""
        text = self.condition(parameter)
        return text[6:-1] if text.startswith("given(") and text.endswith(")") and text[6:-1].isidentifier() else ""


def constant_of(value: Value | None) -> Any:
    """The number, boolean or text that a value is; None where it is none."""
    return value.value if isinstance(value, Const) else None


def find_launch(module: str, kernel: str, parameters: Sequence[str]) -> Launch:
    """The first launch of a kernel in a file's text that is reached; an empty one where there is none."""
    try:
        tree = ast.parse(module)
    except SyntaxError:
        return Launch()
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _launches(node, kernel)]
    calls.sort(key=lambda node: node.lineno)
    for call in calls:
        if found := _reached(tree, call, parameters, len(calls) - 1):
            return found
    return Launch()


def _launches(node: ast.Call, kernel: str) -> bool:
    return isinstance(node.func, ast.Subscript) and ast.unparse(node.func.value).rpartition(".")[2] == kernel


def _reached(tree: ast.Module, call: ast.Call, parameters: Sequence[str], others: int) -> Launch | None:
    found: list[Launch] = []

    def note(host: Host, node: ast.Call) -> None:
        found.append(_launch(host, node, parameters, others))

    module = Host({}, None, note)
    module.run([item for item in tree.body if isinstance(item, ast.Assign | ast.AnnAssign | ast.FunctionDef)])
    module.names |= dict(_functions(tree, module.names))
    outer: Mapping[str, Value] = module.names
    scopes = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and call in ast.walk(n)]
    if not scopes:
        host = Host(outer, call, note)
        host.run(tree.body)
        return found[0] if found else None
    for scope in sorted(scopes, key=lambda node: node.lineno):
        host = Host(outer, call, note)
        host.enter(scope)
        outer = {**outer, **host.names}
    return found[0] if found else None


def _functions(tree: ast.Module, names: Mapping[str, Value]) -> Iterator[tuple[str, Value]]:
    for node in tree.body:
        for inner in ast.walk(node) if isinstance(node, ast.If | ast.Try) else ():
            if isinstance(inner, ast.FunctionDef) and inner.name not in names:
                yield inner.name, Function(inner, {})


def _positional(host: Host, call: ast.Call, count: int) -> list[Value]:
    """Return the positional arguments of a call, at most `count`, up to a sequence of unknown length."""
    found: list[Value] = []
    for i, item in enumerate(call.args):
        if not isinstance(item, ast.Starred):
            found.append(host.value(item))
            continue
        value = host.value(item.value)
        width = count - len(found) - (len(call.args) - i - 1)
        if isinstance(value, Shape) and value.start is None and value.stop is None and width > 0:
            value.tensor.set_rank(width)
            value = tuple(Size(value.tensor.extent(dim)) for dim in range(width))
        elif isinstance(value, Strides) and width > 0:
            value.tensor.set_rank(width)
            value = tuple(Stride(value.tensor, dim) for dim in range(width))
        if not isinstance(value, tuple):
            break
        found += value
    return found


def _launch(host: Host, call: ast.Call, parameters: Sequence[str], others: int) -> Launch:
    assert isinstance(call.func, ast.Subscript)
    named: dict[str, Value] = {}
    for keyword in call.keywords:
        value = host.value(keyword.value)
        if keyword.arg:
            named[keyword.arg] = value
        elif isinstance(value, Table):
            named |= {key: item for key, item in value.items.items() if isinstance(key, str)}
    given = _positional(host, call, len(parameters) - len(named.keys() & set(parameters)))
    options = {name: value for name, value in named.items() if name not in parameters}
    arguments = {**dict(zip(parameters, given, strict=False)), **{k: v for k, v in named.items() if k in parameters}}
    grid = host.value(call.func.slice)
    if isinstance(grid, Function):
        grid = host.called(grid, [Unknown("META")], {})
    extents = grid if isinstance(grid, tuple) else ()
    return Launch(arguments, options, extents, host.facts, others, True)
