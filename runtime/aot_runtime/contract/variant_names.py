"""Names of variants outside of Python: in the C interface of a bundle, and in other formats of archives.

A name comes from what a variant is and from its op's contract, and not from the rest of the bundle, so that it is the
same in every build of the manifest.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from typing import Any

from . import records
from .dtypes import DTYPES
from .names import axis_names

HASH_LENGTH = 12
"""Hex digits in a name that is not readable without."""
MAX_NAME = 100
"""Characters of a variant's name."""


def identifier(*parts: str) -> str:
    """Join parts to a C identifier. Other characters become underscores."""
    text = re.sub(r"[^A-Za-z0-9]+", "_", "_".join(parts)).strip("_")
    return text if text[:1].isalpha() else f"n{text}"


def digest(key: Any, length: int) -> str:
    """Return hex digits of the hash of plain data."""
    return hashlib.sha256(records.encode_json(key)).hexdigest()[:length]


def prefix_of(index: records.Index) -> str:
    """Return the prefix of all names of a bundle for one architecture."""
    return identifier(index.name, index.target.arch)


def variant_names(index: records.Index) -> list[str]:
    """Return the name of each variant: dtypes, axes, launch, specialisation and config, such as
    `rows_gfx942_softmax_f16_block512_onepass_aligned_several`. Long and ambiguous names have the op and a hash.
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
    """A value of a dtype variable or an axis in short; nothing for False. It has no underscore, so a name is read back
    in one way.
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
    """The names of a launch's configs, or their positions where these are not told apart by names."""
    names = [identifier(config.name) if config.name else "" for config in launch.configs]
    if all(names) and len(set(names)) == len(names):
        return names
    return [f"c{position}" for position in range(len(names))]
