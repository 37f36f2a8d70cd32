"""Damaged and malicious archives: only the canonical layout is read, everything else is a `BundleError`."""

from __future__ import annotations

import io
import os
import struct
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aot_runtime import BundleError, open_bundle
from aot_runtime.bundle import archive
from aot_runtime.bundle.archive import PAGE, Archive, Entry, directory, header, parts
from aot_runtime.bundle.files import Folder
from tests.support.command import aotbundle

FILES = {"stubs/a.pyi": b"a text", "bundle.json": b"{}", "code/0123.hsaco": b"x" * 5000, "code/empty": b""}


def packed(files: Mapping[str, bytes]) -> bytes:
    return b"".join(parts(files))


WHOLE = packed(FILES)


def laid_out(entries: Sequence[tuple[str, bytes]]) -> bytes:
    """Return an archive of entries as given, whatever a packer would say of their names and order."""
    listed = [Entry(name, zlib.crc32(content), len(content)) for name, content in entries]
    offsets, end = directory(listed)
    content = (header(entry, at) + data for entry, at, (_, data) in zip(listed, offsets, entries, strict=True))
    return b"".join(content) + end


def read_all(path: Path, data: bytes) -> dict[str, bytes]:
    path.write_bytes(data)
    opened = Archive(path)
    return {name: opened.read(name, 1 << 20) for name in opened.names()}


def test_a_zip_that_others_read_and_the_same_bytes_each_time(tmp_path: Path):
    assert read_all(tmp_path / "a", WHOLE) == FILES and packed(dict(sorted(FILES.items()))) == WHOLE
    with zipfile.ZipFile(tmp_path / "a") as other:
        assert other.testzip() is None
        assert {name: other.read(name) for name in other.namelist()} == FILES
        assert other.namelist() == ["bundle.json", "code/0123.hsaco", "code/empty", "stubs/a.pyi"]
        assert {entry.date_time for entry in other.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    for name, content in FILES.items():
        assert not content or WHOLE.index(content) % PAGE == 0, name
    opened = Archive(tmp_path / "a")
    assert opened.names("code") == ["code/0123.hsaco", "code/empty"]
    assert opened.read("code/0123.hsaco", 10) == b"x" * 11
    with pytest.raises(FileNotFoundError):
        opened.read("code", 10)


def test_every_byte_counts(tmp_path: Path):
    """A change of any byte is found, also in the padding, in headers and in the directory."""
    small = packed({"bundle.json": b"{}", "code/0123.hsaco": b"xyz"})
    data = bytearray(small)
    padding = {*range(100, PAGE - 10), *range(PAGE + 100, 2 * PAGE - 10)}
    for position in {*range(len(data))} - padding | {*range(0, len(data), 397)}:
        data[position] ^= 0x41
        with pytest.raises(BundleError):
            read_all(tmp_path / "a", data)
        data[position] ^= 0x41
    assert read_all(tmp_path / "a", data)


def test_truncated_and_padded(tmp_path: Path):
    for length in (*range(0, len(WHOLE), 211), *range(len(WHOLE) - 60, len(WHOLE))):
        with pytest.raises(BundleError):
            read_all(tmp_path / "a", WHOLE[:length])
    for data in (WHOLE + b"\0", b"\0" + WHOLE, WHOLE + WHOLE, WHOLE[:-22] + b"\0" + WHOLE[-22:]):
        with pytest.raises(BundleError):
            read_all(tmp_path / "a", data)


ESCAPING = ["../x", "/etc/passwd", "code/../../x", "code//x", "./x", "C:x", "code\\x", "x\0", "x\n", "\u00e4", "", ".x"]
ESCAPING += ["x" * 256, "code/"]


@pytest.mark.parametrize("name", ESCAPING)
def test_paths_stay_in_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    with pytest.raises(BundleError, match="is not a valid file name in an archive"):
        packed({"bundle.json": b"{}", name: b"x"})
    if name.isascii():
        with pytest.raises(BundleError, match="is not a valid file name in an archive"):
            read_all(tmp_path / "a", laid_out([("bundle.json", b"{}"), (name, b"x")]))


@pytest.mark.parametrize(
    "names", [("bundle.json", "b", "b"), ("bundle.json", "b", "a"), ("a", "bundle.json"), ("bundle.json",) * 2]
)
def test_order_and_names_that_are_there_twice(tmp_path: Path, names: Sequence[str]):
    with pytest.raises(BundleError, match="are not in order, or one is there twice"):
        read_all(tmp_path / "a", laid_out([(name, name.encode()) for name in names]))


COLLISIONS = [
    ("zz", "zz/a"),
    ("include/first.h", "include/first.h/x"),
    ("a/b", "a/b-c", "a/b.d", "a/b/c/d"),
    ("bundle.json/x",),
    ("a", "A"),
    ("include/a.h", "include/A.h"),
    ("include/a.h", "Include/b.h"),
    ("code/A/x", "code/a/y"),
    ("zz", "ZZ/a"),
    ("Bundle.json",),
    ("code/1.zst", "code/1/x"),
    ("z", "z/a"),
]


@pytest.mark.parametrize("names", COLLISIONS)
def test_names_that_one_folder_cannot_have_together(tmp_path: Path, names: Sequence[str]):
    """A file would have to be a folder of another, or some file systems do not tell the names apart."""
    files = dict.fromkeys(("bundle.json", *names), b"x")
    with pytest.raises(BundleError, match="are names that one folder cannot have together"):
        read_all(tmp_path / "a", laid_out([(name, files[name]) for name in archive.in_order(files)]))
    if names[0] != "code/1.zst":  # the plain file is what collides
        with pytest.raises(BundleError, match="are names that one folder cannot have together"):
            packed(files)


def test_names_that_only_resemble_each_other(tmp_path: Path):
    names = ("bundle.json", "a/b", "a/b-c", "a/bb/c", "ab", "b/a", "bundle.json.sig", "c/a/b", "c/ab")
    files = dict.fromkeys(names, b"x")
    assert read_all(tmp_path / "a", packed(files)) == files


def test_what_collides_is_neither_opened_nor_verified_nor_unpacked(small_bundle: Path, tmp_path: Path):
    files = {name: (small_bundle / name).read_bytes() for name in Folder(small_bundle).names()}
    for other in ("zz", "include/small.h/x", "include/Small.h", "Bundle.json"):
        more = files | {other: b"x"} | ({"zz/a": b"x"} if other == "zz" else {})
        path = tmp_path / "small.aotb"
        path.write_bytes(laid_out([(name, more[name]) for name in archive.in_order(more)]))
        said = "are names that one folder cannot have together"
        with pytest.raises(BundleError, match=said):
            open_bundle(path, "emulator")
        for words in (["verify", path], ["unpack", path], ["wheel", path, "-o", tmp_path], ["ls", path, "--json"]):
            result = aotbundle(*words)
            assert said in result.output and (result.exit_code == 1 or words[0] == "ls"), result.output
        path.unlink()
        assert [*tmp_path.iterdir()] == []


def test_memory_holds_one_file_at_a_time():
    made = archive.Files((f"code/{number:02}" for number in range(40)), lambda name: name.encode() * (1 << 18))
    tracemalloc.start()
    size = sum(map(len, parts(made)))
    assert size > 40 << 20 and tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_files_are_compared_by_what_they_have():
    files = archive.Files(("a", "b", "a"), str.encode)
    assert (
        files == {"a": b"a", "b": b"b"} and len(files) == 2 and files != {"a": b"a"} and files != {"a": b"a", "b": b""}
    )
    with pytest.raises(KeyError):
        files["c"]


def end_with(**fields: int) -> bytes:
    """Return the archive with another end."""
    names = ("disk", "first_disk", "here", "count", "length", "start", "comment")
    values = dict(zip(names, struct.unpack("<4H2IH", WHOLE[-18:]), strict=True)) | fields
    return WHOLE[:-18] + struct.pack("<4H2IH", *values.values())


@pytest.mark.parametrize(
    "data",
    [
        end_with(comment=3) + b"abc",
        end_with(count=3),
        end_with(count=5, here=5),
        end_with(length=0),
        end_with(length=2**32 - 1),
        end_with(start=0),
        end_with(start=2**32 - 1, length=2**32 - 1),
        end_with(disk=1),
    ],
)
def test_an_end_that_lies(tmp_path: Path, data: bytes):
    with pytest.raises(BundleError):
        read_all(tmp_path / "a", data)


def test_what_opening_alone_finds(tmp_path: Path):
    """Opening reads no entry, and still finds bytes between the last one and the directory, and entries that lie
    elsewhere."""
    start = int.from_bytes(WHOLE[-6:-2], "little")
    gap = WHOLE[:start] + bytes(PAGE) + WHOLE[start:-6] + struct.pack("<I", start + PAGE) + WHOLE[-2:]
    last = WHOLE.rindex(b"PK\1\2") + 42
    offset = int.from_bytes(WHOLE[last : last + 4], "little")
    others = [WHOLE[:last] + struct.pack("<I", at) + WHOLE[last + 4 :] for at in (0, offset - PAGE, offset + 1, start)]
    for data in (gap, *others):
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(BundleError, match="not laid out as"):
            Archive(tmp_path / "a")


def test_sizes_that_lie(tmp_path: Path):
    """Wrong sizes are in the directory, in the header, or in both."""
    size = struct.pack("<2I", 5000, 5000)
    assert WHOLE.count(size) == 2
    for wrong in (0, 4999, 5001, 1 << 30, 2**32 - 1):
        other = struct.pack("<2I", wrong, wrong)
        for data in (WHOLE.replace(size, other), WHOLE.replace(size, other, 1)):
            with pytest.raises(BundleError):
                read_all(tmp_path / "a", data)
        at = WHOLE.rindex(size)
        with pytest.raises(BundleError):
            read_all(tmp_path / "a", WHOLE[:at] + other + WHOLE[at + 8 :])


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_other_packers_write(tmp_path: Path, method: int):
    """This includes a bomb, as nothing is ever decompressed."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as other:
        other.writestr("bundle.json", bytes(1 << 20))
    with pytest.raises(BundleError, match="not laid out as"):
        read_all(tmp_path / "a", stream.getvalue())


def test_limits_of_what_is_packed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archive, "MAX_ENTRIES", 3)
    with pytest.raises(BundleError, match="has at most"):
        packed(FILES)
    monkeypatch.undo()
    monkeypatch.setattr(archive, "MAX_BYTES", 3 * PAGE)
    with pytest.raises(BundleError, match="has at most"):
        packed(FILES)


def shortened(path: Path) -> None:
    os.truncate(path, 2 * PAGE + 10)


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(WHOLE.index(b"x" * 5000))
        file.write(b"y")


@pytest.mark.parametrize("change", [shortened, overwritten])
def test_a_file_that_changes_while_it_is_open(tmp_path: Path, change: Callable[[Path], None]):
    (tmp_path / "a").write_bytes(WHOLE)
    opened = Archive(tmp_path / "a")
    change(tmp_path / "a")
    with pytest.raises(BundleError, match=r"code/0123.hsaco was altered"):
        opened.read("code/0123.hsaco", 1 << 20)


def test_a_file_that_is_replaced_stays_what_was_opened(tmp_path: Path):
    (tmp_path / "a").write_bytes(WHOLE)
    (tmp_path / "b").write_bytes(packed({"bundle.json": b"other"}))
    opened = Archive(tmp_path / "a")
    (tmp_path / "b").replace(tmp_path / "a")
    assert opened.read("bundle.json", 100) == b"{}"


@pytest.mark.parametrize("has_pread", [True, False], ids=["pread", "windows"])
def test_threads_share_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_pread: bool):
    if not has_pread:
        seek = os.lseek
        monkeypatch.delattr(os, "pread")
        monkeypatch.setattr(os, "lseek", lambda *given: (seek(*given), time.sleep(1e-5)))  # others have their turn
    files = {"bundle.json": b"{}"} | {f"code/{number}": bytes([number]) * 3000 for number in range(8)}
    (tmp_path / "a").write_bytes(packed(files))
    opened = Archive(tmp_path / "a")
    asked = [*files] * 40
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda name: opened.read(name, 1 << 20), asked)) == [files[name] for name in asked]
