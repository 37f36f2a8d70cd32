"""Find the libamdhip64 of a process. There must be only one, as each has its own devices, streams and memory.

The first of these that exists is used:

1. a library that the process has loaded already, for example torch's;
2. a library named by the environment: AOTBUILD_HIP_LIBRARY is the file, ROCM_PATH or HIP_PATH the folder whose `lib`
   has it, and LD_LIBRARY_PATH lists folders that have it;
3. the library in ROCm's wheels: `rocm-sdk-core` is imported as `_rocm_sdk_core`, possibly with a version;
4. the system's: in /opt/rocm, then wherever the dynamic loader finds it.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from aot_runtime.errors import DeviceError
from aot_runtime.logs import log

VARIABLE = "AOTBUILD_HIP_LIBRARY"
"""Environment variable with the path of the libamdhip64 to use if the process has loaded none."""
NAME = "libamdhip64.so"
SYSTEM = ("/opt/rocm",)
"""Default folders of a ROCm installation."""
_FOLDERS = ("lib", "lib64")
_LOADER_NAMES = (NAME, f"{NAME}.7", f"{NAME}.6")
"""Names for the dynamic loader. Without development packages, only the names with a version exist."""
_WHEELS = ("_rocm_sdk_core", "rocm_sdk_core", "_rocm_sdk_core_*")
_A_FUNCTION = "hipModuleLaunchKernel"
_MAPS = Path("/proc/self/maps")


class Candidate(msgspec.Struct, frozen=True):
    """A library that may be used: its path, or a name for the dynamic loader, and the rule that found it."""

    path: str
    rule: str
    loaded: bool = False
    """The process has loaded it already."""


class Library(msgspec.Struct, frozen=True):
    """An open library."""

    handle: ctypes.PyDLL
    path: str
    rule: str

    def __str__(self) -> str:
        return f"{self.path} ({self.rule})"


def open_libraries() -> Iterator[Library]:
    """Open the process's libamdhip64, or all of them if it has loaded several.

    Raises:
        DeviceError: there is none; the error lists what was tried.
    """
    tried: dict[str, str] = {}  # the first error of each rule
    for candidate in candidates(os.environ, loaded_libraries(), sys.path, SYSTEM):
        try:
            handle = ctypes.PyDLL(candidate.path)
        except OSError as error:
            tried.setdefault(candidate.rule, str(error))
            continue
        if not hasattr(handle, _A_FUNCTION):
            tried.setdefault(candidate.rule, f"{candidate.path}: has no {_A_FUNCTION}")
            continue
        library = Library(handle, _path_of(candidate.path), candidate.rule)
        log("libamdhip64 is %s", library)
        yield library
        if not candidate.loaded:
            return
    if tried:
        errors = "; ".join(f"{error} ({rule})" for rule, error in tried.items())
        raise DeviceError(
            f"AMD GPUs need ROCm's HIP runtime, and {NAME} cannot be loaded ({errors}): install ROCm; where "
            f"it is, name its folder, the one that holds lib/{NAME}, in ROCM_PATH, or its lib in LD_LIBRARY_PATH, or "
            f"the library itself in {VARIABLE}"
        )


def loaded_libraries() -> list[str]:
    """Return the paths of all libamdhip64 that this process has mapped, in the order of their addresses."""
    try:
        lines = _MAPS.read_text(errors="surrogateescape").splitlines()
    except OSError:  # no Linux
        return []
    return mapped(lines)


def mapped(lines: Iterable[str]) -> list[str]:
    """Return the paths of all libamdhip64 in lines of /proc/self/maps."""
    paths = (fields[5] for fields in (line.split(maxsplit=5) for line in lines) if len(fields) == 6)
    return list(dict.fromkeys(path for path in paths if os.path.basename(path).startswith(NAME)))  # noqa: PTH119


def candidates(
    environment: Mapping[str, str], loaded: Sequence[str], python_path: Iterable[str], system: Iterable[str]
) -> Iterator[Candidate]:
    """Yield the libraries that exist in the order of the rules, then the names for the dynamic loader.

    Args:
        environment: variables.
        loaded: what the process has mapped.
        python_path: folders of Python packages, as in `sys.path`.
        system: folders that hold a `lib`.
    """
    named = environment.get(VARIABLE, "")
    for path in sorted(loaded, key=lambda path: not (named and same_file(path, named))):
        yield Candidate(path, "this process had it already", loaded=True)
    if named and not loaded:
        yield Candidate(named, f"{VARIABLE} names it")
    if named or loaded:
        return  # another one would be a second, or not what was asked for
    for variable in ("ROCM_PATH", "HIP_PATH"):
        yield from _found(_libraries(environment.get(variable, "")), f"in {variable}")
    searched = (Path(folder) for folder in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder)
    yield from _found(searched, "in LD_LIBRARY_PATH")
    yield from _found(_wheels(python_path), "of ROCm's wheels")
    for folder in system:
        yield from _found(_libraries(folder), f"in {folder}")
    yield from (Candidate(name, "by the dynamic loader") for name in _LOADER_NAMES)


def _libraries(root: str) -> Iterator[Path]:
    if root:
        yield from (Path(root, name) for name in _FOLDERS)


def _wheels(python_path: Iterable[str]) -> Iterator[Path]:
    for entry in python_path:
        for pattern in _WHEELS:
            packages = sorted(Path(entry or ".").glob(pattern), reverse=True)  # of several versions the last
            yield from (folder for package in packages for folder in _libraries(str(package)))


def _found(folders: Iterable[Path], rule: str) -> Iterator[Candidate]:
    """Yield the library in each folder that has one: without a version in its name, else with the highest."""
    for folder in folders:
        names = [path.name for path in folder.glob(f"{NAME}*") if re.fullmatch(r"[.\d]*", path.name.removeprefix(NAME))]
        if names:
            yield Candidate(str((folder / max(names, key=_preference)).absolute()), rule)


def _preference(name: str) -> tuple[bool, tuple[int, ...]]:
    return name == NAME, tuple(map(int, re.findall(r"\d+", name.removeprefix(NAME))))


def same_file(path: str, other: str) -> bool:
    """Return True if two paths lead to the same file."""
    try:
        return os.path.samefile(path, other)  # noqa: PTH121
    except OSError:
        return False


def _path_of(candidate: str) -> str:
    if os.sep in candidate:
        return candidate
    return next(iter(loaded_libraries()), candidate)
