"""Names of the C interface: kernarg structs, ops and their arguments. Variants have the names of
`aot_runtime.contract.variant_names`.

A name depends only on its object and the op's contract, not on the rest of the bundle. So names are the same in every
build of the manifest.
"""

from __future__ import annotations

from collections.abc import Iterable

from aot_runtime.contract import records
from aot_runtime.contract.variant_names import HASH_LENGTH, digest, identifier

from .spelling import c_type, member


def struct_name(prefix: str, variant: records.Variant) -> str:
    """Return the name of a variant's kernarg struct, shared by all variants of its op with the same layout."""
    key = [variant.op, variant.kernarg_bytes, [(arg.name, c_type(arg), arg.offset) for arg in variant.kernargs]]
    return identifier(prefix, variant.op, "kernargs", digest(key, HASH_LENGTH))


def member_names(variant: records.Variant) -> tuple[str, ...]:
    """Return the name of each kernarg in its struct."""
    names: list[str] = []
    for arg in variant.kernargs:
        names.append(member(arg.name, names))
    return tuple(names)


def function_names(bundle: str, ops: Iterable[records.Op]) -> dict[str, str]:
    """Return op → name of its function. Names, also with `_args`, `_outputs` and `_explain`, are distinct."""
    used = {f"{identifier(bundle)}_open", identifier(bundle)}
    names = {}
    for op in ops:
        base = identifier(bundle, op.name)
        while used & _names_of(op, base):
            base += "_op"
        used |= _names_of(op, base)
        names[op.name] = base
    return names


def _names_of(op: records.Op, base: str) -> set[str]:
    enums = (enum_name(base, scalar) for scalar in op.scalars if scalar.type == "choice")
    return {base, *(f"{base}_{suffix}" for suffix in ("args", "outputs", "explain")), *enums}


def enum_name(base: str, scalar: records.Scalar) -> str:
    """Return the C type of a choice."""
    return identifier(base, scalar.name)


def enumerators(base: str, scalar: records.Scalar) -> list[str]:
    """Return the constants of a choice's enum: one for an omitted argument, then one for each choice."""
    names: list[str] = []
    for text in ("not_given", *scalar.choices):
        name = f"{enum_name(base, scalar)}_{identifier(text)}".upper()
        names.append(name if name not in names else f"{name}_{len(names)}")
    return names


def argument_names(op: records.Op) -> dict[str, str]:
    """Return tensor or scalar → its member of the arguments' struct."""
    names: dict[str, str] = {}
    for name in (*(tensor.name for tensor in op.tensors), *(scalar.name for scalar in op.scalars)):
        names[name] = member(name, names.values())
    return names
