"""Describe the differences between two records: contracts, self-test cases, and mappings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aot_runtime.contract.records import (
    Axis,
    Config,
    Denied,
    Derived,
    Dim,
    DimLimit,
    Infinity,
    Launch,
    Record,
    Scalar,
    Tensor,
    Workspace,
)
from aot_runtime.formats import cut

MOST_LETTERS = 200
"""Most characters of a value to show, since texts of a bundle may be of any length."""


@dataclass(frozen=True)
class Change:
    """A changed item, with its text in the old and new bundle; None if absent."""

    what: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        if self.old is None:
            return f"{self.what} is new: {self.new}" if self.new else f"{self.what} is new"
        if self.new is None:
            return f"{self.what} is gone; it was {self.old}" if self.old else f"{self.what} is gone"
        return f"{self.what} was {self.old or 'not set'}, is {self.new or 'not set'}"


_KINDS: Mapping[type, tuple[str, Callable[[Any], str]]] = {
    Tensor: ("tensor", lambda item: item.name),
    Scalar: ("scalar", lambda item: item.name),
    DimLimit: ("dim", lambda item: item.name),
    Axis: ("axis", lambda item: item.name),
    Derived: ("derived value", lambda item: item.name),
    Workspace: ("workspace", lambda item: item.name),
    Launch: ("launch", lambda item: item.kernel),
    Config: ("config", lambda item: item.name),
    Denied: ("left out on purpose:", lambda item: item.when),
}
"""(noun, function that returns an identifying key) by type of record."""
_SETS = ("require", "divisible", "in_place", "dtypes", "values", "choices")
"""Fields compared as sets: additions and removals are listed."""
_KEYS = ("name", "kernel")
"""Fields that are part of a record's name."""


def record_changes(old: Record, new: Record, before: str = "") -> Iterator[Change]:
    """Return the differences between two records of one type. `before` is a prefix of each."""
    for field in old.__struct_fields__:
        yield from _changes(f"{before}{field}", field, getattr(old, field), getattr(new, field), before)


def _changes(what: str, field: str, old: Any, new: Any, before: str) -> Iterator[Change]:
    if old == new and type(old) is type(new):
        return
    items = [item for item in (*_listed(old), *_listed(new)) if item is not None]
    if items and type(items[0]) in _KINDS:
        yield from _list_changes(field, old, new, before)
    elif isinstance(old, dict) and isinstance(new, dict):
        yield from mapping_changes(old, new, f"{what} ")
    elif field in _SETS and items:
        yield from set_changes(what, old, new)
    elif isinstance(old, Record) and isinstance(new, Record) and not isinstance(old, Infinity):
        yield from record_changes(old, new, f"{what} ")
    else:
        yield Change(what, value_text(old), value_text(new))


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else ()


def _list_changes(field: str, old: Sequence[Any], new: Sequence[Any], before: str) -> Iterator[Change]:
    olds, news = _by_name(old), _by_name(new)
    for name, item in olds.items():
        if name not in news:
            yield Change(f"{before}{name}", _described(item), None)
    for name, item in news.items():
        if name not in olds:
            yield Change(f"{before}{name}", None, _described(item))
        else:
            yield from record_changes(olds[name], item, f"{before}{name}: ")
    common = [name for name in olds if name in news]
    if common != [name for name in news if name in olds]:
        yield Change(f"{before}order of {field}", ", ".join(olds), ", ".join(news))


def _by_name(items: Sequence[Any]) -> dict[str, Any]:
    """Return records by name, with a number appended to duplicate names."""
    found: dict[str, Any] = {}
    for at, item in enumerate(items):
        kind, name_of = _KINDS[type(item)]
        name = f"{kind} {short(name_of(item)) or at}"
        found[name if name not in found else f"{name} ({at})"] = item
    return found


def _described(item: Record) -> str:
    defaults = dict(
        zip(item.__struct_fields__[len(item.__struct_fields__) - len(item.__struct_defaults__) :],
            item.__struct_defaults__, strict=True)
    )  # fmt: skip
    said = [
        (field, getattr(item, field))
        for field in item.__struct_fields__
        if field not in _KEYS and field != "doc" and not (field in defaults and getattr(item, field) == defaults[field])
    ]
    return ", ".join(f"{field} {value_text(value)}" for field, value in said)


def mapping_changes(old: Mapping[str, Any], new: Mapping[str, Any], before: str = "") -> Iterator[Change]:
    """Return the differences between two mappings."""
    for key in dict.fromkeys((*old, *new)):
        what = f"{before}{short(key)}"
        if key not in new:
            yield Change(what, value_text(old[key]), None)
        elif key not in old:
            yield Change(what, None, value_text(new[key]))
        else:
            yield from _changes(what, key if key in _SETS else "values", old[key], new[key], before)


def set_changes(what: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[Change]:
    """Return the values added to and removed from a list, or else a change of order."""
    olds, news = [*map(value_text, old)], [*map(value_text, new)]
    gone, came = [text for text in olds if text not in news], [text for text in news if text not in olds]
    if gone:
        yield Change(what, ", ".join(gone), None)
    if came:
        yield Change(what, None, ", ".join(came))
    if not gone and not came:
        yield Change(f"order of {what}", ", ".join(olds), ", ".join(news))


def value_text(value: Any) -> str:
    """Format a value of a record."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case float():
            return repr(value).removesuffix(".0")
        case Dim():
            return short(f"{value.extent}|1" if value.broadcast else value.extent)
        case Infinity():
            return value.float
        case tuple() | list():
            return short(f"[{', '.join(map(value_text, value))}]")
        case dict():
            return short(", ".join(f"{key} {value_text(item)}" for key, item in value.items()))
        case Record():
            return short(_described(value))
    return short(str(value))


def short(text: str) -> str:
    """Escape a bundle's text for one line, and truncate it."""
    return cut(" ".join(text.split()), MOST_LETTERS)
