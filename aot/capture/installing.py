"""Install shipped caches into the cache of Triton, and compare the ingredients of keys with an environment's.

Everything is verified before anything is written. A kernel's list of files, by which Triton finds it, is written last
and with final paths; a kernel whose list is there and whole is left as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from aot_capture import ingredients
from aot_capture.ingredients import INSTALLED, MANIFEST
from aot_capture.rebuild import TRITON_FOLDER
from aot_runtime.folders import FOR_ALL, InTheWayError, OpenFolder, opened_folder

from .shipped_cache import INDUCTOR, KERNELS, ShippedCache, ShippedCacheError

GROUP = "__grp__"
"""Prefix of a kernel's list of files."""


@dataclass
class Installed:
    """Numbers of folders of Triton's cache: written, and left as they were."""

    written: int = 0
    kept: int = 0


def default_cache() -> Path:
    """Return the folder of Triton's cache in this environment."""
    if explicit := os.environ.get("TRITON_CACHE_DIR"):
        return Path(explicit)
    return Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


def install(shipped: ShippedCache, cache: Path, triton: str) -> Installed:
    """Install a shipped cache. `triton` is the folder of Triton, which kernels' metadata name; may be empty.

    Any number of processes may install or use the cache at once. Raises `ShippedCacheError` before anything is
    written, and `OSError`.
    """
    shipped.check()
    final = Path(os.path.abspath(cache))  # noqa: PTH100 links are kept: Triton uses the path as it is given
    final.mkdir(parents=True, exist_ok=True)
    done = Installed()
    with opened_folder(final) as top:
        for name, files in _folders(shipped):
            _install_folder(top, final, name, files, shipped, triton, done)
        with top.below(INSTALLED, make=True, over_links=True) as ours:
            stem = f"{shipped.manifest.name}-{shipped.manifest.arch}"
            if INDUCTOR in shipped.manifest.files:
                ours.write(f"{stem}.{INDUCTOR}", [shipped.read(INDUCTOR)], FOR_ALL)
            ours.write(f"{stem}.json", [shipped.source.read(MANIFEST, 1 << 30)], FOR_ALL)
    return done


def load_inductor(shipped: ShippedCache, python: Path) -> None:
    """Load Inductor's artefacts into the cache of a Python's torch, which unpickles them.

    Raises `ShippedCacheError` if there are none, or they cannot be loaded.
    """
    if INDUCTOR not in shipped.manifest.files:
        raise ShippedCacheError(f"{shipped.source.path} has no artefacts of Inductor (aotbuild --inductor)")
    load = "import sys, torch; sys.exit(torch.compiler.load_cache_artifacts(sys.stdin.buffer.read()) is None)"
    done = subprocess.run([python, "-c", load], input=shipped.read(INDUCTOR), stderr=subprocess.PIPE, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["torch takes none of them"]
        raise ShippedCacheError(f"artefacts of Inductor are not loaded by {python}: {said[0]}")


def _folders(shipped: ShippedCache) -> Iterator[tuple[str, list[str]]]:
    folders: dict[str, list[str]] = {}
    for name in shipped.manifest.files:
        if name.startswith(f"{KERNELS}/"):
            _, folder, file = name.split("/")
            folders.setdefault(folder, []).append(file)
    yield from folders.items()


def _install_folder(
    top: OpenFolder, cache: Path, name: str, files: list[str], shipped: ShippedCache, triton: str, done: Installed
) -> None:
    contents = {file: shipped.read(f"{KERNELS}/{name}/{file}") for file in files}
    groups = {file for file in files if file.startswith(GROUP)}
    for group in groups:
        paths = {child: str(cache / name / child) for child in json.loads(contents[group])["child_paths"]}
        contents[group] = json.dumps({"child_paths": paths}).encode()
    if triton:
        for file in files:
            if file.endswith(".json"):
                contents[file] = contents[file].replace(TRITON_FOLDER.encode(), json.dumps(triton)[1:-1].encode())
    with top.below(name, make=True, over_links=True) as folder:
        missing = [file for file in files if not _is_there(folder, file, contents[file], file in groups)]
        for file in sorted(missing, key=lambda file: file in groups):
            folder.write(file, [contents[file]], FOR_ALL)
    if missing:
        done.written += 1
    else:
        done.kept += 1


def _is_there(folder: OpenFolder, name: str, content: bytes, is_group: bool) -> bool:
    """Return True if a file has this content. A list of files may name more, as Triton's list all stages."""
    with suppress(FileNotFoundError, InTheWayError), os.fdopen(folder.open(name), "rb") as file:
        found = file.read(1 << 30)
        if not is_group or found == content:
            return found == content
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            there, ours = (json.loads(text)["child_paths"] for text in (found, content))
            return bool(
                ours.items() <= there.items() and all(folder.status(Path(path).name) for path in there.values())
            )
    return False


def differences(shipped: ShippedCache, here: Mapping[str, Any]) -> list[str]:
    """Return the ingredients of keys that differ in an environment. If there is any, every look-up misses.

    `here` is the environment's description by `worker_process.describe`, for the manifest's target.
    """
    (backend,) = here["backends"]
    return ingredients.differences(msgspec.to_builtins(shipped.manifest.ingredients), {**here, "backend": backend})
