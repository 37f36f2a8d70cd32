"""Fetching packages: the cache, hashes, newer versions, and why they cannot be had. apt is a double here."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from . import packages
from .packages import SUITES, Archive, Package, Unavailable, pinned

APT = """#!/bin/sh
# Has `old` 1 and `new` 2; writes what it was asked to a log.
echo "$@" >> {log}
for word in "$@"; do case $word in
  old=1) echo old > old_1.deb ;;
  new=1) echo "E: Version '1' for 'new' was not found" >&2; exit 100 ;;
  new/sid) echo new > new_2.deb ;;
  gone*) echo "E: Unable to locate package gone" >&2; exit 100 ;;
esac; done
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of what apt was asked."""
    found = tmp_path / "log"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/apt-get").write_text(APT.format(log=found))
    (tmp_path / "bin/apt-get").chmod(0o755)
    monkeypatch.setitem(packages._ENVIRONMENT, "PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "sources").write_text("Types: deb\nURIs: http://archive.invalid/debian\nSuites: stable\n")
    monkeypatch.setattr(packages, "_SOURCES", (tmp_path / "sources",))
    return found


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


OLD = Package("old", "1", sha256("old\n"))


def test_a_package_is_fetched_once(log: Path, tmp_path: Path):
    (first,) = Archive(tmp_path / "cache", ("sid",)).fetch([OLD])
    assert first.read_text() == "old\n" and log.read_text().count("download") == 1
    assert (tmp_path / "cache/apt/sid.list").read_text().endswith(" http://archive.invalid/debian sid main\n")
    assert Archive(tmp_path / "cache", ("sid",)).fetch([OLD]) == [first]
    assert log.read_text().count("download") == log.read_text().count("update") == 1


def test_a_newer_version_is_taken_with_a_warning(log: Path, tmp_path: Path):
    with pytest.warns(UserWarning, match=r"new 1 is gone from the archive: new_2\.deb is taken"):
        (found,) = Archive(tmp_path / "cache", ("sid",)).fetch([Package("new", "1", sha256("old"))])
    assert found.read_text() == "new\n"


def test_what_cannot_be_had(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    archive = Archive(tmp_path / "cache", ("sid",))
    with pytest.raises(Unavailable, match="gone 1 cannot be fetched: E: Unable to locate package gone"):
        archive.fetch([Package("gone", "1", "0")])
    with pytest.raises(Unavailable, match=r"old 1 has the hash .*, not the pinned 00"):
        archive.fetch([Package("old", "1", "00")])
    with pytest.raises(Unavailable, match=r"HIP 5\.7\.1 is not known here; there are: 6\.4\.3, 7\.2\.4"):
        pinned("5.7.1")
    monkeypatch.setattr(packages, "_SOURCES", (tmp_path / "nowhere",))
    with pytest.raises(Unavailable, match="knows no archive of Debian"):
        Archive(tmp_path / "other", ("sid",)).fetch([OLD])


@pytest.mark.parametrize(
    "text",
    ["URIs: https://m.invalid/debian/\n", "deb [signed-by=/k.gpg] https://m.invalid/debian/ sid main\n",
     "deb https://m.invalid/debian/ sid main\n"],
)  # fmt: skip
def test_the_machines_archive(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a.list").write_text("deb https://other.invalid/tools stable main\n")
    (tmp_path / "b.list").write_text(text)
    monkeypatch.setattr(packages, "_SOURCES", (tmp_path,))
    assert packages._machines_archive() == "https://m.invalid/debian/"


@pytest.mark.parametrize("release", SUITES)
def test_pins(release: str):
    names = [package.name for package in pinned(release)]
    assert {"libc6", "libhsa-runtime64-1", "libamd-comgr3", "rocminfo"} < set(names) and len(names) == len(set(names))
    assert all(len(package.sha256) == 64 for package in pinned(release))
