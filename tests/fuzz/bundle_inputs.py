"""Mutated bundles: seeds with edits of their index, code objects, vectors and files."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import zipfile
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from aot_runtime.bundle.elf import SHT_NOTE, Elf
from aot_runtime.bundle.reading import bundle_id
from aot_runtime.contract.arch import BACKENDS
from aot_runtime.contract.records import CODE_FOLDER, HASH_LENGTH, INDEX

from .edits import Edit, edit_bytes, edit_tree, places
from .elf_fields import Field, fields
from .random_edits import Draw, texts_of

SEEDS = Path(__file__).parent / "seeds"
_ID = re.compile(rb'"id": ?"[0-9a-f]{64}"')
_RAW = (
    '"ops":[],',
    '"id":"' + "0" * 64 + '",',
    "NaN",
    "1e999",
    "-Infinity",
    '"\\ud800"',
    "[" * 2000,
    '{"a":' * 2000,
    "null",
    "//",
    "\ufeff",
)


@dataclass(frozen=True)
class BundleInput:
    """A seed with edits. Each edit begins with what it edits: `index` or `text` (the index as a tree, or its bytes),
    `code <n>`, `metadata <n>`, `vectors <n>`, or `files`.

    Attributes:
        adopted: whether the index's hashes and id are made to fit, as a forger would.
        calls: seed of the calls that are planned.
        is_run: whether the bundle's self-test is run on the emulator, too.
    """

    seed: str
    edits: tuple[Edit, ...]
    adopted: bool
    calls: int
    is_run: bool


@dataclass(frozen=True)
class Special:
    """A replacement of a file: a `link` to a target, a `fifo`, a `folder`, or `nothing`."""

    kind: str
    target: str = ""


Files = dict[str, bytes | Special]


@dataclass(frozen=True)
class Note:
    """The metadata of an HSACO, with the offset of the header of the section that they are in."""

    header: int
    metadata: Any
    places: list[tuple[tuple[str | int, ...], Any]]


def metadata_note(image: bytes) -> Note | None:
    """Return the metadata of an image, or None for a cubin, which has none."""
    elf, table = Elf(image), int.from_bytes(image[40:48], "little")
    for number, section in enumerate(elf.sections):
        data = elf.data(section)
        if section.type == SHT_NOTE and data[12:19] == b"AMDGPU\0":
            size = int.from_bytes(data[4:8], "little")
            metadata = msgspec.msgpack.decode(data[20 : 20 + size])
            return Note(table + 64 * number, metadata, [*places(metadata)])
    return None


class Seed:
    """A bundle as it was built, and the parts of it that can be edited."""

    def __init__(self, name: str):
        self.name = name
        with zipfile.ZipFile(SEEDS / f"{name}.zip") as archive:
            self.files = {entry: archive.read(entry) for entry in archive.namelist()}
        self.tree: dict[str, Any] = json.loads(self.files[INDEX])
        self.index = _encoded(self.tree)
        self.id: str = self.tree["id"]
        self.code = sorted(name for name in self.files if name.startswith("code/"))
        self.vectors = sorted(name for name in self.files if name.startswith("selftest/"))

    @cached_property
    def generated(self) -> list[str]:
        """Return the files that repeat the index's id."""
        return [name for name, content in self.files.items() if name != INDEX and self.id.encode() in content]

    @cached_property
    def places(self) -> list[tuple[tuple[str | int, ...], Any]]:
        """Return places in the index; every op and the first variants stand for all."""
        return [
            item for item in places(self.tree) if item[0][0] != "variants" or len(item[0]) < 2 or int(item[0][1]) < 2
        ]

    @cached_property
    def texts(self) -> tuple[str, ...]:
        return texts_of(self.tree)

    @cached_property
    def fields(self) -> list[list[Field]]:
        return [fields(self.files[name]) for name in self.code]

    @cached_property
    def notes(self) -> list[Note | None]:
        """Return the metadata of each code object that has some."""
        return [metadata_note(self.files[name]) for name in self.code]


def seed_names() -> list[str]:
    """Return the names of the seeds that exist."""
    return sorted(path.stem for path in SEEDS.glob("*.zip"))


class Inputs:
    """Every input of a run by its number."""

    def __init__(self, seed: int):
        self.seed = seed
        self.seeds = {name: Seed(name) for name in seed_names()}

    def draw(self, number: int) -> BundleInput:
        """Draw the input of a number."""
        rng = random.Random(f"bundles:{self.seed}:{number}")
        seed = self.seeds[rng.choice(list(self.seeds))]
        draw = Draw(rng, seed.texts)
        count = rng.choice((1, 1, 1, 1, 2, 2, 3, 5))
        edits = tuple(self._edit(seed, draw) for _ in range(count))
        return BundleInput(seed.name, edits, rng.random() < 0.85, rng.randrange(1 << 30), rng.random() < 0.02)

    def _edit(self, seed: Seed, draw: Draw) -> Edit:
        rng = draw.rng
        kind = rng.random()
        if kind < 0.62:
            return ["index", *draw.tree_edit(seed.places)]
        if kind < 0.66:
            return ["text", *self._text_edit(seed, draw)]
        if kind < 0.70:
            return ["files", *self._file_edit(seed, draw)]
        if kind < 0.76 and seed.vectors:
            which = rng.randrange(len(seed.vectors))
            return [f"vectors {which}", *draw.bytes_edit(len(seed.files[seed.vectors[which]]))]
        which = rng.randrange(len(seed.code))
        image, note = seed.files[seed.code[which]], seed.notes[which]
        if kind < 0.84 and note:
            return [f"metadata {which}", *draw.tree_edit(note.places)]
        if kind < 0.97:
            offset, size = rng.choice(seed.fields[which])
            old = int.from_bytes(image[offset : offset + size], "little")
            return [f"code {which}", *draw.number_edit(offset, size, old, len(image))]
        return [f"code {which}", *draw.bytes_edit(len(image))]

    @staticmethod
    def _text_edit(seed: Seed, draw: Draw) -> Edit:
        size = len(seed.files[INDEX])
        if draw.rng.random() < 0.5:
            return draw.bytes_edit(size)
        return ["insert", draw.rng.randrange(size), draw.rng.choice(_RAW).encode().hex()]

    @staticmethod
    def _file_edit(seed: Seed, draw: Draw) -> Edit:
        rng = draw.rng
        name = rng.choice(sorted(seed.files))
        kind = rng.choice(("link", "link", "fifo", "folder", "nothing", "add", "exchange"))
        if kind == "link":
            return [
                kind,
                name,
                rng.choice(("/etc/passwd", "/dev/zero", f"../{seed.name}/{name}", name, "/proc/self/mem", *seed.code)),
            ]
        if kind == "add":
            return [
                kind,
                rng.choice(("code/ffffffffffffffff.hsaco", "code/.hidden", "selftest/x", "more")),
                rng.randbytes(8).hex(),
            ]
        if kind == "exchange":
            return [kind, name, rng.choice(sorted(seed.files))]
        return [kind, name, ""]


def files_of(given: BundleInput, seed: Seed) -> Files:
    """Return the files of an input that differ from its seed's."""
    changed: Files = {}
    tree, edits = seed.tree, [(str(edit[0]).split(), edit[1:]) for edit in given.edits]
    if any(what[0] == "index" for what, _ in edits) or given.adopted:
        tree = msgspec.json.decode(seed.index)
    for what, edit in edits:
        match what:
            case ["index"]:
                edit_tree(tree, edit)
            case ["code", which]:
                _change(changed, seed, seed.code[int(which)], edit)
            case ["vectors", which]:
                _change(changed, seed, seed.vectors[int(which)], edit)
            case ["metadata", which]:
                name = seed.code[int(which)]
                changed[name] = _with_metadata(_content(changed, seed, name), seed.notes[int(which)], edit)
    if given.adopted:
        _adopt(tree, changed)
    data = seed.files[INDEX] if tree is seed.tree else _encoded(tree)
    for what, edit in edits:
        if what == ["text"]:
            data = edit_bytes(data, edit)
        elif what == ["files"]:
            _special(changed, seed, edit)
    if given.adopted:
        data = _with_id(data)
        for name in seed.generated:
            if name not in changed:
                changed[name] = seed.files[name].replace(seed.id.encode(), _id_of(data))
    changed.setdefault(INDEX, data)
    return changed


def _encoded(tree: Any) -> bytes:
    try:
        return msgspec.json.encode(tree)
    except (ValueError, OverflowError, TypeError, RecursionError):  # large numbers, half of a surrogate pair
        return json.dumps(tree).encode()


def _content(changed: Files, seed: Seed, name: str) -> bytes:
    content = changed.get(name, seed.files[name])
    assert isinstance(content, bytes)
    return content


def _change(changed: Files, seed: Seed, name: str, edit: Edit) -> None:
    changed[name] = edit_bytes(_content(changed, seed, name), edit)


def _with_metadata(image: bytes, note: Note | None, edit: Edit) -> bytes:
    assert note is not None
    header, tree = note.header, deepcopy(note.metadata)
    edit_tree(tree, edit)
    try:
        packed = msgspec.msgpack.encode(tree)
    except (OverflowError, ValueError, TypeError):  # MessagePack has no such number, and no such text
        return image
    start = -(-len(image) // 4) * 4
    content = len(b"AMDGPU\0").to_bytes(4, "little") + len(packed).to_bytes(4, "little") + (32).to_bytes(4, "little")
    content += b"AMDGPU\0\0" + packed
    place = start.to_bytes(8, "little") + len(content).to_bytes(8, "little")
    if len(image) < header + 40:
        return image
    return image[: header + 24] + place + image[header + 40 :].ljust(start - header - 40, b"\0") + content


def _adopt(tree: Any, changed: Files) -> None:
    for blob in _vectors(tree):
        name = blob.get("file")
        if isinstance(name, str) and (found := _renamed(changed, name)):
            new, content, digest = found
            blob.update(file=new, size=len(content), sha256=digest)
    code = tree.get("code") if isinstance(tree, dict) else None
    for row in code if isinstance(code, list) else ():
        if isinstance(row, list) and len(row) == 2 and isinstance(row[0], str):
            for suffix in (backend.code_suffix for backend in BACKENDS.values()):
                if found := _renamed(changed, f"{CODE_FOLDER}/{row[0][:HASH_LENGTH]}.{suffix}"):
                    row[:] = found[2], len(found[1])
                    break


def _renamed(changed: Files, name: str) -> tuple[str, bytes, str] | None:
    """Return (name, content, sha256) of a changed file, which is renamed to its sha256."""
    content = changed.get(name)
    if not isinstance(content, bytes):
        return None
    digest = hashlib.sha256(content).hexdigest()
    folder, _, old = name.rpartition("/")
    new = f"{folder}/{digest[:HASH_LENGTH]}.{old.rpartition('.')[2]}"
    changed[name], changed[new] = Special("nothing"), content
    return new, content, digest


def _vectors(tree: Any) -> Iterator[dict[str, Any]]:
    cases = tree.get("selftest") if isinstance(tree, dict) else None
    if isinstance(cases, list):
        yield from (
            case["vectors"] for case in cases if isinstance(case, dict) and isinstance(case.get("vectors"), dict)
        )


def _id_of(data: bytes) -> bytes:
    found = _ID.search(data)
    return found[0][-65:-1] if found else b""


def _with_id(data: bytes) -> bytes:
    found = _ID.search(data)
    if not found:
        return data
    return data[: found.end() - 65] + bundle_id(data).encode() + data[found.end() - 1 :]


def _special(changed: Files, seed: Seed, edit: Edit) -> None:
    kind, name, value = edit
    match kind:
        case "add":
            changed[name] = bytes.fromhex(value)
        case "exchange":
            changed[name] = seed.files[value]
        case _:
            changed[name] = Special(kind, value)


def pack_seed(folder: Path, name: str) -> None:
    """Keep a bundle as a seed; the same bundle gives the same bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.writestr(zipfile.ZipInfo(str(path.relative_to(folder))), path.read_bytes(), zipfile.ZIP_DEFLATED)
    SEEDS.mkdir(exist_ok=True)
    (SEEDS / f"{name}.zip").write_bytes(stream.getvalue())
