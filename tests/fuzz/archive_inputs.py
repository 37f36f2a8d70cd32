"""Mutated archives, made from one seed or several for different architectures by edits of entries, layout and bytes."""

from __future__ import annotations

import io
import random
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aot_runtime.bundle.archive import Entry, directory, header, in_order, parts
from aot_runtime.bundle.files import SUFFIX
from aot_runtime.bundle.multi_archive import multi_files
from aot_runtime.errors import BundleError

from .bundle_inputs import Seed, seed_names
from .edits import Edit, edit_bytes
from .random_edits import Draw

Entries = list[tuple[str, bytes]]
WHOLE = "several"
"""The seed that is for several architectures."""
_OF_WHOLE = ("affine", "scale_segments", "cubin")
_NAMES = (
    "bundle.json", "bundle.json.sig", "BUNDLE.JSON", "code", "code/", "code/ffffffffffffffff.hsaco", "selftest/x",
    "../x", "/etc/passwd", "code/../bundle.json", "code//x", "./bundle.json", "C:x", "x\0", "\n", "x" * 300, "",
    "gfx942.aotb", "gfx90a.aotb", "sm_90.aotb", ".aotb", "x.aotb", "gfx942.aotb/bundle.json", "notes.txt",
    "include/assert.h", "sitecustomize.py", "zz", "zz/a", "Code/x", "bundle.json/x", "bundle.json.x", "selftest",
)  # fmt: skip
_FIELDS = ((0, 4), (4, 2), (6, 2), (8, 2), (10, 2), (12, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2), (38, 4),
           (42, 4))  # fmt: skip
"""Offset and size of numbers in the headers of entries, in front of them and in the directory."""
_ENTRY, _BYTES = "entry", "bytes"


@dataclass(frozen=True)
class ArchiveInput:
    """A seed's archive with edits. Each edit begins with what it edits: `entry`, `inner <n>` (the entries of an archive
    in the archive), `deflate`, or `bytes`; edits of bytes come when the others are done.

    Attributes:
        calls: seed of the calls that are planned.
        is_run: whether the bundle's self-test is run on the emulator, too.
    """

    seed: str
    edits: tuple[Edit, ...]
    calls: int
    is_run: bool

    @property
    def is_damage(self) -> bool:
        """Tell if bytes were changed without knowledge of the format, which must be found."""
        return all(edit[0] == _BYTES for edit in self.edits)


class ArchiveInputs:
    """Every input of a run by its number."""

    def __init__(self, seed: int):
        self.seed = seed
        seeds = {name: Seed(name) for name in seed_names()}
        bundles = {seeds[name].tree["target"]["arch"]: seeds[name].files for name in _OF_WHOLE}
        self.entries: dict[str, Entries] = {name: _ordered(made.files) for name, made in seeds.items()}
        self.entries[WHOLE] = _ordered(multi_files(bundles))
        self.data = {name: laid_out(entries) for name, entries in self.entries.items()}

    def draw(self, number: int) -> ArchiveInput:
        """Draw the input of a number."""
        rng = random.Random(f"archives:{self.seed}:{number}")
        seed = WHOLE if rng.random() < 0.5 else rng.choice(list(self.entries))
        draw = Draw(rng, _NAMES)
        edits = tuple(self._edit(seed, draw) for _ in range(rng.choice((1, 1, 1, 2, 2, 3))))
        ordered = sorted(edits, key=lambda edit: edit[0] == _BYTES)
        return ArchiveInput(seed, tuple(ordered), rng.randrange(1 << 30), rng.random() < 0.02)

    def _edit(self, seed: str, draw: Draw) -> Edit:
        rng, entries = draw.rng, self.entries[seed]
        kind = rng.random()
        if kind < 0.35:
            return [_ENTRY, *_entry_edit(entries, draw)]
        if kind < 0.65 and seed == WHOLE:
            which = rng.choice([at for at, (name, _) in enumerate(entries) if name.endswith(SUFFIX)])
            return [f"inner {which}", *_entry_edit(unpacked(entries[which][1]), draw)]
        if kind < 0.67:
            return ["deflate"]
        return [_BYTES, *self._bytes_edit(seed, draw)]

    def _bytes_edit(self, seed: str, draw: Draw) -> Edit:
        """Draw an edit of bytes: mostly of a number in a header, and more often in the directory and at the end."""
        rng, data = draw.rng, self.data[seed]
        if rng.random() < 0.3:
            return draw.bytes_edit(len(data))
        if rng.random() < 0.2:
            start, size = len(data) - 22 + rng.choice((0, 4, 6, 8, 10, 20)), 2
            if rng.random() < 0.5:
                start, size = len(data) - 22 + rng.choice((12, 16)), 4
        else:
            starts = [at for magic in (b"PK\3\4", b"PK\1\2") for at in _found(data, magic)]
            offset, size = rng.choice(_FIELDS)
            start = rng.choice(starts) + offset
        old = int.from_bytes(data[start : start + size], "little")
        return draw.number_edit(start, size, old, len(data))


def _found(data: bytes, magic: bytes) -> list[int]:
    found, at = [], data.find(magic)
    while at >= 0:
        found.append(at)
        at = data.find(magic, at + 1)
    return found


def _ordered(files: dict[str, bytes]) -> Entries:
    return [(name, files[name]) for name in in_order(files)]


def unpacked(data: bytes) -> Entries:
    """Return the entries of an archive that is whole."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def _entry_edit(entries: Sequence[tuple[str, bytes]], draw: Draw) -> Edit:
    rng = draw.rng
    at, other = rng.randrange(len(entries)), rng.randrange(len(entries))
    match rng.randrange(9):
        case 8:
            beside = _beside(entries[other][0], draw)
            ordered = in_order([*(name for name, _ in entries), beside])
            return ["add", ordered.index(beside), beside, rng.randbytes(8).hex()]
        case 0:
            return ["swap", at, other]
        case 1:
            return ["exchange", at, other]
        case 2:
            return ["drop", at]
        case 3:
            return ["repeat", at, rng.choice((1, 1, 2, 100, 1000))]
        case 4:
            return ["add", rng.randrange(len(entries) + 1), rng.choice(_NAMES), rng.randbytes(8).hex()]
        case 5:
            return ["content", at, *draw.bytes_edit(len(entries[at][1]))]
        case _:
            return ["rename", at, rng.choice((*_NAMES, draw.text(entries[at][0]), entries[other][0]))]


def _beside(name: str, draw: Draw) -> str:
    folder, _, last = name.rpartition("/")
    return draw.rng.choice(
        (f"{name}/x", folder or f"{name}x", name.swapcase(), f"{folder.upper()}/{last}", f"{name}.zst")
    )


def data_of(given: ArchiveInput, inputs: ArchiveInputs) -> bytes:
    """Return the bytes of an input."""
    entries, compressed = list(inputs.entries[given.seed]), False
    edits = [(str(edit[0]).split(), edit[1:]) for edit in given.edits]
    for what, edit in edits:
        match what:
            case ["entry"]:
                _edit_entries(entries, edit)
            case ["inner", which] if int(which) < len(entries):
                name, content = entries[int(which)]
                with suppress(zipfile.BadZipFile, ValueError, OSError):  # which an earlier edit made of it
                    inner = unpacked(content)
                    _edit_entries(inner, edit)
                    entries[int(which)] = name, laid_out(inner)
            case ["deflate"]:
                compressed = True
    data = _deflated(entries) if compressed else laid_out(entries)
    for what, edit in edits:
        if what == [_BYTES]:
            data = edit_bytes(data, edit)
    return data


def _edit_entries(entries: Entries, edit: Edit) -> None:
    action, at, *values = edit
    if at >= len(entries) and action != "add":
        return
    other = min(values[0], len(entries) - 1) if values and isinstance(values[0], int) else 0
    match action:
        case "swap":
            entries[at], entries[other] = entries[other], entries[at]
        case "exchange":
            (name, content), (other_name, other_content) = entries[at], entries[other]
            entries[at], entries[other] = (name, other_content), (other_name, content)
        case "drop":
            del entries[at]
        case "repeat":
            entries[at:at] = [entries[at]] * min(values[0], 50)
        case "add":
            entries.insert(at, (values[0], bytes.fromhex(values[1])))
        case "content":
            entries[at] = entries[at][0], edit_bytes(entries[at][1], values)
        case "rename":
            entries[at] = values[0], entries[at][1]


def laid_out(entries: Sequence[tuple[str, bytes]]) -> bytes:
    """Return an archive of entries as given, whatever a packer would say of their names and order."""
    # A name that is no ASCII, or is too long for its field, cannot be laid out: a zip has some other name then.
    named = [(name.encode("ascii", "replace")[:60_000].decode(), content) for name, content in entries]
    listed = [Entry(name, zlib.crc32(content), len(content)) for name, content in named]
    offsets, end = directory(listed)
    pieces = (header(entry, at) + data for entry, at, (_, data) in zip(listed, offsets, named, strict=True))
    return b"".join(pieces) + end


def _deflated(entries: Sequence[tuple[str, bytes]]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in dict(entries).items():
            archive.writestr(zipfile.ZipInfo(name.replace("\0", "") or "x"), content, zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def packed_again(archive: Any) -> bytes | None:
    """Pack an archive's entries as `aotbundle pack` does; None if one cannot be read."""
    try:
        return b"".join(parts(archive.stored()))
    except BundleError:
        return None
