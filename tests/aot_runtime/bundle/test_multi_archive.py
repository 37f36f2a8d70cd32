"""Damaged and malicious files for several architectures: each fault is a `BundleError`, and `verify` finds it."""

from __future__ import annotations

import os
import tracemalloc
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from aot_bundle.packing import merge_bundles, put_file
from aot_bundle.verification import verify_bundle, verify_together
from aot_runtime import ArchMismatchError, BundleError, open_bundle
from aot_runtime.bundle.archive import MAX_BYTES, PAGE, Archive, Entry, directory, header, parts
from aot_runtime.bundle.files import open_place, source_of
from aot_runtime.bundle.multi_archive import MAX_BUNDLES, MultiArchive, multi_files
from aot_runtime.bundle.reading import read_index
from tests.support.command import aotbundle
from tests.support.forging import edit_index

Files = dict[str, bytes]
AMD, NVIDIA = "gfx942.aotb", "sm_90.aotb"


@pytest.fixture(scope="module")
def whole(rows_bundles: Path, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Return the entries of a file with two bundles."""
    path = tmp_path_factory.mktemp("merged") / "rows.aotb"
    merge_bundles([rows_bundles / "rows-gfx942", rows_bundles / "rows-sm_90"], path)
    return entries(path)


def entries(path: Path) -> Files:
    archive = Archive(path)
    return {name: archive.read(name, MAX_BYTES) for name in archive.names()}


def packed(path: Path, files: Mapping[str, bytes]) -> Path:
    path.write_bytes(b"".join(parts(files)))
    return path


def inner(data: bytes, folder: Path) -> Files:
    (folder / "inner").write_bytes(data)
    return entries(folder / "inner")


def refused(path: Path, text: str) -> None:
    """Assert that an archive does not open and that its faults are reported."""
    with pytest.raises(BundleError, match=text):
        open_bundle(path, "emulator")
    with pytest.raises(BundleError):
        read_index(path / "gfx942")
    assert verify_bundle(path / "gfx942")


def test_bundles_that_lie_about_their_architecture(whole: Files, tmp_path: Path):
    path = packed(tmp_path / "rows.aotb", {**whole, AMD: whole[NVIDIA]})
    refused(path, r"gfx942/bundle.json: the index is for sm_90, but stored as one for gfx942")
    path = packed(tmp_path / "rows.aotb", {**whole, "gfx90a.aotb": whole[AMD]})
    with pytest.raises(BundleError, match="stored as one for gfx90a"):
        open_bundle(path, "emulator:gfx90a")
    assert verify_bundle(path / "gfx942") == [] and open_bundle(path, "emulator:gfx942")


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda data: b"", "gfx942: the archive has no end"),
        (lambda data: data[:-1], "gfx942: the archive has no end"),
        (lambda data: data[:PAGE], "gfx942: the archive has no end"),
        (lambda data: data + b"\0", "gfx942: the archive has no end"),
        (lambda data: b"\0" + data, "gfx942: the archive's directory is not where"),
        (lambda data: data + data, "gfx942: the archive's directory is not where"),
        (lambda data: b"".join(parts({"a": b"b"})), "is not a bundle: it has no bundle.json"),
        (lambda data: b"".join(parts({AMD: data})), "is not a bundle: it has no bundle.json"),
        (lambda data: b"".join(parts({"bundle.json": b"{}"})), "is not a bundle index"),
    ],
)
def test_a_bundle_that_is_damaged(whole: Files, tmp_path: Path, damage: Callable[[bytes], bytes], text: str):
    """It is refused even if the outer archive's checksums fit. The other bundles stay usable."""
    path = packed(tmp_path / "rows.aotb", {**whole, AMD: damage(whole[AMD])})
    refused(path, text)
    assert verify_bundle(path / "sm_90") == [] and read_index(path / "sm_90").target.arch == "sm_90"


def test_every_byte_counts(whole: Files, tmp_path: Path):
    """A sample of all bytes, and those around the boundaries of entries."""
    data = bytearray(packed(tmp_path / "rows.aotb", whole).read_bytes())
    boundaries = [data.index(whole[name]) for name in whole]
    ends = [at + len(whole[name]) for at, name in zip(boundaries, whole, strict=True)]
    near = [at + shift for at in (*boundaries, *ends) for shift in (-70, -1, 0, 9, 30)]
    for position in sorted({*near, *range(0, len(data), len(data) // 12), len(data) - 1}):
        if position >= len(data):
            continue
        data[position] ^= 0x41
        (tmp_path / "rows.aotb").write_bytes(data)
        assert faults(tmp_path / "rows.aotb"), position
        data[position] ^= 0x41
    (tmp_path / "rows.aotb").write_bytes(data)
    assert faults(tmp_path / "rows.aotb") == []


def test_the_header_of_a_bundle_counts_when_it_is_opened(whole: Files, tmp_path: Path):
    """A bundle's header is checked with no other bundle read, and so before any checksum."""
    data = bytearray(packed(tmp_path / "rows.aotb", whole).read_bytes())
    for position in (14, 30, 100, PAGE - 1):
        data[position] ^= 1
        (tmp_path / "rows.aotb").write_bytes(data)
        refused(tmp_path / "rows.aotb", "gfx942.aotb is not where the archive's directory says")
        data[position] ^= 1


def test_what_has_one_name_and_two_contents_is_not_shared(tmp_path: Path):
    both, other = {"selftest/a.npz": b"a", "selftest/b.npz": b"b", "code/c": b"c"}, {"selftest/a.npz": b"other"}
    files = multi_files({"gfx942": both, "gfx90a": {**both, **other}, "sm_90": {**both, **other}})
    assert {name: data for name, data in files.items() if "/" in name} == {"selftest/b.npz": b"b"}
    assert [*inner(files[AMD], tmp_path)] == ["code/c", "selftest/a.npz"]


def faults(path: Path) -> list[str]:
    """Return the first fault that `aotbundle verify` finds."""
    try:
        found = open_place(path)
    except BundleError as error:
        return [str(error)]
    if not isinstance(found, MultiArchive):
        return verify_bundle(path)
    return verify_together(found) or [fault for part in found.parts() for fault in verify_bundle(part)]


def test_what_does_not_belong_together(whole: Files, rows_copy: Path, tmp_path: Path):
    path = tmp_path / "rows.aotb"
    shared = next(name for name in whole if name.startswith("selftest/"))
    own = inner(whole[AMD], tmp_path)
    used = next(name for name in own if name.startswith("selftest/"))
    for files, text in (
        ({**whole, "selftest/0123456789abcdef.npz": b"x"}, "is stored for several architectures, but used by none"),
        ({**whole, used: own[used]}, f"gfx942: {used} is there twice"),
        ({name: data for name, data in whole.items() if name != NVIDIA}, "several architectures, but used by gfx942"),
    ):
        assert any(text in fault for fault in faults(packed(path, files))), text
        assert open_bundle(path, "emulator").arch == "gfx942"  # none of it changes what the bundle says
    packed(path, {**whole, shared: b"others"})
    assert any(f"{shared} was altered" in fault for fault in verify_bundle(path / "gfx942"))
    packed(path, {name: data for name, data in whole.items() if name != shared})
    assert any(f"{shared} cannot be read" in fault for fault in verify_bundle(path / "gfx942"))
    edit_index(rows_copy, lambda index: index.update(version="9.9"))
    changed = {**own, **{name: (rows_copy / name).read_bytes() for name in own}}
    packed(path, {**whole, AMD: b"".join(parts(changed))})
    assert any("the bundles differ in name or version: rows 9.9 for gfx942, rows" in fault for fault in faults(path))


def sparse(path: Path, entries: Sequence[tuple[str, bytes | int]]) -> Path:
    """Return an archive; an entry that is a number is a hole of that many zeros."""
    listed = []
    for name, content in entries:
        size, crc = (content, 0) if isinstance(content, int) else (len(content), zlib.crc32(content))
        for _ in range(size >> 20 if isinstance(content, int) else 0):
            crc = zlib.crc32(bytes(1 << 20), crc)
        listed.append(Entry(name, crc, size))
    offsets, end = directory(listed)
    with path.open("wb") as file:
        for entry, offset, (_, content) in zip(listed, offsets, entries, strict=True):
            file.seek(offset)
            file.write(header(entry, offset))
            file.seek(content, os.SEEK_CUR) if isinstance(content, int) else file.write(content)
        file.write(end)
    return path


LARGE = 256 << 20


@pytest.mark.parametrize("name", ["selftest/ffffffffaaaaaaaa.npz", "sm_80.aotb"])
def test_holes_take_no_memory(whole: Files, tmp_path: Path, name: str):
    """Whatever size an entry declares, it is read in parts, or not at all."""
    path = sparse(tmp_path / "rows.aotb", sorted([*whole.items(), (name, LARGE)]))
    tracemalloc.start()
    for command in ("verify", "unpack", "split", "wheel"):
        result = aotbundle(command, path, *(() if command == "verify" else ("-o", tmp_path / command)))
        assert result.exit_code == 1, result.output
    aotbundle("merge", path, "-o", tmp_path / "rows.aotb.again")  # which leaves out what no bundle has
    if name.startswith("selftest/"):  # one bundle of the file is as it was
        put_file(source_of(path / "gfx942"), "bundle.json.sig", b"a signature")
        assert Archive(path).read(NVIDIA, MAX_BYTES) == whole[NVIDIA]
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    assert {item.name for item in tmp_path.iterdir()} - {"rows.aotb.again"} == {"rows.aotb"}


def test_each_bundle_of_a_wheels_file_is_verified(whole: Files, rows_copy: Path, tmp_path: Path):
    own = inner(whole[AMD], tmp_path)
    code = next(name for name in own if name.startswith("code/"))
    path = packed(tmp_path / "rows.aotb", {**whole, AMD: b"".join(parts({**own, code: b"x"}))})
    result = aotbundle("wheel", path, "-o", tmp_path / "wheels")
    assert result.exit_code == 1 and f"{code} was altered" in result.output and not (tmp_path / "wheels").exists()


@pytest.mark.parametrize("name", ["notes.txt", "gfx942/bundle.json", "code/0123456789abcdef.hsaco", "sm_80.zip"])
def test_what_a_file_for_several_architectures_does_not_have(whole: Files, tmp_path: Path, name: str):
    path = packed(tmp_path / "rows.aotb", {**whole, name: b"x"})
    refused(path, "has bundles for several architectures, and .*, which is none")


def test_too_many_bundles_and_none(whole: Files, tmp_path: Path):
    refused(packed(tmp_path / "a", {f"gfx{n}.aotb": b"" for n in range(MAX_BUNDLES + 1)}), f"at most {MAX_BUNDLES}")
    path = packed(tmp_path / "b", {name: data for name, data in whole.items() if name != AMD})
    with pytest.raises(ArchMismatchError, match=r"has bundles for sm_90"):
        open_bundle(path, "emulator:gfx942")
    refused(packed(tmp_path / "c", {"selftest/0123456789abcdef.npz": b"x"}), "has one bundle|it has no bundle.json")


def test_formats_of_different_versions(whole: Files, rows_copy: Path, tmp_path: Path):
    """A bundle that needs a later reader is refused by itself."""
    own = inner(whole[AMD], tmp_path)
    edit_index(rows_copy, lambda index: index.update(format=99, oldest_reader=99))
    later = {**own, "bundle.json": (rows_copy / "bundle.json").read_bytes()}
    path = packed(tmp_path / "rows.aotb", {**whole, AMD: b"".join(parts(later))})
    refused(path, "needs a reader of format 99")
    assert read_index(path / "sm_90").format < 99


def test_a_file_that_is_replaced_stays_what_was_opened(whole: Files, tmp_path: Path):
    path = packed(tmp_path / "rows.aotb", whole)
    opened = open_bundle(path, "emulator")
    packed(tmp_path / "other", {"a": b"b"}).replace(path)
    assert opened.preload()
