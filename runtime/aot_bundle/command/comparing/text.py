"""Format the differences between two bundles as text or data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from aot_runtime.formats import size_text
from aot_runtime.texts import ID_LENGTH

from .bundles import Differences, Figure, OpDifference, Pairs, Side
from .changes import Change, short
from .variants import Group, Shift

MOST_LINES = 5
"""Default maximum of variants to list in a group."""


def differences_text(found: Differences, every: bool) -> Iterator[str]:
    """Format all differences. `every` lists each variant."""
    yield f"old: {side_text(found.old)}"
    yield f"new: {side_text(found.new)}"
    if found.same:
        yield "they are the same bundle"
        return
    for title, changes in SECTIONS:
        yield from _section(title, map(str, changes(found)))
    for op in found.ops:
        yield from _section(f"op {op.op}", _op_lines(op, every))
    yield from _section("figures", map(figure_text, found.figures))


SECTIONS: Sequence[tuple[str, Any]] = (
    ("bundle", lambda found: found.bundle),
    ("toolchain", lambda found: found.toolchain),
    ("provenance", lambda found: found.provenance),
    ("selftest", lambda found: found.selftest),
)
"""Sections other than the ops."""


def side_text(side: Side) -> str:
    """Describe one of the two bundles."""
    title = " ".join(filter(None, (side.name, short(side.version))))
    return f"{side.path}: {title} for {side.arch}, id {side.id[:ID_LENGTH]}"


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    told = list(lines)
    if told:
        yield ""
        yield f"{title}:"
        yield from (f"  {line}" for line in told)


def _op_lines(op: OpDifference, every: bool) -> Iterator[str]:
    yield op_summary(op)
    yield from map(str, op.contract)
    for kind, found in (("new", op.added), ("gone", op.removed)):
        for group in found:
            yield from _group_lines(kind, group, every)
    yield from map(shift_text, op.shifts)
    yield from map(str, op.instructions)
    if op.changed and every:
        for item in op.changed:
            yield f"changed: {item.variant}: {'; '.join([*['other code'] * item.code, *map(str, item.changes)])}"


def op_summary(op: OpDifference) -> str:
    """Summarise the changes in an op's variants."""
    if op.state != "changed":
        return f"is {op.state}, with {max(op.old, op.new)} variants"
    added, removed = (sum(len(group.variants) for group in groups) for groups in (op.added, op.removed))
    code = sum(item.code for item in op.changed)
    counts = (f"{added} new", f"{removed} gone", f"{len(op.changed)} changed, {code} of them with other code")
    return f"{op.old} variants, now {op.new}: {', '.join(counts)}"


def _group_lines(kind: str, group: Group, every: bool) -> Iterator[str]:
    yield f"{kind}: {group_text(group)}"
    shown = group.variants if every else group.variants[:MOST_LINES]
    if every or not group.what:
        yield from (f"  {name}" for name in shown)
        if len(shown) < len(group.variants):
            yield f"  and {len(group.variants) - len(shown)} more; --variants names them"


def group_text(group: Group) -> str:
    """Describe a group of variants, with their number."""
    count = f"{len(group.variants)} variant{'s' * (len(group.variants) != 1)}"
    return f"{count} of {group.what}" if group.what else f"{count} of values in both"


def shift_text(shift: Shift) -> str:
    """Describe for how many variants a resource decreased or increased."""
    parts = []
    if shift.fewer:
        parts.append(f"fewer in {shift.fewer} (at most {shift.least:+g})")
    if shift.more:
        parts.append(f"more in {shift.more} (at most {shift.most:+g})")
    return f"{shift.what}: {', '.join(parts)}"


def figure_text(figure: Figure) -> str:
    """Format a figure of both bundles."""
    old, new = (size_text(number) if figure.is_size else str(number) for number in (figure.old, figure.new))
    return f"{figure.what}: {old}" if figure.old == figure.new else f"{figure.what}: {old}, now {new}"


def pairs_lines(pairs: Pairs, found: Sequence[Differences], every: bool) -> Iterator[str]:
    """Format the differences between all pairs of bundles."""
    blocks: list[Iterable[str]] = [differences_text(item, every) for item in found]
    blocks += [[f"{path} was removed"] for path in pairs.gone]
    blocks += [[f"{path} is new"] for path in pairs.new]
    for number, block in enumerate(blocks):
        yield from [""] * (number > 0)
        yield from block


def pairs_data(pairs: Pairs, found: Sequence[Differences]) -> dict[str, Any]:
    """Return the differences as JSON-ready data."""
    return {
        "same": is_same(pairs, found),
        "bundles": [{"same": item.same, **asdict(item)} for item in found],
        "gone": [str(path) for path in pairs.gone],
        "new": [str(path) for path in pairs.new],
    }


def is_same(pairs: Pairs, found: Sequence[Differences]) -> bool:
    """Return True if nothing differs."""
    return not pairs.gone and not pairs.new and all(item.same for item in found)


def change_row(change: Change) -> tuple[str, str, str]:
    """Return (item, old text, new text), for a table."""
    old = "not there" if change.old is None else change.old or "not set"
    new = "not there" if change.new is None else change.new or "not set"
    return change.what, old, new
