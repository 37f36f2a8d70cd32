"""Compare the variants of two bundles: their presence, resources and instructions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from aot_bundle.command.variants import VariantRow, variant_rows
from aot_bundle.isa import Instruction
from aot_runtime.contract.records import Index, Variant
from aot_runtime.formats import axis_values_text

from .changes import Change, mapping_changes, short, value_text

Instructions = Callable[[Variant], Sequence[Instruction]]
"""Function that reads the instructions of a variant of one bundle."""
SharedOptions = Mapping[str, tuple[str, str]]
"""Compiler options shared by all variants of each bundle, with the old and new value."""
MOST_MNEMONICS = 8
"""Most mnemonics to list per op."""


@dataclass(frozen=True)
class Built:
    """A variant: its row, its record, the SHA-256 of its code object, and its compiler options beyond the config's."""

    row: VariantRow
    variant: Variant
    sha256: str
    options: Mapping[str, str]

    @property
    def key(self) -> tuple[object, ...]:
        """Return a key that identifies the variant within its bundle and across builds."""
        return self.row.op, self.row.launch, self.row.kernel, *self.coordinates.items()

    @property
    def coordinates(self) -> dict[str, str]:
        """Return the variant's axis values, specialisation and config."""
        values = {name: value_text(value) for name, value in self.row.axis_values.items()}
        return {**values, "aligned": value_text(self.row.aligned), "config": self.row.config}

    @property
    def label(self) -> str:
        row = self.row
        kind = "aligned" if row.aligned else "general"
        return short(f"{row.kernel}[{axis_values_text(row.axis_values)}] {kind}, {row.config}")


@dataclass(frozen=True)
class Group:
    """Variants that one bundle lacks, either with a common axis value `what` (`T=bfloat16`), or the remaining ones."""

    what: str
    variants: tuple[str, ...]


@dataclass(frozen=True)
class ChangedVariant:
    """A common variant that differs. `code` is True if its code object differs."""

    variant: str
    code: bool
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Shift:
    """Change of a resource: number of variants where it decreased and increased, and the largest changes."""

    what: str
    fewer: int
    more: int
    least: float
    most: float


def shared_options(old: Index, new: Index) -> SharedOptions:
    """See `SharedOptions`."""
    before, after = _options(old), _options(new)
    return {name: (before[name], after[name]) for name in before if name in after}


def _options(index: Index) -> dict[str, str]:
    try:
        options = json.loads(index.toolchain.get("options", "{}"))
    except (ValueError, RecursionError):
        return {}
    return {name: value_text(value) for name, value in options.items()} if isinstance(options, dict) else {}


def built(index: Index) -> dict[tuple[object, ...], Built]:
    """Return the variants of a bundle by key."""
    shared, found = _options(index), {}
    for row, variant in zip(variant_rows(index), index.variants, strict=True):
        own = {name: value_text(value) for name, value in variant.options.items()}
        options = {name: text for name, text in {**shared, **own}.items() if name not in row.settings}
        item = Built(row, variant, index.blobs[variant.code].sha256, options)
        found[item.key] = item
    return found


def groups(lacking: Sequence[Built], others: Sequence[Built]) -> tuple[Group, ...]:
    """Group an op's variants by axis values that the other bundle lacks. The remaining ones come last."""
    there = {pair for item in others for pair in item.coordinates.items()}
    left, found = list(lacking), []
    while True:
        counts = Counter(pair for item in left for pair in item.coordinates.items() if pair not in there)
        if not counts:
            break
        pair = max(counts, key=lambda pair: counts[pair])
        found.append(_group("=".join(pair), [item for item in left if pair in item.coordinates.items()]))
        left = [item for item in left if pair not in item.coordinates.items()]
    return (*found, *([_group("", left)] if left else []))


def _group(what: str, items: Sequence[Built]) -> Group:
    return Group(short(what), tuple(item.label for item in items))


def changed_variants(pairs: Sequence[tuple[Built, Built]], told: SharedOptions) -> tuple[ChangedVariant, ...]:
    """Return the common variants that differ. `told` are option changes already reported for all variants."""
    found = [(old, new, tuple(_changes(old, new, told))) for old, new in pairs]
    return tuple(
        ChangedVariant(new.label, old.sha256 != new.sha256, changes)
        for old, new, changes in found
        if changes or old.sha256 != new.sha256
    )


def _changes(old: Built, new: Built, told: SharedOptions) -> Iterator[Change]:
    for name, number in NUMBERS.items():
        before, after = number(old.row), number(new.row)
        if before != after:
            yield Change(name, value_text(before), value_text(after))
    yield from mapping_changes(old.row.settings, new.row.settings)
    shared = [name for name, pair in told.items() if pair == (old.options.get(name), new.options.get(name))]
    options = [{name: text for name, text in item.options.items() if name not in shared} for item in (old, new)]
    yield from mapping_changes(options[0], options[1], "option ")
    for name, text in _TEXTS.items():
        if text(old) != text(new):
            yield Change(name, text(old), text(new))


def _spills(row: VariantRow) -> int | None:
    return None if row.vgpr_spills is None else row.vgpr_spills + (row.sgpr_spills or 0)


NUMBERS: Mapping[str, Callable[[VariantRow], float | None]] = {
    "VGPRs": lambda row: row.vgprs, "AGPRs": lambda row: row.agprs, "SGPRs": lambda row: row.sgprs, "spills": _spills,
    "bytes of scratch": lambda row: row.scratch_bytes, "bytes of LDS": lambda row: row.lds_bytes,
    "threads": lambda row: row.block_threads, "waves per SIMD": lambda row: row.waves_per_simd,
    "bytes of code": lambda row: row.code_bytes,
}  # fmt: skip
"""Functions that return a resource of a variant, or None if not recorded."""
_TEXTS: Mapping[str, Callable[[Built], str]] = {
    "symbol": lambda item: short(item.row.symbol),
    "compiler": lambda item: short(item.variant.compiler),
    "kernargs": lambda item: value_text(tuple(arg.name for arg in item.variant.kernargs)),
    "layout of kernargs": lambda item: value_text(
        tuple(f"{arg.type} at {arg.offset}: {arg.value}" for arg in item.variant.kernargs)
    ),
}


def shifts(pairs: Sequence[tuple[Built, Built]]) -> tuple[Shift, ...]:
    """Return the changes in the resources of common variants."""
    found = []
    for name, number in NUMBERS.items():
        numbers = [(number(old.row), number(new.row)) for old, new in pairs]
        deltas = [new - old for old, new in numbers if old is not None and new is not None and new != old]
        if deltas:
            fewer = sum(delta < 0 for delta in deltas)
            found.append(Shift(name, fewer, len(deltas) - fewer, min(deltas), max(deltas)))
    return tuple(found)


def instruction_changes(
    pairs: Sequence[tuple[Built, Built]], read_old: Instructions, read_new: Instructions
) -> tuple[Change, ...]:
    """Compare the instructions of variants whose code objects differ.

    Returns changes in the number of variants with equal instructions, the number of instructions, and the counts of
    mnemonics that differ most. Raises `BundleError` and `DeviceError` if instructions cannot be read.
    """
    counts: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    differing = [(old, new) for old, new in pairs if old.sha256 != new.sha256]
    same = 0
    for old, new in differing:
        mnemonics = [
            [item.mnemonic for item in read(side.variant)] for side, read in ((old, read_old), (new, read_new))
        ]
        same += mnemonics[0] == mnemonics[1]
        for count, found in zip(counts, mnemonics, strict=True):
            count.update(found)
    if not differing:
        return ()
    olds, news = counts
    most = sorted({*olds, *news}, key=lambda name: (-abs(news[name] - olds[name]), name))[:MOST_MNEMONICS]
    told = [("all", sum(olds.values()), sum(news.values())), *((name, olds[name], news[name]) for name in most)]
    return (
        Change("code objects with other instructions", str(len(differing)), str(len(differing) - same)),
        *(Change(f"instructions, {name}", str(a), str(b)) for name, a, b in told if a != b),
    )
