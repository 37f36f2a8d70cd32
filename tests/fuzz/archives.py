"""Handle an archive of any content: open it, handle each bundle in it like a folder's, and pack intact ones again to
the same bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from aot_bundle.command.listing import list_bundle, listing_data
from aot_bundle.verification import verify_bundle, verify_together
from aot_runtime.bundle.archive import Archive
from aot_runtime.bundle.files import open_place, source_of
from aot_runtime.bundle.multi_archive import MultiArchive, Part
from aot_runtime.bundle.reading import read_index
from aot_runtime.bundle.search import bundles_at
from aot_runtime.errors import BundleError

from .archive_inputs import ArchiveInput, ArchiveInputs, data_of, packed_again
from .bundles import must, study
from .names import can_be_files

_OF_BUNDLE = re.compile(
    r"bundle\.json(\..*)?|code/[0-9a-f]{16}\.(hsaco|cubin)|selftest/[0-9a-f]{8,64}\.npz|(include|src|stubs)/\w+\.(h|c|pyi)"
    r"|lib/cmake/\w+/\w+Config\.cmake|lib/pkgconfig/\w+\.pc"
)
"""Names that a bundle's files may have."""


def _archives_of(found: object) -> Iterator[Archive]:
    if isinstance(found, Archive):
        yield found
    if isinstance(found, MultiArchive):
        yield found.archive
        for arch in found.archs:
            with suppress(BundleError):
                yield found.part(arch).own


class Archives:
    """Handles inputs, one after the other, in a file of its own."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.inputs = folder, ArchiveInputs(seed)
        self.path = folder / "input.aotb"

    def warm_up(self) -> None:
        """Handle each seed as it is."""
        for name in self.inputs.entries:
            given = ArchiveInput(name, (), 0, True)
            outcome = self.handle(given, self.prepare(given))
            assert outcome in ("run: right", "whole"), (name, outcome)

    def draw(self, number: int) -> ArchiveInput:
        return self.inputs.draw(number)

    @property
    def readable(self) -> Path:
        """Return the folder that may be read."""
        return self.folder

    def prepare(self, given: ArchiveInput) -> bytes:
        """Write an input's file."""
        data = data_of(given, self.inputs)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(descriptor, data)
        os.close(descriptor)
        return data

    def undo(self, given: ArchiveInput, data: bytes) -> None:
        """Do nothing: the next input overwrites the file."""

    def handle(self, given: ArchiveInput, data: bytes) -> str:
        """Return the outcome of an input in a few words; raise what is wrong with it."""
        is_damaged = given.is_damage and data != self.inputs.data[given.seed]
        try:
            found = open_place(self.path)
        except BundleError as error:
            must(bool(str(error)), "an error without words")
            listing_data([list_bundle(path) for path in bundles_at(self.path)])
            return "refused when it is opened"
        for opened in _archives_of(found):
            must(can_be_files(opened.names()), "its files cannot be in one folder together")
        faults = verify_together(found) if isinstance(found, MultiArchive) else []
        outcomes = [self._bundle(path, given, is_damaged, faults) for path in bundles_at(self.path)]
        whole = not faults
        if whole and not isinstance(found, Archive | MultiArchive):
            must(data[:4] != b"PK\3\4", "an archive is taken for something else")
        elif whole:
            outer = found.archive if isinstance(found, MultiArchive) else found
            must(packed_again(outer) == data, "what is taken for whole is not what would be packed")
        must(not is_damaged, "nothing is found in a damaged archive") if whole else None
        if "run: right" in outcomes and whole:
            return "run: right"
        return "whole" if whole else "opened, verify finds faults"

    @staticmethod
    def _bundle(path: Path, given: ArchiveInput, is_damaged: bool, faults: list[str]) -> str:
        found = verify_bundle(path)
        faults += found
        try:
            source = source_of(path)
            index = read_index(source)
        except BundleError as error:
            must(bool(str(error)) and bool(found), "verify finds no fault in what cannot be opened")
            return "refused"
        strange = [name for name in source.names() if not _OF_BUNDLE.fullmatch(name)]
        must(not strange or found != [], f"verify finds no fault in {strange}")
        if isinstance(source, Part):
            must(index.target.arch == path.name, "a bundle for another architecture than was asked for")
            must(found != [] or packed_again(source.own) is not None, "a bundle without faults cannot be read")
        return study(path, index, given.calls, given.is_run, is_damaged)
