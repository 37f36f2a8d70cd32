"""What the C interface calls things: variants, kernarg structs, ops and their arguments.

Names come from what a thing is and from its op's contract, and not from the rest of the bundle, so that they are the
same in every build of the manifest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from aot_runtime.contract import records
from aot_runtime.contract.names import axis_names

from .spelling import c_type, digest, identifier, member

HASH_LENGTH = 12
"""Hex digits in a name that is not readable without."""
MAX_NAME = 100
"""Characters of a variant's name."""

_SHORT_DTYPES: Mapping[str, str] = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "float8_e4m3fn": "e4m3",
    "float8_e4m3fnuz": "e4m3fnuz", "float8_e5m2": "e5m2", "float8_e5m2fnuz": "e5m2fnuz",
}  # fmt: skip
_SHORT_INTEGER = re.compile(r"(u?)int(\d+)")


def prefix_of(index: records.Index) -> str:
    """What the names of one bundle for one architecture begin with."""
    return identifier(index.name, index.target.arch)


def variant_names(index: records.Index) -> list[str]:
    """The name of each variant of a bundle, such as `rows_gfx942_softmax_f16_block512_onepass_aligned_several`: dtypes,
    axes, launch, specialisation and config. One that is long, or another's too, says the op and ends with a hash.
    """
    readable = {op.name: _ReadableNames(op) for op in index.ops}
    prefix = prefix_of(index)
    names = [identifier(prefix, readable[variant.op].name(variant)) for variant in index.variants]
    count = Counter(names)
    return [
        name if count[name] == 1 and len(name) <= MAX_NAME else _hashed(prefix, variant)
        for name, variant in zip(names, index.variants, strict=True)
    ]


def _hashed(prefix: str, variant: records.Variant) -> str:
    key = [variant.op, variant.launch, sorted(variant.axis_values.items()), variant.aligned, variant.config]
    return identifier(prefix, variant.op)[: MAX_NAME - HASH_LENGTH - 1] + f"_{digest(key, HASH_LENGTH)}"


class _ReadableNames:
    """The names of an op's variants; what they are made of is worked out once."""

    def __init__(self, op: records.Op):
        self._names, self._has_launches = axis_names(op), len(op.launches) > 1
        values = {**op.dtypes, **{axis.name: axis.values for axis in op.axes}}
        self._tokens = {
            name: {(type(value), value): _token(op, name, value) for value in allowed}
            for name, allowed in values.items()
        }
        self._launches = [(launch.kernel, _config_tokens(launch)) for launch in op.launches]
        self._op = op.name

    def name(self, variant: records.Variant) -> str:
        """A variant's name, without what those of all variants of the bundle begin with."""
        kernel, configs = self._launches[variant.launch]
        values = ((name, variant.axis_values[name]) for name in self._names)
        tokens = (self._tokens[name][type(value), value] for name, value in values)
        form = "aligned" if variant.aligned else "general"
        return "_".join(filter(None, (
            self._op, kernel if self._has_launches else "", *tokens, form, configs[variant.config],
        )))  # fmt: skip


def _token(op: records.Op, name: str, value: records.Value) -> str:
    """A value of a dtype variable or an axis in short; nothing for False. It has no underscore, so a name is read back
    in one way.
    """
    plain = name.replace("_", "").lower()
    if name in op.dtypes and len(op.dtypes) == 1:
        return _dtype_token(str(value))
    if isinstance(value, bool):
        return plain if value else ""
    words = name.lower().split("_")
    short = plain if len(words) == 1 else "".join(word[:1] for word in words)
    text = _dtype_token(value) if name in op.dtypes else str(value)  # type: ignore[arg-type]
    return short + text.replace("-", "minus").replace("_", "").replace(".", "p").replace("+", "")


def _dtype_token(dtype: str) -> str:
    integer = _SHORT_INTEGER.fullmatch(dtype)
    return f"{'u' if integer[1] else 'i'}{integer[2]}" if integer else _SHORT_DTYPES.get(dtype, dtype)


def _config_tokens(launch: records.Launch) -> list[str]:
    """The names of a launch's configs, or their positions where these are not told apart by names."""
    names = [identifier(config.name) if config.name else "" for config in launch.configs]
    if all(names) and len(set(names)) == len(names):
        return names
    return [f"c{position}" for position in range(len(names))]


def struct_name(prefix: str, variant: records.Variant) -> str:
    """The name of a variant's kernarg struct, which all variants of its op with the same layout have in common."""
    key = [variant.op, variant.kernarg_bytes, [(arg.name, c_type(arg), arg.offset) for arg in variant.kernargs]]
    return identifier(prefix, variant.op, "kernargs", digest(key, HASH_LENGTH))


def member_names(variant: records.Variant) -> tuple[str, ...]:
    """The name of each kernarg in its struct."""
    names: list[str] = []
    for arg in variant.kernargs:
        names.append(member(arg.name, names))
    return tuple(names)


def function_names(bundle: str, ops: Iterable[records.Op]) -> dict[str, str]:
    """Op → its function's name, to which `_args`, `_outputs` and `_explain` are added; all of them are distinct."""
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
    """The type of a scalar that is a choice."""
    return identifier(base, scalar.name)


def enumerators(base: str, scalar: records.Scalar) -> list[str]:
    """The constants of a choice's enum: that it is not given, then each choice."""
    names: list[str] = []
    for text in ("not_given", *scalar.choices):
        name = f"{enum_name(base, scalar)}_{identifier(text)}".upper()
        names.append(name if name not in names else f"{name}_{len(names)}")
    return names


def argument_names(op: records.Op) -> dict[str, str]:
    """Tensor or scalar → its member of the arguments' struct."""
    names: dict[str, str] = {}
    for name in (*(tensor.name for tensor in op.tensors), *(scalar.name for scalar in op.scalars)):
        names[name] = member(name, names.values())
    return names
