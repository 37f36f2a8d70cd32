"""Find bundles that pip installed, by the entry points of their wheels.

The entry points are in the group `aotbuild.bundles`. They are parsed here, since importing `importlib.metadata` takes
longer than opening a bundle. Nothing of a distribution is imported. An entry point is named `<bundle>.<architecture>`;
its value is the archive's path relative to site-packages, with dots for slashes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aot_runtime.bundle.files import SUFFIX, source_of
from aot_runtime.errors import BundleError
from aot_runtime.regular_files import open_regular

if TYPE_CHECKING:
    from aot_runtime.bundle.source import Source
    from aot_runtime.contract.records import Index

GROUP = "aotbuild.bundles"
_GROUP = GROUP.encode()
_MAX_BYTES = 1 << 16
_ENTRY = re.compile(r"([A-Za-z][A-Za-z0-9_]*)\.([A-Za-z0-9_]+)\s*=\s*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


class Installed(NamedTuple):
    """An installed bundle for one architecture.

    Attributes:
        distribution: name and version of its distribution, as pip shows them: `aotbundle-rows-gfx942 1.2`.
        path: its archive, which may also contain bundles for other architectures.
    """

    name: str
    arch: str
    distribution: str
    path: str

    def __str__(self) -> str:
        return f"{self.name} for {self.arch} ({self.distribution})"


def installed_bundles(name: str | None = None, folders: Iterable[str] | None = None) -> list[Installed]:
    """Return installed bundles, optionally by name. `folders` defaults to `sys.path`."""
    found: list[Installed] = []
    before: list[str] = []
    for folder in dict.fromkeys(folder or "." for folder in (sys.path if folders is None else folders)):
        try:
            infos = [item for item in os.listdir(folder) if item.endswith(".dist-info")]  # noqa: PTH208
        except OSError:
            continue
        for info in infos:
            text = _text(f"{folder}/{info}/entry_points.txt")
            if _GROUP not in text:
                continue
            entries = list(_entries(text.decode("utf-8", "replace")))
            # Python uses the first copy of a distribution.
            if entries and _distribution(info) not in map(_distribution, before):
                found += (_installed(folder, info, *entry) for entry in entries if name in (None, entry[0]))
        before += infos
    return sorted(found)


def candidates_named(
    name: str, read: Callable[[Source], Index]
) -> list[tuple[str, str, Callable[[], tuple[Source, Index]]]]:
    """Return (distribution, architecture, function that reads it) of the installed bundles of a name."""
    found = installed_bundles(name)
    return [(item.distribution, item.arch, partial(_read, item, read)) for item in found]


def _read(item: Installed, read: Callable[[Source], Index]) -> tuple[Source, Index]:
    try:
        source = source_of(Path(item.path), item.arch)
        index = read(source)
        if (index.name, index.target.arch) != (item.name, item.arch):
            raise BundleError(f"{item.path} is bundle '{index.name}' for {index.target.arch}")
    except BundleError as error:
        error.args = (f"bundle {item}: {error}",)
        raise
    return source, index


def wheel_name(name: str, arch: str) -> str:
    """Return the default name of a bundle's wheel, as pip installs it."""
    return f"aotbundle-{name}-{arch}".replace("_", "-")


def missing(name: str) -> BundleError:
    """Return the error for a name that is neither a path's nor an installed bundle's."""
    installed = ", ".join(map(str, installed_bundles())) or "none"
    return BundleError(
        f"no bundle is called '{name}': no file, folder or installed bundle has this name; installed: {installed}. "
        f"Its wheel is {wheel_name(name, '<architecture>')}, unless its makers named it otherwise"
    )


def _distribution(info: str) -> str:
    return re.sub("[-_.]+", "-", info.partition("-")[0]).lower()


def _installed(folder: str, info: str, name: str, arch: str, value: str) -> Installed:
    version = info.removesuffix(".dist-info").partition("-")[2]
    path = os.path.join(folder, *value.split(".")) + SUFFIX  # noqa: PTH118
    return Installed(name, arch, f"{_distribution(info)} {version}", path)


def _text(path: str) -> bytes:
    """Read the start of a file, or nothing if it does not exist, as in most distributions."""
    try:
        descriptor = open_regular(path)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _MAX_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1]
        elif group == GROUP and (entry := _ENTRY.fullmatch(line)):
            yield entry[1], entry[2], entry[3]
