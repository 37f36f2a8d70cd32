"""`aotbundle merge` and `split`: a file for several architectures, accepted wherever a bundle is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from aot_bundle.packing import merge_bundles, pack_bundle
from aot_runtime import ArchMismatchError, BundleError, open_bundle
from aot_runtime.bundle.files import source_of
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.records import SELFTEST_FOLDER
from tests.support.building.builds import contents
from tests.support.command import aotbundle
from tests.support.forging import edit_index

ARCHS = ("gfx942", "sm_90")


@pytest.fixture(scope="module")
def folders(rows_bundles: Path) -> list[Path]:
    return [rows_bundles / f"rows-{arch}" for arch in ARCHS]


@pytest.fixture(scope="module")
def merged(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("merged") / "rows.aotb"
    merge_bundles(folders, path)
    return path


def test_merged_and_split(folders: list[Path], tmp_path: Path):
    """Splitting gives the packed bytes back, in any order; common vectors are stored once."""
    result = aotbundle("merge", *folders[::-1], "-o", tmp_path / "rows.aotb")
    assert result.exit_code == 0 and f"{tmp_path / 'rows.aotb'}: sm_90, gfx942, " in result.stdout, result.output
    result = aotbundle("split", tmp_path / "rows.aotb")
    assert result.exit_code == 0 and contents(tmp_path / "rows").keys() == {f"rows-{arch}.aotb" for arch in ARCHS}
    packed = {f"rows-{arch}.aotb": tmp_path / f"{arch}.aotb" for arch in ARCHS}
    for folder, path in zip(folders, packed.values(), strict=True):
        pack_bundle(folder, path)
    assert contents(tmp_path / "rows") == {name: path.read_bytes() for name, path in packed.items()}
    merge_bundles([tmp_path / "gfx942.aotb", folders[1]], tmp_path / "again.aotb")
    assert (tmp_path / "again.aotb").read_bytes() == (tmp_path / "rows.aotb").read_bytes()
    vectors = [contents(folder / SELFTEST_FOLDER) for folder in folders]
    twice = sum(len(content) for name, content in vectors[0].items() if vectors[1].get(name) == content)
    assert twice > 0
    saved = sum(path.stat().st_size for path in packed.values()) - (tmp_path / "rows.aotb").stat().st_size
    assert saved > 0.8 * twice


def test_merged_further_and_unpacked(folders: list[Path], merged: Path, tmp_path: Path):
    """A merged file can be merged again. A merged file of one bundle is equal to a packed one."""
    merge_bundles([folders[0]], tmp_path / "one.aotb")
    pack_bundle(folders[0], tmp_path / "packed.aotb")
    assert (tmp_path / "one.aotb").read_bytes() == (tmp_path / "packed.aotb").read_bytes()
    result = aotbundle("merge", merged, merged / "sm_90", folders[0], "-o", tmp_path / "all.aotb")
    assert result.exit_code == 0 and (tmp_path / "all.aotb").read_bytes() == merged.read_bytes(), result.output
    result = aotbundle("unpack", merged, "-o", tmp_path / "unpacked")
    assert result.exit_code == 0, result.output
    for folder in folders:
        assert contents(tmp_path / "unpacked" / folder.name) == contents(folder)
    assert aotbundle("unpack", merged / "gfx942", "-o", tmp_path / "amd").exit_code == 0
    assert contents(tmp_path / "amd") == contents(folders[0])


def lines(*words: object) -> str:
    result = aotbundle(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_what_takes_a_bundle_takes_one_of_several(folders: list[Path], merged: Path, tmp_path: Path):
    of_all = {item["path"]: item for item in json.loads(lines("ls", merged, "--json"))}
    assert [*of_all] == [str(merged / arch) for arch in ARCHS]
    assert [item["id"] for item in of_all.values()] == [read_index(folder).id for folder in folders]
    assert lines("verify", merged).splitlines()[-1] == f"{merged}: ok, for gfx942, sm_90"
    assert "cases pass" in lines("selftest", merged, "--device", "emulator")
    lines("stubs", merged, "-o", tmp_path / "types")
    call = ["softmax", "--shape", "x=4,400", "--dtype", "T=float16"]
    for words in (["show"], ["explain", *call], ["profile", *call], ["isa", "--require", "spills == 0"]):
        part, folder = (lines(words[0], place, *words[1:]) for place in (merged / "gfx942", folders[0]))
        assert part.replace(str(merged / "gfx942"), "").split() == folder.replace(str(folders[0]), "").split()
        result = aotbundle(words[0], merged, *words[1:])
        assert result.exit_code == 1 and f"gfx942, sm_90: name one of them, such as {merged}/gfx942" in result.output
    result = aotbundle("show", merged / "gfx90a")
    assert result.exit_code == 1 and "has no bundle for 'gfx90a'; available: gfx942, sm_90" in result.output


def test_opened(folders: list[Path], merged: Path, tmp_path: Path):
    x = np.linspace(-4, 4, 300, dtype=np.float32).reshape(3, 100)
    opened = open_bundle(merged, "emulator")
    assert opened.arch == "gfx942" and opened.path == merged / "gfx942" and opened.preload()
    assert (opened.softmax(x) == open_bundle(folders[0], "emulator").softmax(x)).all()
    assert open_bundle(opened.path, "emulator").id == opened.id and opened.selftest().passed
    with pytest.raises(ArchMismatchError, match=r"rows.aotb has bundles for gfx942, sm_90, (and|but) .*gfx1100"):
        open_bundle(merged, "emulator:gfx1100")
    shutil.copy(merged, tmp_path / "rows.aotb")
    assert open_bundle(tmp_path, "emulator").path == tmp_path / "rows.aotb/gfx942"
    shutil.copy(merged, tmp_path / "more.aotb")
    assert open_bundle(tmp_path, "emulator").path == tmp_path / "more.aotb/gfx942"
    (tmp_path / "rows").symlink_to(folders[0])
    assert open_bundle(tmp_path, "emulator").path == tmp_path / "rows"  # they are the same bundle


def test_opening_reads_nothing_of_the_others(folders: list[Path], merged: Path, monkeypatch: pytest.MonkeyPatch):
    """Besides the file's short directory, the same bytes are read as from a file with one bundle."""
    reads: list[tuple[int, int]] = []
    pread = os.pread

    def recorded(descriptor: int, size: int, start: int) -> bytes:
        reads.append((start, size))
        return pread(descriptor, size, start)

    alone = merged.with_name("alone.aotb")
    pack_bundle(folders[0], alone)
    whole = source_of(merged / "gfx942").whole  # type: ignore[attr-defined]
    spans = {name: (offset, offset + size) for name, (_, _, size, offset) in whole._entries.items()}
    monkeypatch.setattr(os, "pread", recorded)
    x = np.ones((2, 100), np.float32)
    expected = open_bundle(alone, "emulator").softmax(x)
    count, nbytes = len(reads), sum(size for _, size in reads)
    reads.clear()
    assert (open_bundle(merged, "emulator").softmax(x) == expected).all()
    assert len(reads) == count + 3 and sum(size for _, size in reads) < nbytes + 4096 + 1500
    for name, (start, end) in spans.items():
        assert name == "gfx942.aotb" or not any(start + 4096 <= at < end for at, _ in reads), name


def refused(words: Sequence[object], text: str) -> None:
    result = aotbundle(*words)
    assert result.exit_code == 1 and text in result.output, result.output


def test_what_is_not_merged_or_split(
    folders: list[Path], merged: Path, small_bundle: Path, rows_copy: Path, tmp_path: Path
):
    """Nothing is half-written, and what was there stays."""
    (tmp_path / "old.aotb").write_text("old")
    merge = ["merge", "-o", tmp_path / "old.aotb", *folders]
    refused(["merge", small_bundle, folders[1], "-o", tmp_path / "old.aotb"], "differ in name or version: small")
    edit_index(rows_copy, lambda index: index.update(version="9.9"))
    refused(["merge", rows_copy, folders[1], "-o", tmp_path / "old.aotb"], "rows 9.9 for gfx942, rows")
    refused([*merge, rows_copy], f"{rows_copy} are both for gfx942, but differ")
    (rows_copy / "bundle.json.sig").write_text("one is signed, the other is not")
    refused(["merge", folders[0], rows_copy, "-o", tmp_path / "old.aotb"], "are both for gfx942, but differ")
    next((rows_copy / "code").iterdir()).write_bytes(b"x")
    refused(["merge", rows_copy, "-o", tmp_path / "old.aotb"], "is not merged: ")
    refused(["merge", tmp_path / "none", "-o", tmp_path / "old.aotb"], "does not exist")
    refused(["merge", *folders, "-o", tmp_path / "none/rows.aotb"], "No such file")
    assert (tmp_path / "old.aotb").read_text() == "old"
    refused(["split", folders[0]], "it is a folder")
    refused(["split", merged, "-o", tmp_path], "exists already")
    pack_bundle(folders[0], tmp_path / "one.aotb")
    refused(["split", tmp_path / "one.aotb"], "it has one bundle")
    with pytest.raises(BundleError, match="has one bundle; open it as"):
        open_bundle(tmp_path / "one.aotb/gfx942", "emulator")
    assert not list(tmp_path.glob(".*-*"))


def test_signatures_stay_and_each_bundle_is_signed(
    folders: list[Path], merged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("cryptography", reason="signatures need the extra `trust`")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    key, policy, path = tmp_path / "team.key", tmp_path / "trust.toml", tmp_path / "rows.aotb"
    policy.write_text(lines("keygen", key))
    shutil.copy(merged, path)
    refused(["verify", path, "--trust", policy], f"{path}/sm_90 is not signed")
    assert len(lines("sign", path, "--key", key).splitlines()) == 2
    assert lines("verify", path, "--trust", policy).count("signed by key") == 2
    x = np.ones((2, 100), np.float32)
    assert np.isclose(open_bundle(path, "emulator", trust=policy).softmax(x), 0.01).all()
    lines("split", path)
    assert lines("verify", tmp_path / "rows", "--trust", policy).count("signed by key") == 2
    merge_bundles([tmp_path / "rows/rows-gfx942.aotb", folders[1]], tmp_path / "half.aotb")
    assert open_bundle(tmp_path / "half.aotb", "emulator", trust=policy).arch == "gfx942"
    refused(["verify", tmp_path / "half.aotb", "--trust", policy], "half.aotb/sm_90 is not signed")
