"""The parameters of an op's function, in order. Its code, signature and stub are all made from this list."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from aot_runtime.contract.expressions import parse
from aot_runtime.contract.records import Op, Scalar, Tensor

OUT, STREAM = "out", "stream"


class Argument(msgspec.Struct, frozen=True):
    """An argument of an op's function.

    Attributes:
        by_name: True if it is keyword-only.
        default: an expression of dims and scalars, or the text `None`; empty if the argument is required.
        of: its tensor or scalar; None for the stream.
    """

    name: str
    by_name: bool
    default: str
    of: Tensor | Scalar | None


class Computed:
    """A default that is computed on each call. Signatures show its expression."""

    __slots__ = ("text",)

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def arguments(op: Op) -> tuple[Argument, ...]:
    """Return an op's arguments: inputs, required ones first, then the keyword-only outputs, scalars and stream."""
    return tuple(_arguments(op))


def _arguments(op: Op) -> Iterator[Argument]:
    inputs = [tensor for tensor in op.tensors if tensor.role != "output"]
    outputs = [tensor for tensor in op.tensors if tensor.role == "output"]
    for optional in (False, True):
        for tensor in inputs:
            if tensor.optional == optional:
                yield Argument(tensor.name, False, "None" if optional else "", tensor)
    for tensor in outputs:
        yield Argument(tensor.name, True, "None", tensor)
    if out := alias(op):
        yield Argument(out, True, "None", outputs[0])
    for scalar in op.scalars:
        yield Argument(scalar.name, True, scalar.default, scalar)
    yield Argument(STREAM, True, "None", None)


def alias(op: Op) -> str:
    """Return `out` if it is an alias of the only output, else an empty string."""
    outputs = [tensor for tensor in op.tensors if tensor.role == "output"]
    taken = {tensor.name for tensor in op.tensors} | {scalar.name for scalar in op.scalars}
    return OUT if len(outputs) == 1 and OUT not in taken else ""


def parameter_texts(op: Op, text: Callable[[Argument], str]) -> list[str]:
    """Return the parameters as Python source, each written by `text`, with `*` before the keyword-only ones."""
    every = arguments(op)
    positional = [text(argument) for argument in every if not argument.by_name]
    return [*positional, "*", *(text(argument) for argument in every if argument.by_name)]


def default_value(argument: Argument) -> Any:
    """Return the default as a value, or as `Computed` if it is an expression."""
    if argument.default == "None":
        return None
    try:
        return ast.literal_eval(parse(argument.default).tree)
    except ValueError:
        return Computed(argument.default)
