"""Fetch the peers' files, which are not in this repository. Commits and hashes are pinned."""

from __future__ import annotations

import hashlib
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

HERE = Path(__file__).parent
RAW = "https://raw.githubusercontent.com"


class SourceError(Exception):
    """A peer's file is missing, or differs from the pinned one."""


@dataclass(frozen=True)
class Source:
    """A file of a repository, at `path` in it."""

    repository: str
    commit: str
    path: str
    sha256: str

    def within(self, folder: Path) -> Path:
        return root_of(folder, self.repository) / self.path

    def check(self, content: bytes, where: str) -> bytes:
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise SourceError(f"{where} has the sha256 {found}; that of {self.commit[:12]} has {self.sha256}")
        return content


def root_of(folder: Path, repository: str) -> Path:
    """Return the folder of a repository's files in the folder of all peers."""
    return folder / repository.replace("/", "+")


def sources() -> Iterator[Source]:
    for repository, pinned in yaml.safe_load((HERE / "sources.yaml").read_text()).items():
        for path, sha256 in pinned["files"].items():
            yield Source(repository, pinned["commit"], path, sha256)


def fetch(folder: Path, clones: Mapping[str, Path]) -> int:
    """Fetch missing files. Returns the number of all files.

    Args:
        clones: repository → a git clone to read instead of GitHub.
    """
    count = 0
    for source in sources():
        count += 1
        place = source.within(folder)
        if not place.exists():
            content = _read(source, clones.get(source.repository))
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    check(folder)
    return count


def check(folder: Path) -> None:
    """Raise `SourceError` if a file is missing or differs from the pinned one."""
    for source in sources():
        place = source.within(folder)
        if not place.is_file():
            raise SourceError(f"{place} is not there: `python benchmarks/gfx942.py fetch {folder}` fetches it")
        source.check(place.read_bytes(), str(place))


def _read(source: Source, clone: Path | None) -> bytes:
    where = f"{source.repository}@{source.commit[:12]}:{source.path}"
    if clone is not None:
        command = ["git", "-C", str(clone), "show", f"{source.commit}:{source.path}"]
        found = subprocess.run(command, capture_output=True, check=False)
        if found.returncode:
            raise SourceError(f"{where}: {found.stderr.decode(errors='replace').strip()}")
        return source.check(found.stdout, where)
    try:
        with urllib.request.urlopen(f"{RAW}/{source.repository}/{source.commit}/{source.path}", timeout=60) as answer:
            return source.check(answer.read(), where)
    except OSError as error:
        raise SourceError(f"{where} cannot be fetched: {error}") from None
