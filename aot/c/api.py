"""Write the C header of a bundle's ops: a struct of arguments and a function for each, and a function to open the
bundle.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from aot_runtime.contract import records
from aot_runtime.contract.dtypes import FLAG_TYPES, FLOAT_TYPES
from aot_runtime.contract.layout import allowed_dtypes
from aot_runtime.contract.variant_names import digest, identifier, prefix_of

from .apis import APIS
from .c_names import argument_names, enum_name, enumerators, function_names
from .spelling import comment, uncommented
from .support import types_text
from .tables import shape_text

MAX_RANK = 8
"""Maximum number of dims of an `aot_tensor`."""
_WIDTH = 116


def header_text(index: records.Index) -> str:
    """Return the C header of a bundle, valid as C11 and C++17.

    Args:
        index: with its `id` filled in, which the header repeats.
    """
    ops = dispatched_ops(index)
    names = function_names(index.name, ops)
    guard, library = identifier(index.name).upper(), prefix_of(index)
    lines = [
        _introduction(index),
        f"#ifndef {library.upper()}_H",
        f"#define {library.upper()}_H",
        types_text(),
        _EXTERN_C,
        f"/* The bundle for {index.target.arch}, which src/{index.name}.c defines. */",
        f"extern const aot_library {library};",
        _END_C,
        f"#ifndef {guard}_OPS_H",
        f"#define {guard}_OPS_H",
        _EXTERN_C,
        _open(index),
        *(line for op in ops for line in _op(op, names[op.name])),
        *(f"/* {op.name} has no function in C: {undispatchable(op)}. */" for op in index.ops if op not in ops),
        _END_C,
        "#endif",
        "#endif",
        "",
    ]
    return "\n".join(lines)


_EXTERN_C = '\n#ifdef __cplusplus\nextern "C" {\n#endif\n'
_END_C = "\n#ifdef __cplusplus\n}\n#endif\n"


def dispatched_ops(index: records.Index) -> list[records.Op]:
    """Return the ops that the C dispatcher supports."""
    return [op for op in index.ops if not undispatchable(op)]


def undispatchable(op: records.Op) -> str:
    """Return why an op has no function in C; empty if it has one."""
    if any(len(tensor.shape) > MAX_RANK for tensor in op.tensors):
        return f"it has a tensor of more than {MAX_RANK} dims"
    if len(op.tensors) > 63:
        return "it has more than 63 tensors"
    sizes = [len(values) for values in op.dtypes.values()] + [len(axis.values) for axis in op.axes]
    sizes += [len(op.launches), *(len(launch.configs) for launch in op.launches)]
    return "it has more than 255 values of an axis, launches, or configs" if max(sizes) > 255 else ""


def signature(op: records.Op) -> str:
    """Return 16 hex digits that change with the arguments' struct and its meaning."""
    tensors = [tensor.name for tensor in op.tensors]
    return digest([op.name, tensors, [(s.name, _member_type(s), list(s.choices)) for s in op.scalars]], 16)


def _introduction(index: records.Index) -> str:
    name = index.name
    return comment(f"""\
The ops of bundle '{name}' for {index.target.arch}; valid as C11 and C++17. src/{name}.c is compiled with the program.
Generated together with the bundle of id {index.id}.

An op is a function: it checks its arguments, picks the kernels and launches them on a stream, and returns a status with
a text. The members of its struct of arguments that are all zeros are not passed: an optional tensor is absent, a scalar
has its default. The caller allocates the outputs. For each op FUNCTION there are also

FUNCTION_outputs   puts dtype, shape and strides into the outputs that the arguments do not have, but no address
FUNCTION_explain   checks the arguments, which need no addresses, and says in the message what would be launched

A stream is a {APIS[index.target.backend].stream}, NULL the default one.""")


def _open(index: records.Index) -> str:
    return f"""\
/* Open the bundle in a folder, that of its bundle.json, for a device; see aot_open. */
static inline aot_status {identifier(index.name)}_open(const char *folder, int device, aot_bundle **opened)
{{
    return aot_open(&{prefix_of(index)}, folder, device, NULL, opened);
}}
"""


def _op(op: records.Op, name: str) -> Iterator[str]:
    yield comment(_wrapped(f"{op.name}: {op.doc}" if op.doc else op.name) + _requirements(op))
    for scalar in op.scalars:
        if scalar.type == "choice":
            first, *others = enumerators(name, scalar)
            yield f"typedef enum {enum_name(name, scalar)} {{"
            yield ",\n".join([f"    {first} = 0", *(f"    {other}" for other in others)])
            yield f"}} {enum_name(name, scalar)};"
    yield f"typedef struct {name}_args {{"
    members = argument_names(op)
    for tensor in op.tensors:
        yield f"    aot_tensor {members[tensor.name]}; /* {_one_line(_tensor(op, tensor))} */"
    for scalar in op.scalars:
        kind = enum_name(name, scalar) if scalar.type == "choice" else _member_type(scalar)
        yield f"    {kind} {members[scalar.name]}; /* {_one_line(_scalar(scalar))} */"
    yield f"}} {name}_args;"
    number = f"UINT64_C(0x{signature(op)})"
    yield f"""
static inline aot_status {name}(aot_bundle *bundle, const {name}_args *args, void *stream)
{{
    return aot_invoke(bundle, {number}, AOT_CALL, args, stream);
}}
static inline aot_status {name}_outputs(aot_bundle *bundle, {name}_args *args)
{{
    return aot_invoke(bundle, {number}, AOT_OUTPUTS, args, NULL);
}}
static inline aot_status {name}_explain(aot_bundle *bundle, const {name}_args *args)
{{
    return aot_invoke(bundle, {number}, AOT_EXPLAIN, args, NULL);
}}
"""


def _member_type(scalar: records.Scalar) -> str:
    """Return the type of a scalar in the arguments' struct; empty for a choice, which has its own enum."""
    if scalar.type == "choice":
        return ""
    return "aot_float" if scalar.type in FLOAT_TYPES else "aot_flag" if scalar.type in FLAG_TYPES else "aot_int"


def _requirements(op: records.Op) -> str:
    return "\n" + _wrapped(f"Requires: {'; '.join(op.require)}.") if op.require else ""


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False))


def _one_line(text: str) -> str:
    return " ".join(uncommented(text).split())


def _tensor(op: records.Op, tensor: records.Tensor) -> str:
    dtypes = " or ".join(allowed_dtypes(op, tensor))
    role = "optional" if tensor.optional else f"{tensor.role} when {tensor.when}" if tensor.when else tensor.role
    itself = f", may be {' or '.join(tensor.in_place)} itself" if tensor.in_place else ""
    role += " (zeroed first, so packed)" * tensor.zero
    return f"{role}{itself}: {dtypes} {shape_text(tensor)}. {tensor.doc}"


def _scalar(scalar: records.Scalar) -> str:
    default = f"default {scalar.default}" if scalar.default else "required"
    return f"{'' if scalar.type == 'choice' else scalar.type + ', '}{default}. {scalar.doc}"
