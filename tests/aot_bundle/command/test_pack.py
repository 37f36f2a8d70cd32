"""`aotbundle pack` and `unpack`: a file that is accepted wherever a folder is."""

from __future__ import annotations

import filecmp
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from aot_bundle.packing import pack_bundle, put_file
from aot_bundle.verification import verify_bundle
from aot_runtime import BundleError, open_bundle
from aot_runtime.bundle.files import source_of
from aot_runtime.bundle.reading import read_index
from tests.support.command import aotbundle
from tests.support.zstd_frames import need_zstd


@pytest.fixture(scope="module")
def archive(small_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "small.aotb"
    pack_bundle(small_bundle, path)
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_packed_and_unpacked(small_copy: Path, tmp_path: Path):
    """The bytes are reproducible. Files that are not the bundle's are left out; those beside the index are included."""
    (small_copy / "notes.txt").write_text("not the bundle's")
    (small_copy / "bundle.json.sig").write_text("a signature")
    result = aotbundle("pack", small_copy)
    archive = small_copy.with_name(f"{small_copy.name}.aotb")
    assert result.exit_code == 0 and result.stdout.startswith(f"{archive}: "), result.output
    assert aotbundle("pack", small_copy, "-o", tmp_path / "other.aotb").exit_code == 0
    assert filecmp.cmp(archive, tmp_path / "other.aotb", shallow=False)
    (small_copy / "notes.txt").unlink()
    assert zipfile.ZipFile(archive).namelist()[:2] == ["bundle.json", "bundle.json.sig"]
    result = aotbundle("unpack", archive, "-o", tmp_path / "unpacked")
    assert result.exit_code == 0 and files_of(tmp_path / "unpacked") == files_of(small_copy), result.output
    assert (tmp_path / "unpacked").stat().st_mode & 0o777 == 0o755


def test_an_archive_is_taken_where_a_folder_is(small_bundle: Path, archive: Path):
    assert read_index(archive) == read_index(small_bundle) and verify_bundle(archive) == []
    assert source_of(archive).path == archive
    for words in (["verify"], ["ls"], ["show"], ["explain", "affine", "--shape", "x=4,8", "--dtype", "T=float32"]):
        given = [words[0], archive, *words[1:]], [words[0], small_bundle, *words[1:]]
        packed, folder = (aotbundle(*item) for item in given)
        assert packed.exit_code == folder.exit_code == 0, packed.output
        assert packed.stdout.replace(str(archive), "").split() == folder.stdout.replace(str(small_bundle), "").split()
    result = aotbundle("selftest", archive, "--device", "emulator", "--op", "affine")
    assert result.exit_code == 0 and "pass" in result.stdout, result.output


def test_opened(small_bundle: Path, archive: Path, tmp_path: Path):
    opened = open_bundle(archive, "emulator")
    x = np.ones((4, 8), np.float32)
    assert (opened.affine(x, scale=2.0) == open_bundle(small_bundle, "emulator").affine(x, scale=2.0)).all()
    assert opened.path == archive and opened.preload()
    shutil.copy(archive, tmp_path / "small.aotb")
    assert open_bundle(tmp_path, "emulator").path == tmp_path / "small.aotb"
    (tmp_path / "small").symlink_to(small_bundle)
    assert open_bundle(tmp_path, "emulator").path == tmp_path / "small"  # they are the same bundle


def test_compressed(small_copy: Path, archive: Path, tmp_path: Path):
    """The id, verification, calls and signature stay the same, and compressed bundles can be signed."""
    need_zstd()
    path = tmp_path / "small.aotb"
    result = aotbundle("pack", small_copy, "--compress", "-o", path)
    assert result.exit_code == 0 and path.stat().st_size < archive.stat().st_size, result.output
    stored = [name for name in zipfile.ZipFile(path).namelist() if name.startswith("code/")]
    assert stored and all(name.endswith(".hsaco.zst") for name in stored)
    assert read_index(path) == read_index(archive) and verify_bundle(path) == []
    put_file(source_of(path), "bundle.json.sig", b"a signature")
    assert source_of(path).read("bundle.json.sig", 100) == b"a signature"
    assert [name for name in zipfile.ZipFile(path).namelist() if name.startswith("code/")] == stored
    opened, x = open_bundle(path, "emulator"), np.ones((4, 8), np.float32)
    assert (opened.affine(x, scale=2.0) == open_bundle(small_copy, "emulator").affine(x, scale=2.0)).all()
    assert aotbundle("unpack", path, "-o", tmp_path / "unpacked").exit_code == 0
    (small_copy / "bundle.json.sig").write_bytes(b"a signature")
    assert files_of(tmp_path / "unpacked") == files_of(small_copy)


def test_damage_is_told(small_bundle: Path, archive: Path, tmp_path: Path):
    data, path = archive.read_bytes(), tmp_path / "damaged.aotb"
    blob = next(iter(read_index(archive).blobs.values()))
    at = data.index((Path(small_bundle) / blob.file).read_bytes()) + 99
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert [fault for fault in verify_bundle(path) if "was altered" in fault]
    result = aotbundle("unpack", path)
    assert result.exit_code == 1 and "is not unpacked" in result.output
    path.write_bytes(data[:-1])
    for words in (["verify", path], ["unpack", path], ["show", path]):
        result = aotbundle(*words)
        assert result.exit_code == 1 and "the archive has no end: it is truncated" in result.output, result.output
    with pytest.raises(BundleError, match="it is truncated"):
        open_bundle(path, "emulator")
    path.write_bytes(b"text")
    with pytest.raises(BundleError, match="is a file, not a bundle"):
        open_bundle(path, "emulator")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["damaged.aotb"]


def test_what_is_not_packed_or_unpacked(small_copy: Path, archive: Path, tmp_path: Path):
    """Nothing is half-written, and what was there stays."""
    (tmp_path / "old.aotb").write_text("old")
    next((small_copy / "code").iterdir()).write_bytes(b"x")
    result = aotbundle("pack", small_copy, "-o", tmp_path / "old.aotb")
    assert result.exit_code == 1 and "is not packed: " in result.output
    assert (tmp_path / "old.aotb").read_text() == "old"
    result = aotbundle("pack", archive)
    assert result.exit_code == 1 and "is a file" in result.output
    result = aotbundle("pack", small_copy.parent / "none")
    assert result.exit_code == 1 and "is not a bundle" in result.output
    result = aotbundle("unpack", archive, "-o", small_copy)
    assert result.exit_code == 1 and "exists already" in result.output
    result = aotbundle("unpack", archive, "-o", tmp_path / "none/folder")
    assert result.exit_code == 1 and "No such file" in result.output
    assert not list(tmp_path.glob(".*-*"))
