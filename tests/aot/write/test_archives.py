"""`aotbuild --pack`: one archive for each manifest, of the bundles for all architectures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aot_bundle.packing import merge_bundles, put_file
from aot_bundle.verification import verify_bundle
from aot_runtime.bundle.files import source_of
from aot_runtime.bundle.multi_archive import Part
from aot_runtime.bundle.reading import read_index
from aot_runtime.trust.checking import read_trusted_index
from aot_runtime.trust.keys import generate_key
from aot_runtime.trust.policy import TrustedKey, TrustPolicy
from tests.support.building.builds import Project, contents, figures
from tests.support.command import aotbundle
from tests.support.zstd_frames import LIBRARY, need_zstd

SMALL = ("--filter", "dtype=float16,block=16")
ARCHS = ("gfx942", "sm_90")


def test_the_archive_is_that_of_the_folders(tmp_path: Path):
    """Nothing else is written. A killed build left its folder, which the next one removes."""
    project = Project(tmp_path)
    assert figures(project.build(*SMALL, archs=ARCHS)) == (4, 0)
    merge_bundles([project.folder_of(arch) for arch in ARCHS], tmp_path / "merged.aotb")
    packed = tmp_path / "packed"
    (packed / ".tiny.aotb.new/tiny-gfx942/code").mkdir(parents=True)
    result = project.build(*SMALL, "--pack", "-o", str(packed), archs=ARCHS)
    assert figures(result) == (0, 4) and f"\n{packed}/tiny.aotb: gfx942, sm_90, " in result.stdout, result.output
    assert contents(packed) == {"tiny.aotb": (tmp_path / "merged.aotb").read_bytes(), ".tiny.aotb.lock": b""}
    assert figures(project.build(*SMALL, "--pack", "-o", str(packed))) == (0, 2)
    assert read_index(packed / "tiny.aotb").target.arch == "gfx942"


def test_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The result is that of `merge --compress`; a missing library is reported before anything is compiled."""
    need_zstd()
    project, packed = Project(tmp_path), tmp_path / "packed"
    result = project.build(*SMALL, "--pack", "--compress", "-o", str(packed), archs=ARCHS)
    assert result.exit_code == 0, result.output
    assert project.build(*SMALL, archs=ARCHS).exit_code == 0
    folders = [project.folder_of(arch) for arch in ARCHS]
    assert aotbundle("merge", *folders, "--compress", "-o", tmp_path / "merged.aotb").exit_code == 0
    assert (packed / "tiny.aotb").read_bytes() == (tmp_path / "merged.aotb").read_bytes()
    for folder, arch in zip(folders, ARCHS, strict=True):
        source = source_of(packed / "tiny.aotb" / arch)
        assert isinstance(source, Part) and any(name.endswith(".zst") for name in source.own.stored())
        put_file(source, "bundle.json.sig", b"a signature")
        assert read_index(source) == read_index(folder) and verify_bundle(source) == []
        again = source_of(packed / "tiny.aotb" / arch)
        signed = {**source.own.stored(), "bundle.json.sig": b"a signature"}
        assert isinstance(again, Part) and again.own.stored() == signed
    assert "needs --pack" in project.build(*SMALL, "--compress").stderr
    monkeypatch.setitem(sys.modules, LIBRARY, None)
    result = project.build(*SMALL, "--pack", "--compress")
    assert result.exit_code == 2 and "pip install 'aot-runtime[zstd]'" in result.stderr


def test_each_bundle_is_signed(tmp_path: Path):
    pytest.importorskip("cryptography", reason="signatures need the extra `trust`")
    project, key = Project(tmp_path), tmp_path / "release.key"
    pem, public = generate_key()
    key.write_bytes(pem)
    result = project.build(*SMALL, "--pack", "--sign", str(key), archs=ARCHS)
    assert result.exit_code == 0 and result.stdout.count(", signed\n") == 2, result.output
    policy = TrustPolicy((TrustedKey("release", public, ("tiny",)),))
    for arch in ARCHS:
        place = project.output / "tiny.aotb" / arch
        assert read_trusted_index(place, policy).target.arch == arch and verify_bundle(place) == []


def test_nothing_is_written_where_something_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    project = Project(tmp_path)
    project.output.mkdir()
    (project.output / "tiny.aotb").write_bytes(b"older")
    result = project.build(*SMALL, "--pack", "--require", "vgprs < 1")
    assert result.exit_code == 1 and "--require is not met" in result.stderr

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("aot_bundle.packing.write_aside", full)
    result = project.build(*SMALL, "--pack")
    assert result.exit_code == 1 and "cannot be written: No space left on device" in result.stderr, result.output
    assert contents(project.output) == {"tiny.aotb": b"older", ".tiny.aotb.lock": b""}


def test_no_link_is_followed(tmp_path: Path):
    """No link is followed in the archive's place, nor at the folder where bundles are written before they are
    packed."""
    project, outside = Project(tmp_path / "project"), tmp_path / "outside"
    (outside / "tiny-gfx942/code").mkdir(parents=True)
    (outside / "archive").write_text("precious")
    project.output.mkdir()
    (project.output / ".tiny.aotb.new").symlink_to(outside)
    (project.output / "tiny.aotb").symlink_to(outside / "archive")
    result = project.build(*SMALL, "--pack")
    assert result.exit_code == 0, result.output
    assert contents(outside) == {"archive": b"precious"} and verify_bundle(project.output / "tiny.aotb") == []
    assert contents(project.output).keys() == {".tiny.aotb.lock", "tiny.aotb"}
