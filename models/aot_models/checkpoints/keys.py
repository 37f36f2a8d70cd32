"""The keys that an object of a JSON file may have: what each may say, and what holds where it is not there.

A file is held to a table of them as a whole. A key that the table does not have is refused: nobody knows what it would
change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aot_models.checkpoints.values import CheckpointError, Values, joined, said
from aot_runtime.texts import shown

NEEDED: Any = object()
"""The default of keys that have to be there."""
MOST = 1 << 24
"""The largest size of anything, unless its key says otherwise."""


@dataclass(frozen=True)
class Key:
    """A key, by the values that it may have.

    Attributes:
        allowed: the values, in words.
        fits: whether a value is one of them.
        default: what holds without the key, `NEEDED` where there is no such value.
        used: whether anything depends on it.
        words: what an error calls a value that is not allowed.
    """

    allowed: str
    fits: Callable[[Any], bool]
    default: Any = NEEDED
    used: bool = True
    words: str = "{name} {value}"

    def fault(self, name: str, value: Any) -> str:
        """Say what is wrong with a value; "" where nothing is."""
        if self.fits(value):
            return ""
        if value is NEEDED or value is None:
            return f"there is no '{name}'"
        words = self.words.format(name=name, value=said(value), shown=shown(value))
        return f"{words} is not supported; supported: {self.allowed}"


Table = Mapping[str, Key]


def held(values: Values, table: Table) -> Values:
    """Read all keys of a table that something depends on.

    Raises:
        CheckpointError: keys that are missing, that say what they may not, or that the table does not have.
    """
    found = known(values, table)
    refuse_others(values, table)
    return found


def known(values: Values, table: Table) -> Values:
    """The same, whatever other keys there are."""
    given = {name: values.found.get(name, key.default) for name, key in table.items()}
    faults = [fault for name, key in table.items() if (fault := key.fault(name, given[name]))]
    if faults:
        raise CheckpointError(f"{values.path}: {joined(faults)}")
    return values.part({name: value for name, value in given.items() if table[name].used})


def refuse_others(values: Values, table: Table) -> None:
    """Raise `CheckpointError` for keys that a table does not have."""
    others = sorted(said(name) for name in values.found.keys() - table.keys())
    if others:
        faults = [f"the key '{name}' is not known, and may change the results" for name in others]
        raise CheckpointError(f"{values.path}: {joined(faults)}")


def whole(least: int = 1, most: int = MOST, default: Any = NEEDED) -> Key:
    """An integer within bounds."""
    return Key(f"{least} to {most}", lambda value: type(value) is int and least <= value <= most, default)


def number(above: float, most: float, default: Any = NEEDED) -> Key:
    """A finite number over `above`, up to `most`."""

    def fits(value: Any) -> bool:
        return type(value) in (int, float) and above < value <= most

    return Key(f"numbers over {above:g}, up to {most:g}", fits, default)


def flag(default: Any = NEEDED) -> Key:
    return Key("true, false", lambda value: type(value) is bool, default)


def text(default: Any = NEEDED) -> Key:
    return Key("a text", lambda value: isinstance(value, str), default)


def only(*values: Any, needed: bool = False) -> Key:
    """A key of one of these values, the first where it is not there, unless it is needed."""

    def fits(value: Any) -> bool:
        # True is 1 for Python, and not for JSON.
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)

    return Key(", ".join(map(said, values)), fits, NEEDED if needed else values[0])


def listed(of: Key, most: int, default: Any = NEEDED) -> Key:
    """A list of so many values of a kind, at most."""

    def fits(value: Any) -> bool:
        return isinstance(value, list) and len(value) <= most and all(map(of.fits, value))

    return Key(f"a list of at most {most} of: {of.allowed}", fits, default)


def one_or_listed(of: Key, most: int) -> Key:
    several = listed(of, most)
    return Key(f"{of.allowed}, or {several.allowed}", lambda value: of.fits(value) or several.fits(value))


def an_object() -> Key:
    """An object, whose keys are another table's."""
    return Key("an object", lambda value: isinstance(value, dict))


def or_null(key: Key, default: Any = None) -> Key:
    """The same, or null."""
    return replace(
        key, allowed=f"{key.allowed}, null", fits=lambda value: value is None or key.fits(value), default=default
    )


def harmless(names: str) -> Table:
    """Keys, listed in a text, that may say anything, for nothing that is computed here depends on them."""
    return dict.fromkeys(names.split(), Key("anything", lambda value: True, None, used=False))
