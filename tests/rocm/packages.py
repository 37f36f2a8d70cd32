"""Debian's packages of ROCm, fetched by apt from the archive that the machine's own apt uses.

Versions and hashes are pinned in a file for each release (`6.4.3.txt`: from sid; `7.2.4.txt`: from experimental).
Packages are kept in the user's cache, since both suites change. If a pinned version is in neither the archive nor the
cache, the current one is used with a warning; apt checks it by the archive's signature.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SUITES = {"6.4.3": ("sid",), "7.2.4": ("sid", "experimental")}
"""Releases of HIP, and the suites that have them."""
HOW = "apt-get and dpkg-deb of a Debian system for x86-64, and its archive within reach"
_SOURCES = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d"))
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_ARCHIVE = re.compile(r"^(?:URIs:|deb\s(?:\[[^]]*\]\s)?)\s*(\S+/debian/?)(?:\s|$)", re.MULTILINE)
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_RECORD = "packages.json"


class Unavailable(Exception):
    """Raised if the packages cannot be had here."""


@dataclass(frozen=True)
class Package:
    """A package of a release."""

    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def pinned(release: str) -> list[Package]:
    """Return the packages of a release of HIP. Raises `Unavailable` for an unknown one."""
    if release not in SUITES:
        raise Unavailable(f"HIP {release} is not known here; there are: {', '.join(SUITES)}")
    lines = Path(__file__).with_name(f"{release}.txt").read_text().splitlines()
    return [Package(*line.split()) for line in lines]


def cache_folder() -> Path:
    """Return the folder of packages and of the archive's lists: `aotbuild/rocm` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aotbuild" / "rocm"


def install(folder: Path, release: str = "6.4.3", cache: Path | None = None) -> Rocm:
    """Install a release below a folder, unless it is there. Raises `Unavailable`."""
    wanted = pinned(release)
    found = Rocm(folder)
    if found.record.get("pinned") == [str(package) for package in wanted]:
        return found
    if platform.machine() != "x86_64" or not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unavailable(f"ROCm's packages cannot be had here: they need {HOW}")
    files = Archive(cache or cache_folder(), SUITES[release]).fetch(wanted)
    if folder.exists():
        shutil.rmtree(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        for file in files:
            _run(["dpkg-deb", "-x", str(file), scratch])
        record = {"release": release, "pinned": [str(package) for package in wanted], "files": [f.name for f in files]}
        Path(scratch, _RECORD).write_text(json.dumps(record))
        Path(scratch).chmod(0o755)
        Path(scratch).rename(folder)
        Path(scratch).mkdir()  # which its end removes
    return found


class Archive:
    """Debian's archive as the machine's apt reaches it, with its own lists and downloads in a cache."""

    def __init__(self, cache: Path, suites: Sequence[str]):
        self._cache, self._suites = cache, suites
        self._packages = cache / "packages"

    def fetch(self, wanted: Sequence[Package]) -> list[Path]:
        """Fetch the files of packages. Raises `Unavailable`; warns of each whose version is not the one asked for."""
        self._packages.mkdir(parents=True, exist_ok=True)
        self._download_together([package for package in wanted if not self._kept(package)])
        return [self._kept(package) or self._download(package) for package in wanted]

    def _download_together(self, wanted: Sequence[Package]) -> None:
        """Fetch packages by one call of apt, which is quick, but may get none if one is gone."""
        with tempfile.TemporaryDirectory(dir=self._packages) as scratch:
            if wanted:
                self._apt("download", *(f"{package.name}={package.version}" for package in wanted), folder=scratch)
            for file in Path(scratch).glob("*.deb"):
                file.replace(self._packages / f"{_sha256(file)}.deb")

    def _kept(self, package: Package) -> Path | None:
        path = self._packages / f"{package.sha256}.deb"
        return path if path.exists() and _sha256(path) == package.sha256 else None

    def _download(self, package: Package) -> Path:
        with tempfile.TemporaryDirectory(dir=self._packages) as scratch:
            exact = self._apt("download", f"{package.name}={package.version}", folder=scratch)
            if exact.returncode:
                newer = self._apt("download", f"{package.name}/{self._suites[-1]}", folder=scratch)
                if newer.returncode:
                    newer = self._apt("download", package.name, folder=scratch)
                if newer.returncode:
                    raise Unavailable(f"{package} cannot be fetched: {_last_line(newer.stderr)}")
            (file,) = Path(scratch).glob("*.deb")
            digest = _sha256(file)
            if not exact.returncode and digest != package.sha256:
                raise Unavailable(f"{package} has the hash {digest}, not the pinned {package.sha256}")
            if exact.returncode:
                warnings.warn(f"{package} is gone from the archive: {file.name} is taken", stacklevel=2)
            target = self._packages / f"{digest}.deb"
            file.replace(target)
            return target

    def _apt(self, *arguments: str, folder: str) -> subprocess.CompletedProcess[str]:
        command = ["apt-get", *self._options, "-q", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=_ENVIRONMENT)

    @cached_property
    def _options(self) -> list[str]:
        """Return options of apt-get that keep it to this cache; the archive's lists are read anew."""
        state = (self._cache / "apt").resolve()
        for name in ("lists/partial", "cache/archives/partial"):
            (state / name).mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        archive = _machines_archive()
        lines = [f"deb [signed-by={_KEYRING}] {archive} {suite} main\n" for suite in self._suites]
        sources = state / f"{self._suites[-1]}.list"
        sources.write_text("".join(lines))
        options = {
            "Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null", "Dir::State::Lists": state / "lists",
            "Dir::State::status": state / "status", "Dir::Cache": state / "cache", "Acquire::Languages": "none",
            "Debug::NoLocking": "1", "APT::Sandbox::User": "",
        }  # fmt: skip
        found = [item for name, value in options.items() for item in ("-o", f"{name}={value}")]
        _run(["apt-get", *found, "-q", "update"])
        return found


@dataclass(frozen=True)
class Rocm:
    """A release that is unpacked below a folder. more: folders with further libraries."""

    folder: Path
    more: tuple[Path, ...] = ()

    @cached_property
    def record(self) -> dict[str, object]:
        """Return a list of the packages that are there."""
        try:
            found: dict[str, object] = json.loads((self.folder / _RECORD).read_text())
        except (OSError, ValueError):
            return {}
        return found

    @property
    def loader(self) -> Path:
        return self.folder / _LIBRARIES / "ld-linux-x86-64.so.2"

    @property
    def libraries(self) -> list[Path]:
        return [*self.more, self.folder / _LIBRARIES, *sorted((self.folder / "usr/lib").glob("llvm-*/lib"))]

    @property
    def hip(self) -> Path:
        """Return the libamdhip64."""
        return min((self.folder / _LIBRARIES).glob("libamdhip64.so.?"))

    def command(self, program: Sequence[str | Path], name: str | Path | None = None) -> list[str]:
        """Return the command that runs a program by the folder's own loader and libraries. name: the program's own name
        for itself."""
        paths = os.pathsep.join(map(str, self.libraries))
        given = [] if name is None else ["--argv0", str(name)]
        return [str(self.loader), "--library-path", paths, *given, *map(str, program)]

    def python(self, *arguments: str | Path, executable: Path) -> list[str]:
        """Return the command that runs the Python of the virtual environment whose `python` is given."""
        return self.command([executable.resolve(), *arguments], executable)


_ENVIRONMENT = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}


def _machines_archive() -> str:
    """Return the address of Debian's archive in the machine's apt. Raises `Unavailable`."""
    for path in _source_files():
        if found := _ARCHIVE.search(path.read_text(errors="replace")):
            return found[1]
    raise Unavailable(f"this machine's apt knows no archive of Debian; needed are {HOW}")


def _source_files() -> Iterator[Path]:
    for path in _SOURCES:
        if path.is_dir():
            yield from sorted(path.iterdir())
        elif path.exists():
            yield path


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=_ENVIRONMENT)
    if done.returncode:
        raise Unavailable(f"{command[0]} fails: {_last_line(done.stderr)}")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "with no word"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
