"""Fetching packages: the cache, hashes, newer versions, and errors, with a double of apt."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from . import packages
from .packages import Archive, Package, Unavailable, pinned

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
