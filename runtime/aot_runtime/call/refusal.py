"""The explanation of a `NoVariantError`: what is built, which changed call would be served, and how to build the rest.

It takes thousands of trial plans, so this module is loaded, and the explanation made, when somebody reads the error.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from aot_runtime.contract.evaluation import evaluator
from aot_runtime.contract.layout import Layout
from aot_runtime.contract.records import INDEX, Op
from aot_runtime.errors import AotError

from .advice import Asked, advice
from .changes import Arguments, Change
from .checking import Call, Checking
from .choosing import Choosing, Search
from .entries import Entry, entry_lines

CALLS = "calls.yaml"
"""The name of the calls file in the advice."""
SHIPPED = "manifests"
"""The folder of the manifests that come with aotbuild, which are built by their names."""
OUTPUT, BESIDE = "dist", "for-calls"
"""Folders that aotbuild writes to: by default, and for a bundle that does not replace another."""

LEVELS = 4
"""Folders above a bundle that may be the root of its project."""


@dataclass(frozen=True)
class Refusal:
    """A call that the contract allows and that no variant serves.

    Attributes:
        layouts, scalars: the call's arguments.
        call: the checked call.
        search: what was tried.
        device: (driver name, device index).
        hardware: the values of the names that expressions have for the device.
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
        """Return lines on what is built, what was left out on purpose, and which changes would help."""
        op, choosing = self.op, self.choosing
        built = list(choosing.table.values())
        there = {name: sorted({v.axis_values[name] for v in built}, key=str) for name in choosing.axis_names}
        listed = "; ".join(f"{name}: {', '.join(map(str, values))}" for name, values in there.items())
        given = [name for name, layout in self.call.layouts.items() if layout is not None]
        inputs = [tensor.name for tensor in op.tensors if tensor.name in given and tensor.role != "output"]
        asked = Asked(self.call.names, inputs, tuple(self.search.misaligned))
        return (
            f"built: {listed}",
            *(f"left out: {item.when}: {item.reason}" for item in op.denied if item.reason),
            *(f"advice: {line}" for line in advice(op, built, asked, self._fits, self._serves)),
        )

    def _fits(self, names: Mapping[str, Any], may_be_aligned: bool) -> bool:
        op, choosing = self.op, self.choosing
        try:
            if not all(evaluator(text)(names) for text in op.require):
                return False
            known = dict(names)
            for item in op.derived:
                known[item.name] = evaluator(item.value)(known)
            return any(
                choosing.serves({**known, "aligned": aligned})
                for aligned in ((True, False) if may_be_aligned else (False,))
            )
        except (AotError, ArithmeticError, TypeError):
            return False  # the changed arguments make no call

    def _serves(self, changes: Iterable[Change]) -> bool:
        arguments = Arguments(self.layouts, self.scalars, self.call.names)
        try:
            changed = arguments.changed(self.op, changes, self.device)
            call = self.checking.check(changed.layouts, changed.scalars, self.device, self.hardware)
            return self.choosing.find(call, Search()) is not None
        except (AotError, ArithmeticError, TypeError):
            return False


def build_lines(command: str, entry: Entry) -> tuple[str, ...]:
    """Return lines with a command of `build_command` and the entry of its calls file."""
    first = f"to have it built: `{command}`, with this in {CALLS}:"
    return (first, "  calls:", *(f"    {line}" for line in entry_lines(entry)))


def build_command(bundle: str, manifest: str, place: Path | None, arch: str) -> str:
    """Return the command that builds the variants of a calls file and keeps the bundle's others.

    Args:
        bundle: its name.
        manifest: that of the bundle, from the root of its project; empty where the bundle does not say.
        place: where the bundle lies, if that is known.
    """
    output = _output(f"{bundle}-{arch}", place)
    return shlex.join(["aotbuild", "--arch", arch, "--for", CALLS, *output, _manifest(bundle, manifest, place)])


def _output(name: str, place: Path | None) -> Iterator[str]:
    """To the bundle itself where aotbuild would write it, else to a folder of its own."""
    if place is None or place.name != name or not (place / INDEX).is_file() or not os.access(place, os.W_OK):
        yield from ("-o", BESIDE)
        return
    yield "--add"
    folder = os.path.relpath(place.parent)
    if folder != OUTPUT:
        yield from ("-o", str(place.parent.absolute()) if folder.startswith("..") else folder)


def _manifest(bundle: str, manifest: str, place: Path | None) -> str:
    """The manifest's file where it is found, from the working folder or above the bundle, else the name of one that is
    shipped."""
    known = manifest or f"{bundle}.yaml"
    for folder in (Path(), *(place.absolute().parents[:LEVELS] if place else ())):
        if (folder / known).is_file():
            return os.path.relpath(folder / known)
    path = PurePosixPath(known)
    return path.stem if not manifest or str(path.parent) == SHIPPED else known
