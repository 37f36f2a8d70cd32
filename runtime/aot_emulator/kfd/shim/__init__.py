"""The C library that is preloaded into HIP programs (see `shim.h`).

It is built on first use, in less than a second, with the system's C compiler, into the user's cache. The wheel thus
needs no platform-specific binary. `build_shim` only needs a compiler and the C library's headers.
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
    """Return the folder for built libraries, `aotbuild/kfd` in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aotbuild" / "kfd"


def build_shim(folder: Path | None = None) -> Path:
    """Return the path of the library, building it if it is not in the cache `folder` (default: the user's).

    Raises `DeviceError` if no compiler is found, the build fails, or the cache cannot be written.
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
            f"emulating the driver needs a C compiler, none found ({', '.join(names)}): install gcc or clang "
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
                raise DeviceError(f"{compiler} failed to build the emulated driver's library:\n{done.stderr.strip()}")
            made.replace(target)
    except OSError as error:
        raise DeviceError(f"cannot write the emulated driver's library to {target.parent}: {error.strerror}") from None
