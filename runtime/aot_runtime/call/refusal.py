"""Explain a `NoVariantError`: the variants built, changes to the call that would help, and how to build the rest.

Also the warning of a call that is served, but not by the variants that it prefers.

The search makes thousands of trial plans, so the module is loaded only when the error is read.
"""

from __future__ import annotations

import ast
import os
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from aot_runtime.contract.expressions import evaluator, parse
from aot_runtime.contract.layout import Layout
from aot_runtime.contract.partial_evaluation import partial_value
from aot_runtime.contract.provenance import decode_provenance
from aot_runtime.contract.records import INDEX, Index, Op
from aot_runtime.errors import AotError
from aot_runtime.texts import escaped

from .advice import Asked, advice
from .changes import Arguments, Change
from .checking import Call, Checking
from .choosing import Choosing, Decision, Search
from .entries import Entry, entry_lines

CALLS = "calls.yaml"
"""The name of the calls file in the advice."""
SHIPPED = "manifests"
"""Folder of the manifests shipped with aotbuild, which are built by name."""
OUTPUT, BESIDE = "dist", "for-calls"
"""Output folders of aotbuild: the default one, and one for a bundle that must not replace another."""

NEAREST = 3
"""Configs that are listed when none serves a call."""
LEVELS = 4
"""Parent folders of a bundle to search for its manifest."""


@dataclass(frozen=True)
class Refusal:
    """A valid call that no variant fits.

    Attributes:
        layouts, scalars: the call's arguments.
        call: the checked call.
        search: the record of the failed search.
        device: (driver name, device index).
        hardware: values of the names that describe the device.
    """

    op: Op
    checking: Checking
    choosing: Choosing
    layouts: Mapping[str, Layout | None]
    scalars: Mapping[str, Any]
    call: Call
    search: Search
    device: tuple[str, int]
    hardware: Mapping[str, Any]

    def lines(self) -> tuple[str, ...]:
        """Return lines that list built variants, variants left out on purpose, and changes that would help."""
        op, choosing = self.op, self.choosing
        built = list(choosing.table.values())
        there = {name: sorted({v.axis_values[name] for v in built}, key=str) for name in choosing.axis_names}
        listed = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in there.items())
        given = [name for name, layout in self.call.layouts.items() if layout is not None]
        inputs = [tensor.name for tensor in op.tensors if tensor.name in given and tensor.role != "output"]
        asked = Asked(self.call.names, inputs, tuple(self.search.misaligned))
        return (
            *self._unmet(),
            *([f"built: {listed}"] if there else []),
            *(f"left out: {item.when}: {item.reason}" for item in op.denied if item.reason),
            *(f"advice: {line}" for line in advice(op, built, asked, self._fits, self._serves)),
        )

    def remedy(self, index: Index | None, place: Path | None, entry: Callable[[], Entry]) -> tuple[str, ...]:
        """Return lines that say how to build the missing variant; none if that is not known to help.

        Args:
            index: the bundle's index, or None if unknown.
            place: the bundle's path, or None if unknown.
            entry: function that returns the call as an entry of a calls file.
        """
        return remedy(index, place, entry) if self.search.may_be_had else ()

    def _unmet(self) -> Iterator[str]:
        """Yield the configs that are nearest to serving the call, of a launch of which none serves it."""
        names = {**self.call.names, "aligned": False}
        for launch in self.op.launches:
            unmet = [(_parts_unmet(config.when, names), config.name) for config in launch.configs]
            if all(parts for parts, _ in unmet):
                for parts, name in sorted(unmet, key=lambda item: len(item[0]))[:NEAREST]:
                    read = sorted({name for part in parts for name in parse(part).names if name in names})
                    given = ", ".join(f"{name}={names[name]}" for name in read)
                    yield f"{name} needs {' and '.join(parts)}{'; given: ' if given else ''}{given}"

    def _fits(self, names: Mapping[str, Any], may_be_aligned: bool) -> bool:
        op, choosing = self.op, self.choosing
        try:
            if not all(evaluator(text)(names) for text in op.require):
                return False
            known = dict(names)
            for item in op.derived:
                known[item.name] = evaluator(item.value)(known)
            return any(
                choosing.cheapest({**known, "aligned": aligned}, Search(), {})
                for aligned in ((True, False) if may_be_aligned else (False,))
            )
        except (AotError, ArithmeticError, TypeError):
            return False  # the changed arguments are invalid

    def _serves(self, changes: Iterable[Change]) -> bool:
        arguments = Arguments(self.layouts, self.scalars, self.call.names)
        try:
            changed = arguments.changed(self.op, changes, self.device)
            call = self.checking.check(changed.layouts, changed.scalars, self.device, self.hardware)
            return self.choosing.find(call, Search()) is not None
        except (AotError, ArithmeticError, TypeError):
            return False


def _parts_unmet(condition: str, names: Mapping[str, Any]) -> list[str]:
    """Return the parts of a condition, as `and` joins them, that do not hold."""
    tree = parse(condition or "True").tree
    parts = [
        ast.unparse(part)
        for part in (tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree])
    ]
    return [part for part in parts if partial_value(parse(part), names) in (False, 0)]


def remedy(index: Index | None, place: Path | None, entry: Callable[[], Entry]) -> tuple[str, ...]:
    """Return lines that say how to build variants that a bundle lacks; none if it has all of its manifest's.

    Args: see `Refusal.remedy`.
    """
    if index is None:
        return ()
    provenance = decode_provenance(index)
    said = {} if provenance is None else provenance.build_definition.external_parameters
    if said and not said.get("filter") and "for" not in said:
        return ()
    command = build_command(index.name, str(said.get("manifest", "")), place, index.target.arch)
    return build_lines(command, entry())


def warned_of_second_choice(
    choosing: Choosing, decision: Decision, index: Index | None, place: Path | None, entry: Callable[[], Entry]
) -> bool:
    """Warn of a call that gets slower variants than a build of the whole manifest has; return True if it does.

    Args: index, place, entry: see `Refusal.remedy`.
    """
    lines = remedy(index, place, entry) if _is_second_choice(choosing, decision) else ()
    if lines:
        got = ", ".join(launch.variant.symbol for launch in decision.launches)
        first = f"{choosing.op.name}: a call is served by {got}: this bundle lacks the faster variants that it prefers"
        text = "\n".join(map(escaped, (f"{first} (the op warns once)", *lines)))
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return bool(lines)


def _is_second_choice(choosing: Choosing, decision: Decision) -> bool:
    """Return True if the manifest may have variants that the call prefers: aligned ones, or those of other configs."""
    missed = (config for launch in decision.launches for config in launch.missed)
    if any(not choosing.is_left_out({**decision.names, **config.values, "config": config.name}) for config in missed):
        return True
    if decision.aligned or decision.misaligned:
        return False
    search = Search()
    way = choosing.cheapest({**decision.names, "aligned": True}, search, decision.layouts)
    return way is None and (search.may_be_had or search.unpicked)


def build_lines(command: str, entry: Entry) -> tuple[str, ...]:
    """Return lines with a build command and the calls-file entry that it needs."""
    first = f"to have it built: `{command}`, with this in {CALLS}:"
    return (first, "  calls:", *(f"    {line}" for line in entry_lines(entry)))


def build_command(bundle: str, manifest: str, place: Path | None, arch: str) -> str:
    """Return the command that builds the variants of a calls file and keeps the bundle's other variants.

    Args:
        bundle: the bundle's name.
        manifest: the bundle's manifest, relative to its project; empty if unknown.
        place: the bundle's path, or None if unknown.
    """
    output = _output(f"{bundle}-{arch}", place)
    return shlex.join(["aotbuild", "--arch", arch, "--for", CALLS, *output, _manifest(bundle, manifest, place)])


def _output(name: str, place: Path | None) -> Iterator[str]:
    """Return output options: add to the bundle if aotbuild would write to its path, else use a separate folder."""
    if place is None or place.name != name or not (place / INDEX).is_file() or not os.access(place, os.W_OK):
        yield from ("-o", BESIDE)
        return
    yield "--add"
    folder = os.path.relpath(place.parent)
    if folder != OUTPUT:
        yield from ("-o", str(place.parent.absolute()) if folder.startswith("..") else folder)


def _manifest(bundle: str, manifest: str, place: Path | None) -> str:
    """Return the manifest's path if found in the working folder or above the bundle, else its shipped name."""
    known = manifest or f"{bundle}.yaml"
    for folder in (Path(), *(place.absolute().parents[:LEVELS] if place else ())):
        if (folder / known).is_file():
            return os.path.relpath(folder / known)
    path = PurePosixPath(known)
    return path.stem if not manifest or str(path.parent) == SHIPPED else known
