"""The library that a HIP program is preloaded with, in C: see `shim.h`.

It is built into the user's cache with the system's C compiler when it is first used, in less than a second: a wheel
with a binary would be one for each kind of machine, and this one is the same for all. `build_shim` has no other needs
than a compiler and the C library's headers.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from aot_runtime.errors import DeviceError

_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-std=gnu11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden")
_LIBRARIES = ("-ldl", "-lpthread")
_FOLDER = Path(__file__).parent
_KEY_LENGTH = 16


def cache_folder() -> Path:
    """The folder of built libraries: `aotbuild/kfd` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aotbuild" / "kfd"


def build_shim(folder: Path | None = None) -> Path:
    """The library, built unless it is in the cache (`folder`; by default the user's).

    Raises `DeviceError` where there is no compiler, or it fails, or the cache cannot be written.
    """
    sources = sorted(_FOLDER.glob("*.c"))
    digest = hashlib.sha256()
    for path in sorted([*sources, *_FOLDER.glob("*.h")]):
        digest.update(path.read_bytes())
    target = (folder or cache_folder()) / f"libaotbuild-kfd-{digest.hexdigest()[:_KEY_LENGTH]}.so"
    if not target.exists():
        _compile(sources, target)
    return target


def _compiler() -> str:
    names = [os.environ["CC"]] if os.environ.get("CC") else _COMPILERS
    found = next((path for path in map(shutil.which, names) if path), None)
    if found is None:
        raise DeviceError(
            f"emulating the driver needs a C compiler, and there is none ({', '.join(names)}): install gcc or clang "
            "(Debian: apt install gcc libc6-dev), or name one in CC"
        )
    return found


def _compile(sources: list[Path], target: Path) -> None:
    compiler = _compiler()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch) / target.name
            command = [compiler, *_FLAGS, "-o", str(made), *map(str, sources), *_LIBRARIES]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise DeviceError(f"{compiler} cannot build the library of the emulated driver:\n{done.stderr.strip()}")
            made.replace(target)
    except OSError as error:
        raise DeviceError(
            f"the library of the emulated driver cannot be put into {target.parent}: {error.strerror}"
        ) from None
