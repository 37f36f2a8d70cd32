"""Schemas of the JSON objects in a checkpoint: the allowed values of each key, and its default.

Unknown keys are refused, since they may change the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aot_models.checkpoints.values import CheckpointError, Values, joined, said
from aot_runtime.texts import shown

NEEDED: Any = object()
"""The default of required keys."""
MOST = 1 << 24
"""Default maximum of sizes."""


@dataclass(frozen=True)
class Key:
    """The allowed values of a key.

    Attributes:
        allowed: the values, in words.
        fits: returns True for an allowed value.
        default: the value of an absent key; `NEEDED` if the key is required.
        used: some code reads the value.
        words: the template with which an error names a wrong value.
    """

    allowed: str
    fits: Callable[[Any], bool]
    default: Any = NEEDED
    used: bool = True
    words: str = "{name} {value}"

    def fault(self, name: str, value: Any) -> str:
        """Describe a wrong value; "" if the value is allowed."""
        if self.fits(value):
            return ""
        if value is NEEDED or value is None:
            return f"there is no '{name}'"
        words = self.words.format(name=name, value=said(value), shown=shown(value))
        return f"{words} is not supported; supported: {self.allowed}"


Table = Mapping[str, Key]


def held(values: Values, table: Table) -> Values:
    """Validate an object by a table, and return the keys that are used.

    Raises:
        CheckpointError: keys are missing, unknown, or have values that are not allowed.
    """
    found = known(values, table)
    refuse_others(values, table)
    return found


def known(values: Values, table: Table) -> Values:
    """Validate like `held`, but ignore unknown keys."""
    given = {name: values.found.get(name, key.default) for name, key in table.items()}
    faults = [fault for name, key in table.items() if (fault := key.fault(name, given[name]))]
    if faults:
        raise CheckpointError(f"{values.path}: {joined(faults)}")
    return values.part({name: value for name, value in given.items() if table[name].used})


def refuse_others(values: Values, table: Table) -> None:
    """Raise `CheckpointError` for keys that are not in the table."""
    others = sorted(said(name) for name in values.found.keys() - table.keys())
    if others:
        faults = [f"the key '{name}' is not known, and may change the results" for name in others]
        raise CheckpointError(f"{values.path}: {joined(faults)}")


def whole(least: int = 1, most: int = MOST, default: Any = NEEDED) -> Key:
    """An integer within bounds."""
    return Key(f"{least} to {most}", lambda value: type(value) is int and least <= value <= most, default)


def number(above: float, most: float, default: Any = NEEDED) -> Key:
    """A number above `above` and at most `most`."""

    def fits(value: Any) -> bool:
        return type(value) in (int, float) and above < value <= most

    return Key(f"numbers over {above:g}, up to {most:g}", fits, default)


def flag(default: Any = NEEDED) -> Key:
    return Key("true, false", lambda value: type(value) is bool, default)


def text(default: Any = NEEDED) -> Key:
    return Key("a text", lambda value: isinstance(value, str), default)


def only(*values: Any, needed: bool = False) -> Key:
    """A key with these values. The first is the default, unless the key is required."""

    def fits(value: Any) -> bool:
        # True is 1 for Python, and not for JSON.
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)

    return Key(", ".join(map(said, values)), fits, NEEDED if needed else values[0])


def listed(of: Key, most: int, default: Any = NEEDED) -> Key:
    """A list of at most `most` values."""

    def fits(value: Any) -> bool:
        return isinstance(value, list) and len(value) <= most and all(map(of.fits, value))

    return Key(f"a list of at most {most} of: {of.allowed}", fits, default)


def one_or_listed(of: Key, most: int) -> Key:
    several = listed(of, most)
    return Key(f"{of.allowed}, or {several.allowed}", lambda value: of.fits(value) or several.fits(value))


def an_object() -> Key:
    """An object; its keys are validated by another table."""
    return Key("an object", lambda value: isinstance(value, dict))


def or_null(key: Key, default: Any = None) -> Key:
    """Allow null as well."""
    return replace(
        key, allowed=f"{key.allowed}, null", fits=lambda value: value is None or key.fits(value), default=default
    )


def harmless(names: str) -> Table:
    """Keys, separated by spaces, that may have any value because nothing depends on them."""
    return dict.fromkeys(names.split(), Key("anything", lambda value: True, None, used=False))
