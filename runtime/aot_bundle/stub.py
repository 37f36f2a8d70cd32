"""Generate a type for a bundle, with the exact signatures of its ops, for editors and type checkers.

The stub declares a class derived from `OpenBundle`. A module (`module_text`) defines the class at run time. Together
they form a package (`aotbundle stubs`), and `open_bundle` returns that type:

    from aot_bundles.rows import Rows
    rows = open_bundle("dist/rows-gfx942", type=Rows)

Names in a manifest never start with an underscore. The stub's own names do, wherever a method or field could hide one.
"""

from __future__ import annotations

import itertools
import keyword
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from aot_runtime.call.arguments import Argument, Computed, default_value, parameter_texts
from aot_runtime.call.documentation import built_dtypes, bundle_title, docstring
from aot_runtime.contract import records
from aot_runtime.contract.dtypes import FLAG_TYPES, FLOAT_TYPES
from aot_runtime.contract.manifest_rules import RESERVED_OPS
from aot_runtime.contract.names import TYPE_NAME, TYPE_OPS
from aot_runtime.formats import printable

WIDTH = 120
MAX_FLAGS = 2
"""Most flags deciding about outputs for which each combination gets its own overload."""
MAX_CONDITIONS = 5
"""Most conditions of outputs for which results are typed. The number of combinations doubles with each."""

_PREAMBLE = '''\
from builtins import bool as _bool, float as _float, int as _int
from typing import Any as _Any, Generic as _Generic, Literal as _Literal, NamedTuple as _NamedTuple
from typing import Protocol as _Protocol, TypeAlias as _TypeAlias, TypeVar as _TypeVar, overload as _overload

import numpy as _np
from aot_runtime import DeviceArray as _DeviceArray, OpenBundle as _OpenBundle

class SupportsDLPack(_Protocol):
    """An array of another library that is on the bundle's device: torch, cupy, jax."""

    def __dlpack__(self, *arguments: _Any, **keywords: _Any) -> _Any: ...

class _CudaStream(_Protocol):
    def __cuda_stream__(self) -> tuple[_int, _int]: ...

class _TorchStream(_Protocol):
    @property
    def cuda_stream(self) -> _int: ...

HostArray: _TypeAlias = _np.ndarray[_Any, _Any]
Array: _TypeAlias = HostArray | _DeviceArray | SupportsDLPack
_HostArray: _TypeAlias = HostArray
_Array: _TypeAlias = Array
_Integer: _TypeAlias = _int | _np.integer[_Any]
_Number: _TypeAlias = _float | _np.floating[_Any] | _Integer
_Flag: _TypeAlias = _bool | _np.bool_
_Stream: _TypeAlias = _CudaStream | _TorchStream | _int
_A = _TypeVar("_A")
'''

_SCALAR_TYPES = {**dict.fromkeys(FLAG_TYPES, "_Flag"), **dict.fromkeys(FLOAT_TYPES, "_Number")}

_HIDES = "  # type: ignore[assignment]"
"""Comment on a field named like a method of tuples."""


_NOWHERE = records.Target("", "", 0)


@dataclass(frozen=True)
class _Signature:
    """A signature of a method, for literal values of `flags`, with its return type `result`."""

    array: str
    flags: Mapping[str, bool]
    result: str


def stub_text(index: records.Index, docs: bool = True) -> str:
    """Return the `.pyi` of a bundle: a class with a method per op, and a named tuple per op with several outputs.

    Args:
        index: the index, including its `id`, which the stub repeats.
        docs: True to include the ops' docstrings.
    """
    lines = [
        f'"""Types of bundle {bundle_title(index)}, id {index.id}.',
        "",
        "If all inputs are numpy arrays, so are the outputs; otherwise, the outputs are on the device.",
        'Names other than the class of the bundle exist for type checkers only, not at run time.\n"""',
        "",
        _PREAMBLE,
    ]
    ops = _typed_ops(index)
    for op in ops:
        lines += _results(op)
    lines += [f"class {class_name(index.name)}(_OpenBundle):"]
    for op in ops:
        doc = docstring(op, built_dtypes(op, index.variants)) if docs else ""
        lines += [*_indented(_method(op, doc)), ""]
    return "\n".join(lines) + ("" if ops else "    ...\n")


def interface_text(index: records.Index) -> str:
    """Return the types of a bundle's ops, independent of its architecture and sources."""
    return stub_text(msgspec.structs.replace(index, id="", version="", target=_NOWHERE), docs=False)


def module_text(index: records.Index) -> str:
    """Return the module next to the stub, which defines the bundle's class at run time. It imports nothing."""
    ops = "".join(f'        "{op.name}",\n' for op in _typed_ops(index))
    return f'''"""Bundle '{index.name}' as a type, for `open_bundle(path, type={class_name(index.name)})`.

Written by `aotbundle stubs`. The signatures of the ops are in the stub next to this file.
"""


class {class_name(index.name)}:
    {TYPE_NAME} = "{index.name}"
    {TYPE_OPS} = (
{ops}    )
'''


def _typed_ops(index: records.Index) -> list[records.Op]:
    """Return the ops that are attributes. Names that became reserved after the bundle was built are excluded."""
    return [op for op in index.ops if op.name not in RESERVED_OPS]


def class_name(bundle: str) -> str:
    """Return the class name of a bundle: `FlashAttention` for `flash_attention`."""
    name = "".join(part[:1].upper() + part[1:] for part in bundle.split("_"))
    return f"{name}_" if keyword.iskeyword(name) or name in ("Array", "HostArray", "SupportsDLPack") else name


def _indented(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield f"    {line}".rstrip()


# Results


def _results(op: records.Op) -> Iterator[str]:
    """Yield the named tuples that an op may return, one for each set of several outputs."""
    for names in dict.fromkeys(_outputs(op, flags) for flags in _flag_values(op)):
        if len(names) > 1:
            yield f"class {_tuple_name(op, names)}(_NamedTuple, _Generic[_A]):"
            yield from (f"    {name}: _A{_HIDES if hasattr(tuple, name) else ''}" for name in names)
            yield f"_{_tuple_name(op, names)}: _TypeAlias = {_tuple_name(op, names)}[_A]"
            yield ""


def _tuple_name(op: records.Op, names: tuple[str, ...]) -> str:
    every = tuple(tensor.name for tensor in op.tensors if tensor.role == "output")
    return "__".join([f"{op.name}_result", *(names if names != every else ())])


def _conditions(op: records.Op) -> list[str]:
    return list(dict.fromkeys(tensor.when for tensor in op.tensors if tensor.role == "output" and tensor.when))


def _flag_values(op: records.Op) -> Iterator[dict[str, bool]]:
    """Yield every combination of the conditions of outputs; none if there are too many."""
    conditions = _conditions(op)
    if len(conditions) > MAX_CONDITIONS:
        return
    for values in itertools.product((False, True), repeat=len(conditions)):
        yield dict(zip(conditions, values, strict=True))


def _outputs(op: records.Op, flags: Mapping[str, bool]) -> tuple[str, ...]:
    outputs = (tensor for tensor in op.tensors if tensor.role == "output")
    return tuple(tensor.name for tensor in outputs if not tensor.when or flags[tensor.when])


def _result(op: records.Op, flags: Mapping[str, bool], array: str) -> str:
    names = _outputs(op, flags)
    if len(names) > 1:
        return f"_{_tuple_name(op, names)}[{array}]"
    return array if names else "None"


# Methods


def _method(op: records.Op, doc: str) -> Iterator[str]:
    """Yield the overloads of an op's method, by location of its arrays and by flags that decide its outputs."""
    signatures = [signature for arrays in _places(op) for signature in _signatures(op, *arrays)]
    for number, signature in enumerate(signatures):
        # The narrower host overloads come first and overlap with the others on purpose.
        note = "  # type: ignore[overload-overlap]" if "HostArray" in signature.result else ""
        if len(signatures) > 1:
            yield "@_overload"
        yield from _definition(op, signature, note, doc if number == 0 else "")


def _places(op: records.Op) -> Iterator[tuple[str, str]]:
    if any(tensor.role == "output" for tensor in op.tensors):
        yield "_HostArray", "_HostArray"
    yield "_Array", "_DeviceArray"


def _signatures(op: records.Op, array: str, result: str) -> Iterator[_Signature]:
    conditions = _conditions(op)
    flags = {scalar.name for scalar in op.scalars if scalar.type in FLAG_TYPES}
    combinations = list(_flag_values(op))
    if not combinations:
        yield _Signature(array, {}, "_Any")
    results = [_result(op, values, result) for values in combinations]
    if len(conditions) <= MAX_FLAGS and flags.issuperset(conditions):
        for values, returned in zip(combinations, results, strict=True):
            yield _Signature(array, values, returned)
    if len(results) > 1:
        yield _Signature(array, {}, " | ".join(dict.fromkeys(results)))


def _definition(op: records.Op, signature: _Signature, note: str, doc: str) -> Iterator[str]:
    parameters = ["_self", *parameter_texts(op, lambda argument: _parameter(argument, signature))]
    start, end = f"def {op.name}(", f") -> {signature.result}:{'' if doc else ' ...'}"
    if len(one_line := start + ", ".join(parameters) + end + note) <= WIDTH - 4:
        yield one_line
    else:
        yield start + note
        yield from (f"    {parameter}," for parameter in parameters)
        yield end
    if doc:
        yield from _indented(_quoted(doc))


def _quoted(doc: str) -> Iterator[str]:
    first, *rest = printable(doc).replace("\\", "\\\\").replace('"""', '\\"\\"\\"').splitlines()
    yield f'"""{first}'
    yield from rest
    yield '"""'


def _parameter(argument: Argument, signature: _Signature) -> str:
    literal = signature.flags.get(argument.name)
    annotation = f"_Literal[{literal}]" if literal is not None else _annotation(argument, signature.array)
    if not argument.default or (literal is not None and argument.default != str(literal)):
        return f"{argument.name}: {annotation}"
    default = default_value(argument)
    shown = None if isinstance(default, Computed) else default
    return f"{argument.name}: {annotation} | None = {_source(shown)}"


def _annotation(argument: Argument, array: str) -> str:
    of = argument.of
    if of is None:
        return "_Stream"
    if isinstance(of, records.Tensor):
        return array if of.role != "output" else "_Array"
    if of.type == "choice":
        return f"_Literal[{', '.join(map(repr, of.choices))}]"
    return _SCALAR_TYPES.get(of.type, "_Integer")


def _source(value: object) -> str:
    return {"inf": "1e999", "-inf": "-1e999"}.get(repr(value), repr(value))
