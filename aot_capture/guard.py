"""Triton's cache manager in a run that must not compile: a failed look-up is an error with the reason.

TRITON_CACHE_MANAGER names it, so that worker processes use it, too. It looks in the shipped cache first, and writes
nothing to it.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from typing import Any, Optional

from triton import knobs
from triton.runtime.cache import FileCacheManager

from .compiling import Compilation, current_compilation
from .differences import nearest, process_differences
from .ingredients import mismatch
from .installation import installation
from .recorder import Recorder
from .records import Capture, CaptureError, Function, read_capture
from .report import AUTOTUNE, INGREDIENTS, KERNEL, MODULE, Event, log
from .variables import GUARD, GUARD_CACHE, GUARD_KERNELS, GUARD_LOG, NO_GPU, RAISE


class WouldCompileError(RuntimeError):
    """A kernel, or a C module of Triton's launcher, that would be compiled in a run that must not compile."""


def note(event: Event) -> None:
    """Log an event. Raise `WouldCompileError` if Triton would compile now, unless the run only counts."""
    path = os.environ.get(GUARD_LOG)
    if path:
        log(path, event)
    if not event.hit and event.what in (KERNEL, MODULE) and os.environ.get(GUARD) == RAISE:
        raise WouldCompileError(f"aotbuild run --no-compile: {event}")


class Manager(FileCacheManager):
    """A folder of Triton's cache, looked up in the shipped cache and then in Triton's own."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._watched = not (override or dump)
        try:
            super().__init__(key, override=override, dump=dump)
        except OSError:  # a cache that cannot be written: its entries are read all the same
            if not self._watched:
                raise
            self.key, self.cache_dir = key, os.path.join(knobs.cache.dir, key)
            self.lock_path = os.path.join(self.cache_dir, "lock")

    def _folders(self) -> list[str]:
        shipped = os.environ.get(GUARD_CACHE)
        own = [self.cache_dir] if self.cache_dir else []
        return [os.path.join(shipped, self.key), *own] if shipped and self._watched else own

    def get_file(self, filename: str) -> Optional[str]:
        """Return the path of a file of the folder."""
        paths = [os.path.join(folder, filename) for folder in self._folders()]
        found = next((path for path in paths if os.path.exists(path)), None)
        what = AUTOTUNE if filename.endswith(".autotune.json") else MODULE if _is_library(filename) else None
        if what is not None and self._watched:
            missing = [] if found else [f"{filename} is not in {folder}" for folder in self._folders()[:1]]
            note(Event(found is not None, what, _plain(filename), self.key, os.getpid(), differences=missing))
        return found

    def get_group(self, filename: str) -> Optional[dict[str, str]]:
        """Return the files that a list names. They lie beside it, whatever paths it states: the cache was moved."""
        if self._watched:
            _compare_ingredients(os.getpid())
        incomplete: list[str] = []
        for folder in self._folders():
            group = _group_in(folder, filename, incomplete)
            if group is not None and not knobs.compilation.always_compile:
                if self._watched:
                    note(Event(True, KERNEL, _plain(filename), self.key, os.getpid()))
                return group
        if self._watched:
            if knobs.compilation.always_compile:
                incomplete = ["TRITON_ALWAYS_COMPILE is set: Triton compiles what is in its cache"]
            note(miss_of_kernel(_plain(filename), self.key, incomplete))
            return self._stand_in(filename) if os.environ.get(NO_GPU) else None
        return None

    def _stand_in(self, filename: str) -> Optional[dict[str, str]]:
        """Return files that take the place of a compiled kernel: without a GPU it is not launched, only listed."""
        compilation = current_compilation()
        if compilation is None:
            return None
        target = compilation.target
        metadata = {
            **vars(compilation.options),
            "name": compilation.source.name,
            "hash": self.key,
            "target": vars(target),
            "warp_size": target.warp_size,
            "cluster_dims": (1, 1, 1),
            "shared": 0,
        }
        files = {
            filename: json.dumps(metadata, default=str),
            f"{_plain(filename)}.{compilation.backend.binary_ext}": "",
        }
        log_path = os.environ.get(GUARD_LOG)
        scratch = os.path.dirname(log_path) if log_path else tempfile.gettempdir()
        folder = os.path.join(scratch, f"stand-in-{os.getpid()}", self.key)
        os.makedirs(folder, exist_ok=True)
        for name, text in files.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        return {name: os.path.join(folder, name) for name in files}


@functools.lru_cache(maxsize=None)
def _compare_ingredients(pid: int) -> None:
    """Say, before the first kernel of a process is looked up, why none can be found in the caches for its target."""
    compilation = current_compilation()
    if compilation is None:
        return
    try:
        found = mismatch(os.environ.get(GUARD_CACHE), knobs.cache.dir, compilation.target, compilation.backend.hash())
    except Exception as error:  # the run goes on, whatever a manifest has in it
        found = [f"the ingredients of the cache cannot be compared: {type(error).__name__}: {error}"]
    if found:
        event = Event(False, INGREDIENTS, compilation.target.arch, "", pid, differences=found)
        print(f"aotbuild run: {event}", file=sys.stderr)
        note(event)


def _is_library(filename: str) -> bool:
    return filename.endswith((".so", ".pyd"))


def _plain(filename: str) -> str:
    return filename.partition(".")[0]


def _group_in(folder: str, filename: str, incomplete: list[str]) -> Optional[dict[str, str]]:
    path = os.path.join(folder, f"__grp__{filename}")
    try:
        with open(path, encoding="utf-8") as file:
            names = list(json.load(file)["child_paths"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        incomplete.append(f"{path} cannot be read: {error}")
        return None
    group = {name: os.path.join(folder, os.path.basename(name)) for name in names}
    missing = [name for name, file_path in group.items() if not os.path.exists(file_path)]
    if missing:
        incomplete.append(f"{folder} is incomplete: it lacks {', '.join(missing)}")
        return None
    return group


def miss_of_kernel(name: str, key: str, reasons: list[str]) -> Event:
    """Describe the kernel that `compile()` is about to compile, and its differences from the captured ones."""
    compilation = current_compilation()
    if compilation is None:
        return Event(False, KERNEL, name, key, os.getpid(), differences=reasons)
    inner, target = compilation.source.fn.fn, compilation.target
    return Event(
        False,
        KERNEL,
        f"{inner.__module__}.{inner.__qualname__}",
        key,
        os.getpid(),
        file=inner.__code__.co_filename,
        line=compilation.source.fn.starting_line_number,
        site=compilation.site,
        target=f"{target.backend} {target.arch}",
        differences=reasons or _explained(compilation),
    )


def _explained(compilation: Compilation) -> list[str]:
    try:
        capture = _capture()
        if capture is None:
            return []
        return _differences(compilation, capture)
    except Exception as error:  # the miss itself must be told, whatever its explanation meets
        return [f"it cannot be compared with the captured kernels: {type(error).__name__}: {error}"]


def _differences(compilation: Compilation, capture: Capture) -> list[str]:
    functions: dict[str, Function] = {}

    def keep(record: Any) -> None:
        if isinstance(record, Function):
            functions[record.id] = record

    kernel = Recorder(keep).kernel(compilation, "")
    process = process_differences(installation(kernel.key[1]), capture)
    _, found, count = nearest(kernel, functions, capture)
    if not count:
        return [*process, f"no kernel of the name {kernel.name} was captured"]
    found += [difference for difference in process if difference not in found]
    if not found:
        return [f"it was captured, and the cache lacks it: {os.environ.get(GUARD_CACHE) or knobs.cache.dir}"]
    return [f"differs from the nearest of {count} captured:", *(f"  {difference}" for difference in found)]


@functools.lru_cache(maxsize=None)
def _capture() -> Optional[Capture]:
    path = os.environ.get(GUARD_KERNELS)
    try:
        return read_capture(path) if path else None
    except CaptureError as error:
        raise RuntimeError(str(error)) from None


def on_compile(*, src: Any, metadata: dict[str, Any], cache_hit: bool, **_: Any) -> None:
    """Log a compilation that did not pass through `Manager`, because the program has replaced it."""
    manager = knobs.cache.manager_class
    if cache_hit or manager is Manager:
        return
    reason = f"the program has replaced Triton's cache manager by {manager}"
    note(miss_of_kernel(str(getattr(src, "name", "?")), str(metadata.get("hash")), [reason]))
