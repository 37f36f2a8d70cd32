"""Names of variants in a bundle's C interface and in other archive formats.

A name depends on the variant and its op's contract only, so it is the same in every build of the manifest.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from typing import Any

from . import records
from .dtypes import DTYPES
from .index_encoding import encode_json
from .names import axis_names

HASH_LENGTH = 12
"""Hex digits at the end of a name that would be too long or ambiguous."""
MAX_NAME = 100
"""Maximum length of a variant's name."""


def identifier(*parts: str) -> str:
    """Join parts to a C identifier, with an underscore for each run of invalid characters."""
    text = re.sub(r"[^A-Za-z0-9]+", "_", "_".join(parts)).strip("_")
    return text if text[:1].isalpha() else f"n{text}"


def digest(key: Any, length: int) -> str:
    """Return the first `length` hex digits of the SHA-256 of plain data."""
    return hashlib.sha256(encode_json(key)).hexdigest()[:length]


def prefix_of(index: records.Index) -> str:
    """Return the prefix of all names of a bundle for one architecture."""
    return identifier(index.name, index.target.arch)


def variant_names(index: records.Index) -> list[str]:
    """Return the name of each variant of a bundle, such as `rows_gfx942_softmax_f16_block512_onepass_aligned_several`.

    It consists of the dtypes, axes, launch, specialisation and config. A name that is too long or not unique is
    replaced by the op's name and a hash.
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
    """The names of an op's variants, with their parts cached."""

    def __init__(self, op: records.Op):
        self._names, self._has_launches = axis_names(op), len(op.launches) > 1
        self._tokens: dict[tuple[str, type, records.Value], str] = {}
        self._launches = [(launch.kernel, _config_tokens(launch)) for launch in op.launches]
        self._op = op

    def name(self, variant: records.Variant) -> str:
        """Return a variant's name without the bundle's prefix."""
        kernel, configs = self._launches[variant.launch]
        tokens = (self._token(name, variant.axis_values[name]) for name in self._names)
        form = "aligned" if variant.aligned else "general"
        return "_".join(filter(None, (
            self._op.name, kernel if self._has_launches else "", *tokens, form, configs[variant.config],
        )))  # fmt: skip

    def _token(self, name: str, value: records.Value) -> str:
        key = (name, type(value), value)
        if key not in self._tokens:
            self._tokens[key] = _token(self._op, name, value)
        return self._tokens[key]


def _token(op: records.Op, name: str, value: records.Value) -> str:
    """Abbreviate the value of a dtype variable or an axis; empty for False.

    There is no underscore in it, so the parts of a name can be told apart.
    """
    plain = name.replace("_", "").lower()
    if name in op.dtypes and len(op.dtypes) == 1:
        return DTYPES[str(value)].short
    if isinstance(value, bool):
        return plain if value else ""
    words = name.lower().split("_")
    short = plain if len(words) == 1 else "".join(word[:1] for word in words)
    text = DTYPES[str(value)].short if name in op.dtypes else str(value)
    return short + text.replace("-", "minus").replace("_", "").replace(".", "p").replace("+", "")


def _config_tokens(launch: records.Launch) -> list[str]:
    """Return the names of a launch's configs, or their positions if the names are missing or not unique."""
    names = [identifier(config.name) if config.name else "" for config in launch.configs]
    if all(names) and len(set(names)) == len(names):
        return names
    return [f"c{position}" for position in range(len(names))]
