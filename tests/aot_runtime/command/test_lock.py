"""`aotbundle lock`: programs and CI are held to the bundles that they were tried with."""

from __future__ import annotations

import hashlib
import shutil
import tomllib
from pathlib import Path

import pytest
from click.testing import Result

from aot_runtime import Lock, LockError, open_bundle
from aot_runtime.bundle.packing import pack_bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.trust.lock import LockedBundle, lock_text, read_lock
from tests.support.command import aotbundle
from tests.support.forging import edit_index
from tests.support.wheels import Site


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.chdir(tmp_path)
    return Site(tmp_path / "site", monkeypatch)


def versioned(folder: Path, version: str) -> Path:
    edit_index(folder, lambda index: index.update(version=version))
    return folder


def ends_with(result: Result, status: int, text: str) -> None:
    assert result.exit_code == status and text in result.output, result.output


def test_what_a_lock_file_has(small_copy: Path, rows_bundle: Path, site: Site):
    """Bundles by path and by name, in one order; paths start at the file's folder."""
    site.install(rows_bundle)
    ends_with(aotbundle("lock", "rows", "dist", "-o", "dist/a.lock"), 0, "dist/a.lock: 2 bundles")
    small, rows = read_index(small_copy), read_index(rows_bundle)
    digest = hashlib.sha256((rows_bundle / "bundle.json").read_bytes()).hexdigest()
    locked = tomllib.loads(Path("dist/a.lock").read_text())
    assert locked["format"] == 1 and [item["path"] for item in locked["bundle"][1:]] == ["small-gfx942"]
    assert locked["bundle"][0] == {
        "name": "rows", "version": "0.1.0", "arch": "gfx942", "id": rows.id, "sha256": digest,
        "distribution": "aotbundle-rows-gfx942 0.1.0",
    }  # fmt: skip
    assert locked["bundle"][1]["id"] == small.id and "version" not in locked["bundle"][1]
    assert lock_text(read_lock("dist/a.lock").bundles[::-1]) == Path("dist/a.lock").read_text()
    ends_with(aotbundle("lock", "--check", "-o", "dist/a.lock"), 0, "dist/a.lock: 2 bundles, as locked")
    ends_with(aotbundle("lock"), 2, "Missing argument")
    ends_with(aotbundle("lock", "nowhere"), 1, "nowhere does not exist")


def test_bundles_are_held_to_a_lock(small_copy: Path, rows_bundle: Path, monkeypatch: pytest.MonkeyPatch):
    """By argument and by the environment, which all commands heed that open one; wherever the bundle lies."""
    aotbundle("lock", small_copy)
    assert open_bundle(small_copy, "emulator", lock="aotbundle.lock").name == "small"
    pack_bundle(small_copy, Path("other.aotb"))
    monkeypatch.setenv("AOTBUNDLE_LOCK", "aotbundle.lock")
    assert open_bundle("other.aotb", "emulator").name == "small"
    with pytest.raises(LockError, match=r"'rows' for gfx942 .* is not in lock .*; there: small for gfx942") as caught:
        open_bundle(rows_bundle, "emulator")
    assert caught.value.reason == "unlocked"
    assert open_bundle(rows_bundle, "emulator", lock=Lock((locked(rows_bundle),))).name == "rows"
    versioned(small_copy, "2.0")
    with pytest.raises(LockError, match=r"has id \w{12} \(version 2.0\), and lock file .* has \w{12}$") as caught:
        open_bundle(small_copy, "emulator")
    assert caught.value.reason == "changed"
    profiled = ["profile", small_copy, "affine", "--shape", "x=4,8", "--dtype", "T=float32"]
    for words in (["selftest", small_copy, "--device", "emulator"], profiled):
        ends_with(aotbundle(*words), 1, "(version 2.0), and lock file")
    monkeypatch.setenv("AOTBUNDLE_LOCK", "")
    assert open_bundle(small_copy, "emulator").version == "2.0"


def locked(folder: Path) -> LockedBundle:
    index = read_index(folder)
    return LockedBundle(index.name, index.target.arch, index.id, "0" * 64)


def test_a_lock_picks_among_installed_bundles(small_copy: Path, site: Site):
    locks = []
    for version in ("1.0", "2.0"):
        site.install(versioned(small_copy, version), name=f"small-{version[0]}")
        locks.append(Lock((locked(small_copy),)))
    assert [open_bundle("small", "emulator", lock=lock).version for lock in locks] == ["1.0", "2.0"]
    for version, lock in (("<2", locks[1]), (">0", Lock((locked(versioned(small_copy, "3.0")),)))):
        with pytest.raises(LockError, match="has id"):
            open_bundle("small", "emulator", version=version, lock=lock)


def test_what_is_no_longer_as_it_was_locked(small_copy: Path, rows_copy: Path, site: Site):
    """A changed bundle, a missing one, another version installed, and one that was never locked."""
    site.install(versioned(small_copy, "1.0"))
    aotbundle("lock", "small", "dist/rows-gfx942")
    ends_with(aotbundle("lock", "--check", "small", rows_copy), 0, "as locked")
    edit_index(rows_copy, lambda index: index.update(version="0.2"))
    shutil.rmtree(site.folder)
    site.folder.mkdir()
    result = aotbundle("lock", "--check")
    ends_with(result, 1, "bundle 'rows' for gfx942 (dist/rows-gfx942) has changed: another id, sha256, version")
    ends_with(result, 1, "bundle 'small' for gfx942 (aotbundle-small-gfx942 1.0) is not installed any more")
    site.install(versioned(small_copy, "1.1"))
    ends_with(aotbundle("lock", "--check"), 1, "has changed: another id, sha256, version, distribution")
    (rows_copy / "bundle.json").unlink()
    result = aotbundle("lock", "--check", "dist/small-gfx942")
    ends_with(result, 1, "(dist/rows-gfx942) is not there any more, or damaged: ")
    ends_with(result, 1, "bundle 'small' for gfx942 (dist/small-gfx942) is not in lock file aotbundle.lock")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file or directory"),
        ("[", "lock file x.lock: "),
        ("format = 2", "it is of format 2; this version of aotbuild reads format 1"),
        ("", "it is of format None"),
        ("format = 1\n[[bundle]]\nname = 'a'", "missing required field `arch`"),
        ("format = 1\n[[bundle]]\nname = 'a'\narch = 'b'\nid = 'c'\nsha256 = 'd'", "matching regex"),
        ("format = 1\nx = 1", "unknown field `x`"),
        ("\xff", "codec"),
        ("#" * (1 << 20) + "\n", "it is over 1048576 bytes"),
    ],
)
def test_lock_files_that_cannot_be_read(small_bundle: Path, text: str | None, said: str):
    if text is not None:
        Path("x.lock").write_text(text, encoding="latin-1")
    with pytest.raises(LockError, match=said) as caught:
        open_bundle(small_bundle, "emulator", lock="x.lock")
    assert caught.value.reason == "malformed"
    ends_with(aotbundle("lock", "--check", "-o", "x.lock"), 1, "lock file x.lock")


def test_paths_are_spelled_as_toml_has_them():
    bundle = LockedBundle("a", "gfx942", "0" * 64, "1" * 64, path='w "\\\n\x7f\u2028é')
    assert tomllib.loads(lock_text([bundle]))["bundle"][0]["path"] == bundle.path
