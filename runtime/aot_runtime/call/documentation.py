"""Describe ops and bundles: signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping

from aot_runtime.contract.layout import allowed_dtypes
from aot_runtime.contract.records import Index, Op, Scalar, Tensor, Variant
from aot_runtime.texts import ID_LENGTH

from .arguments import Argument, arguments, default_value

WIDTH = 84
"""Columns of a docstring: 88 minus the indentation that `help` adds."""
INDENT = "    "


class CallSignature(inspect.Signature):
    """A signature that is shown with one parameter per line if it is long."""

    __slots__ = ()

    def __str__(self) -> str:
        line = super().__str__()
        if len(line) <= WIDTH - len(INDENT):
            return line
        named = [item for item in self.parameters.values() if item.kind is item.KEYWORD_ONLY]
        others = list(self.parameters.values())[: -len(named) or None]
        return "(\n" + "".join(f"{INDENT}{text},\n" for text in (*others, "*", *named)) + ")"


def call_signature(op: Op, *first: str) -> CallSignature:
    """Return the signature of an op's function, with the parameters `first` put before it."""
    before = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in first]
    return CallSignature([*before, *map(_parameter, arguments(op))])


def _parameter(argument: Argument) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if argument.by_name else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = default_value(argument) if argument.default else inspect.Parameter.empty
    return inspect.Parameter(argument.name, kind, default=default)


def summary(op: Op) -> str:
    """Return the first sentence of an op's doc."""
    first, dot, _ = " ".join(op.doc.split()).partition(". ")
    return first + dot.strip()


# Docstrings

_STREAM = (
    "stream: a Stream, a stream of torch or cupy, an object with __cuda_stream__, an integer handle, or None for the "
    "default stream."
)


Built = Mapping[str, Collection[str]]
"""Dtypes with at least one built variant, by dtype variable."""


def built_dtypes(op: Op, variants: Iterable[Variant]) -> Built:
    """Return the dtypes that an op's variants are built for, by dtype variable."""
    points = [variant.axis_values for variant in variants if variant.op == op.name]
    return {name: {str(point[name]) for point in points} for name in op.dtypes}


def docstring(op: Op, built: Built | None = None) -> str:
    """Describe an op's contract, for `help(bundle.op)`. `built` limits the dtypes listed; defaults to all."""
    lines = [line for text in (op.doc or op.name).splitlines() for line in wrapped(text)]
    lines += ["", "Arguments:"]
    for tensor in op.tensors:
        lines += wrapped(_tensor(op, tensor, built or op.dtypes), INDENT, 2 * INDENT)
    for scalar in op.scalars:
        lines += wrapped(_scalar(scalar), INDENT, 2 * INDENT)
    lines += wrapped(_STREAM, INDENT, 2 * INDENT)
    if op.require:
        lines += ["", *wrapped(f"Requires: {'; '.join(op.require)}.", "", INDENT)]
    return "\n".join(lines)


def _tensor(op: Op, tensor: Tensor, built: Built) -> str:
    dims = ", ".join(dim.extent + ("|1" if dim.broadcast else "") for dim in tensor.shape)
    shape = "of any shape" if tensor.pointer else f"[{dims}]"
    there = built.get(tensor.dtype, allowed_dtypes(op, tensor))
    allowed = " or ".join(dtype for dtype in allowed_dtypes(op, tensor) if dtype in there)
    role = "optional" if tensor.optional else f"{tensor.role} when {tensor.when}" if tensor.when else tensor.role
    role += f" (may be {' or '.join(tensor.in_place)} itself)" if tensor.in_place else ""
    role += " (zeroed first, so packed)" * tensor.zero
    return f"{tensor.name}: {allowed} {shape}, {role}. {tensor.doc}"


def _scalar(scalar: Scalar) -> str:
    default = f", default {scalar.default}" if scalar.default else ""
    return f"{scalar.name}: {'|'.join(scalar.choices) or scalar.type}{default}. {scalar.doc}"


def wrapped(text: str, first: str = "", rest: str = "") -> Iterator[str]:
    """Wrap text at `WIDTH` columns, indenting the first line by `first` and the others by `rest`."""
    line, start = first, True
    for word in text.split():
        if not start and len(line) + 1 + len(word) > WIDTH:
            yield line
            line, start = rest, True
        line, start = (line + word if start else f"{line} {word}"), False
    yield line


# Bundles


def bundle_title(index: Index) -> str:
    """Return a bundle's name, version and architecture: `rows 1.2.0 for gfx942`."""
    return f"{' '.join(filter(None, (index.name, index.version)))} for {index.target.arch}"


def bundle_help(index: Index, place: str) -> str:
    """Describe a bundle, for `help(bundle)`. `place` says where it was opened."""
    width = max((len(op.name) for op in index.ops), default=0)
    ops = (wrapped(summary(op), f"{INDENT}{op.name:<{width}}  ", INDENT + (width + 2) * " ") for op in index.ops)
    return "\n".join(
        [
            *wrapped(f"Bundle {bundle_title(index)}, id {index.id[:ID_LENGTH]}, opened from {place}.", "", INDENT),
            "",
            "Its ops are called as bundle.op(...); help(bundle.op) has their arguments:",
            "",
            *(line for lines in ops for line in lines),
            "",
            "explain('op', ...) explains which variant a call gets; selftest() checks the device's",
            "results; help(type(bundle)) lists further methods.",
        ]
    )
