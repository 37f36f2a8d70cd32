"""What an op's function takes, and in which order: the one list that its code, its signature and its stub follow."""

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
        by_name: it cannot go by position.
        default: an expression of dims and scalars, or the text `None`; empty: the caller must pass it.
        of: the tensor or scalar that it is; None for the stream.
    """

    name: str
    by_name: bool
    default: str
    of: Tensor | Scalar | None


class Computed:
    """A default that each call computes anew: what signatures show is the expression."""

    __slots__ = ("text",)

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def arguments(op: Op) -> tuple[Argument, ...]:
    """Inputs by position or name, the required ones first; then outputs, scalars and the stream by name."""
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
    """`out` where that stands for the only output, which has another name; else empty."""
    outputs = [tensor for tensor in op.tensors if tensor.role == "output"]
    taken = {tensor.name for tensor in op.tensors} | {scalar.name for scalar in op.scalars}
    return OUT if len(outputs) == 1 and OUT not in taken else ""


def parameter_texts(op: Op, text: Callable[[Argument], str]) -> list[str]:
    """The parameters as Python writes them, each by `text`, with `*` before those that go by name alone."""
    every = arguments(op)
    positional = [text(argument) for argument in every if not argument.by_name]
    return [*positional, "*", *(text(argument) for argument in every if argument.by_name)]


def default_value(argument: Argument) -> Any:
    """The default as a value, where it is one; a `Computed` where it is an expression."""
    if argument.default == "None":
        return None
    try:
        return ast.literal_eval(parse(argument.default).tree)
    except ValueError:
        return Computed(argument.default)
