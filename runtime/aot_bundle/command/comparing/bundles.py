"""Compare two bundles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aot_bundle.command.listing import find_bundles
from aot_bundle.isa import read_instructions
from aot_runtime.bundle.files import source_of
from aot_runtime.bundle.reading import read_blob, read_index
from aot_runtime.bundle.source import Source
from aot_runtime.contract.arch import HIP
from aot_runtime.contract.index_encoding import encode_json
from aot_runtime.contract.provenance import Provenance, Resource, decode_provenance
from aot_runtime.contract.records import Index, Variant
from aot_runtime.errors import BundleError

from .changes import Change, mapping_changes, record_changes, short
from .variants import (
    Built,
    ChangedVariant,
    Group,
    Instructions,
    SharedOptions,
    Shift,
    built,
    changed_variants,
    groups,
    instruction_changes,
    shared_options,
    shifts,
)

_DIGITS = 12
"""Hex digits of a digest to show."""


@dataclass(frozen=True)
class Side:
    """Identity of one of the two bundles."""

    path: str
    name: str
    version: str
    arch: str
    id: str


@dataclass(frozen=True)
class OpDifference:
    """Differences of an op. `state` is `new`, `gone` or `changed`; the first two only have counts.

    Attributes:
        old, new: number of variants in each bundle.
        shifts: changes in the resources of common variants.
        instructions: changes in the instructions of common variants, if requested.
    """

    op: str
    state: str
    old: int
    new: int
    contract: tuple[Change, ...] = ()
    added: tuple[Group, ...] = ()
    removed: tuple[Group, ...] = ()
    changed: tuple[ChangedVariant, ...] = ()
    shifts: tuple[Shift, ...] = ()
    instructions: tuple[Change, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A figure of both bundles."""

    what: str
    old: int
    new: int
    is_size: bool


@dataclass(frozen=True)
class Differences:
    """Differences between an old and a new bundle."""

    old: Side
    new: Side
    bundle: tuple[Change, ...]
    toolchain: tuple[Change, ...]
    provenance: tuple[Change, ...]
    ops: tuple[OpDifference, ...]
    selftest: tuple[Change, ...]
    figures: tuple[Figure, ...]

    @property
    def same(self) -> bool:
        """Return True if the bundles are identical, byte for byte."""
        return self.old.id == self.new.id


def compare(old: Path, new: Path, code: bool = False) -> Differences:
    """Compare two bundles by their indexes and, with `code`, the instructions of code objects that differ.

    Raises `BundleError`, and with `code` `DeviceError` if the decoder is not installed.
    """
    places = source_of(old), source_of(new)
    return compare_indexes(places, (read_index(places[0]), read_index(places[1])), code)


def compare_indexes(places: tuple[Source, Source], indexes: tuple[Index, Index], code: bool = False) -> Differences:
    """Like `compare`, for indexes already read."""
    old, new = indexes
    sides = [
        Side(str(place.path), index.name, index.version, index.target.arch, index.id)
        for place, index in zip(places, indexes, strict=True)
    ]
    readers = (_reader(places[0], old), _reader(places[1], new)) if code else None
    return Differences(
        sides[0], sides[1],
        tuple(mapping_changes(_title(old), _title(new))),
        tuple(_toolchain(old, new)),
        tuple(mapping_changes(_provenance(decode_provenance(old)), _provenance(decode_provenance(new)))),
        tuple(_ops(old, new, readers)),
        tuple(_cases(old, new)),
        tuple(_figures(old, new)),
    )  # fmt: skip


def _reader(place: Source, index: Index) -> Instructions:
    if index.target.backend != HIP.name:
        raise BundleError("reading the instructions of cubins is not supported")

    def read(variant: Variant) -> Any:
        return read_instructions(read_blob(place, index.blobs[variant.code], index.target.arch), variant.symbol)

    return read


def _title(index: Index) -> dict[str, Any]:
    return {
        "name": index.name, "version": index.version, "architecture": index.target.arch, "format": index.format,
    }  # fmt: skip


def _toolchain(old: Index, new: Index) -> Iterator[Change]:
    """Compare the compiler, and the options shared by all variants of each bundle."""
    compilers = [{name: text for name, text in index.toolchain.items() if name != "options"} for index in (old, new)]
    yield from mapping_changes(compilers[0], compilers[1])
    for name, (before, after) in shared_options(old, new).items():
        if before != after:
            yield Change(f"option {short(name)}", before, after)


def _provenance(said: Provenance | None) -> dict[str, Any]:
    """Return the parameters, inputs and tools of a build; empty if not recorded."""
    if said is None:
        return {}
    definition, run = said.build_definition, said.run_details.builder
    return {
        **{f"parameter {name}": value for name, value in definition.external_parameters.items()},
        **{_resource_name(item): _digests(item) for item in definition.resolved_dependencies},
        **{f"version of {name}": version for name, version in run.version.items()},
    }


def _resource_name(item: Resource) -> str:
    return item.name or item.uri


def _digests(item: Resource) -> str:
    return ", ".join(f"{kind} {digits[:_DIGITS]}" for kind, digits in item.digest.items())


def _ops(old: Index, new: Index, readers: tuple[Instructions, Instructions] | None) -> Iterator[OpDifference]:
    olds, news = ({op.name: op for op in index.ops} for index in (old, new))
    before, after = _by_op(old), _by_op(new)
    told = shared_options(old, new)
    for name in dict.fromkeys((*olds, *news)):
        counts = len(before.get(name, {})), len(after.get(name, {}))
        if name not in news:
            yield OpDifference(name, "gone", *counts)
        elif name not in olds:
            yield OpDifference(name, "new", *counts)
        else:
            found = _variants(name, before.get(name, {}), after.get(name, {}), told, readers)
            contract = tuple(record_changes(olds[name], news[name]))
            if contract or found.added or found.removed or found.changed:
                yield replace(found, contract=contract)


_Keyed = Mapping[tuple[object, ...], Built]


def _by_op(index: Index) -> dict[str, dict[tuple[object, ...], Built]]:
    found: dict[str, dict[tuple[object, ...], Built]] = {}
    for key, item in built(index).items():
        found.setdefault(item.row.op, {})[key] = item
    return found


def _variants(
    name: str, old: _Keyed, new: _Keyed, told: SharedOptions, readers: tuple[Instructions, Instructions] | None
) -> OpDifference:
    pairs = [(old[key], new[key]) for key in old if key in new]
    added = groups([item for key, item in new.items() if key not in old], [*old.values()])
    removed = groups([item for key, item in old.items() if key not in new], [*new.values()])
    instructions = instruction_changes(pairs, *readers) if readers else ()
    return OpDifference(
        name, "changed", len(old), len(new), (), added, removed, changed_variants(pairs, told), shifts(pairs),
        instructions,
    )  # fmt: skip


def _cases(old: Index, new: Index) -> Iterator[Change]:
    olds, news = ({f"case {case.name} of {case.op}": case for case in index.selftest} for index in (old, new))
    for name in dict.fromkeys((*olds, *news)):
        if name not in olds or name not in news:
            yield Change(short(name), None if name not in olds else "", None if name not in news else "")
        else:
            yield from record_changes(olds[name], news[name], f"{short(name)}: ")


def _figures(old: Index, new: Index) -> Iterator[Figure]:
    for what, number, is_size in _FIGURES:
        yield Figure(what, number(old), number(new), is_size)
    olds, news = ({blob.sha256: blob.size for blob in index.blobs.values()} for index in (old, new))
    common = [size for sha256, size in olds.items() if sha256 in news]
    yield Figure("code objects that are equal", len(common), len(common), False)
    yield Figure("size of code objects that are equal", sum(common), sum(common), True)


_FIGURES: tuple[tuple[str, Callable[[Index], int], bool], ...] = (
    ("variants", lambda index: len(index.variants), False),
    ("code objects", lambda index: len(index.blobs), False),
    ("size of code objects", lambda index: sum(blob.size for blob in index.blobs.values()), True),
    ("machine code of variants", lambda index: sum(item.resources.code_bytes for item in index.variants), True),
    ("size of contracts", lambda index: len(encode_json(index.ops)), True),
    ("selftest cases", lambda index: len(index.selftest), False),
    ("size of selftest vectors", lambda index: sum(case.vectors.size for case in index.selftest), True),
)
"""(label, function that computes the figure from an index, True if it is in bytes)."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of old and new bundles to compare, and the bundles without a counterpart."""

    both: tuple[tuple[Path, Path], ...]
    gone: tuple[Path, ...] = ()
    new: tuple[Path, ...] = ()


def find_pairs(old: Path, new: Path) -> Pairs:
    """Pair the bundles at two paths. Single bundles are paired in any case, several by name and architecture.

    Raises `BundleError`.
    """
    olds, news = find_bundles([old]), find_bundles([new])
    if len(olds) == len(news) == 1:
        return Pairs(((olds[0], news[0]),))
    before, after = _by_title(olds), _by_title(news)
    return Pairs(
        tuple((path, after[title]) for title, path in before.items() if title in after),
        tuple(path for title, path in before.items() if title not in after),
        tuple(path for title, path in after.items() if title not in before),
    )


def _by_title(paths: Sequence[Path]) -> dict[tuple[str, str], Path]:
    found: dict[tuple[str, str], Path] = {}
    for path in paths:
        index = read_index(path)
        other = found.setdefault((index.name, index.target.arch), path)
        if other != path:
            raise BundleError(f"{other} and {path} are both bundle '{index.name}' for {index.target.arch}")
    return found
