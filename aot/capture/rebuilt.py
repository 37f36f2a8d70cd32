"""Rebuilt kernels: the records of a worker's result, their checks, and the keys under which they are cached."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from aot.cache.layered_cache import CAPTURED, NOT_ITS_NAME, Cache
from aot.cache.shared_cache import SharedCache
from aot.compile.compiler import read_back, verify_code, verify_lds
from aot.compile.jobs import Bytes, Count
from aot.compile.kernargs import KernargField, kernarg_layout
from aot.compile.keys import recipe_key
from aot.errors import CompileError
from aot.targets import Target
from aot_capture.ingredients import backend_release
from aot_capture.records import Capture, Kernel
from aot_runtime.bundle.kernel_metadata import KernelMetadata
from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.records import TENSOR_MAP

RECIPE_VERSION = 1
"""Increased when a worker makes something else of the same job, so that older cache entries are not used."""
_MAP = "nvTmaDesc"
"""Triton's name of a tensor map among the types of a launch's arguments."""
PARTS = ("source", "backend", "options", "environment")
"""Parts of Triton's key, in order."""


@dataclass(frozen=True)
class RebuiltKernel:
    """A captured kernel as it is shipped: the files of its folder in Triton's cache.

    Attributes:
        folder: name of the folder.
        hash: Triton's key, hashed.
        key: its parts.
        unlike: functions whose hash came out differently than where they were captured.
        files: content by name; there is no path of this machine in them.
        binary: name of the code object's file.
        arguments: (name, type) of each argument of a launch; None where Triton does not tell.
        scratch_pointers: pointers that Triton appends to the arguments.
        recipe: everything that it was made from, as JSON; the SHA-256 of this text is its key in our cache.
        warnings: of the compiler.
    """

    folder: str
    hash: str
    key: tuple[str, ...]
    unlike: tuple[str, ...]
    files: dict[str, bytes]
    binary: str
    symbol: str
    arguments: tuple[tuple[str, str], ...] | None
    scratch_pointers: Annotated[int, Meta(ge=1, le=2)]
    num_warps: Count
    warp_size: Count
    lds_bytes: Bytes
    recipe: str
    warnings: tuple[str, ...] = ()

    @property
    def image(self) -> bytes:
        return self.files[self.binary]

    @cached_property
    def metadata(self) -> KernelMetadata:
        return read_back(self.image, self.symbol)


@dataclass(frozen=True)
class RebuildJob:
    """A captured kernel that is to be compiled for a target."""

    kernel: Kernel
    target: Target
    recipe: str

    @property
    def name(self) -> str:
        return self.kernel.name

    @property
    def key(self) -> str:
        """The key in our cache."""
        return recipe_key(self.recipe)


class RebuiltCache(Cache[RebuiltKernel]):
    """Rebuilt kernels by the hashes of their recipes."""

    def __init__(self, path: Path | None = None, shared: SharedCache | None = None):
        super().__init__(path, CAPTURED, RebuiltKernel, shared)

    def fault(self, key: str, value: RebuiltKernel) -> str:
        return "" if recipe_key(value.recipe) == key else NOT_ITS_NAME


def check_rebuilt(kernel: RebuiltKernel, target: Target) -> None:
    """Raise `CompileError` unless the code object is for the target and takes the launch's arguments."""
    if kernel.binary not in kernel.files:
        raise CompileError(f"its code object {kernel.binary!r} is missing")
    verify_code(kernel, _layout(kernel, target), target)


def launch_warning(kernel: RebuiltKernel, target: Target) -> str:
    """Return why Triton refuses to launch a kernel; empty if it does not.

    Such kernels are shipped all the same: an autotuner that tries them compiles them, unless they are in the cache.
    """
    try:
        verify_lds(kernel, target)
    except CompileError as error:
        return f"Triton compiles it, and does not launch it: {error}"
    return ""


def fault_of(kernel: RebuiltKernel, target: Target) -> str:
    """Return why a kernel from a cache cannot be used; empty if it can."""
    try:
        check_rebuilt(kernel, target)
    except CompileError as error:
        return f"is not what was asked for: {error}"
    return ""


def _layout(kernel: RebuiltKernel, target: Target) -> tuple[KernargField, ...] | None:
    if kernel.arguments is None:
        return None
    taken = [(name, TENSOR_MAP if kind == _MAP else kind) for name, kind in kernel.arguments]
    try:
        layout = kernarg_layout(taken, ARCHITECTURES[target.arch].kernarg_start)
    except ValueError as error:
        raise CompileError(str(error)) from None
    return layout[: len(layout) - 2 + kernel.scratch_pointers]


def rebuild_job(
    kernel: Kernel, target: Target, capture: Capture, common: Mapping[str, Any], backend: str
) -> RebuildJob:  # fmt: skip
    """Return the job of a kernel.

    Args:
        common: the recipe's entries that all jobs share: the worker's installation, and the one whose keys are stated.
        backend: the key of the worker's compiler for the target, with the version of ptxas.
    """
    used = set(_used(capture, [kernel.function, *named_in(kernel.constants)]))
    recipe = {
        **common,
        "version": RECIPE_VERSION,
        "arch": target.arch,
        "backend": backend,
        "kernel": [getattr(kernel, name) for name in _DECISIVE],
        "functions": {name: vars(capture.functions[name]) for name in sorted(used & capture.functions.keys())},
        "classes": {name: vars(capture.aggregates[name]) for name in sorted(used & capture.aggregates.keys())},
    }
    return RebuildJob(kernel, target, json.dumps(recipe))


_DECISIVE = (
    "function", "language", "environment", "target", "signature", "constants", "attributes", "options", "given",
)  # fmt: skip


def _used(capture: Capture, functions: list[str]) -> Iterator[str]:
    """Yield the ids of some functions and of all functions and classes that these refer to."""
    seen: set[str] = set()
    waiting = [*functions]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        yield name
        if name in capture.functions:
            waiting += named_in(capture.functions[name].refers)
        elif name in capture.aggregates:
            record = capture.aggregates[name]
            waiting += named_in([record.annotations, record.defaults, record.methods])


def named_in(value: Any) -> list[str]:
    """Return the ids of functions and classes in encoded values."""
    found: list[str] = []
    waiting = [value]
    while waiting:
        match waiting.pop():
            case dict() as content:
                found += [
                    item for tag, item in content.items() if tag in ("function", "aggregate") and isinstance(item, str)
                ]
                waiting += content.values()
            case list() as items:
                waiting += items
    return found


def stated_key(triton: str, files: Mapping[str, str]) -> str:
    """Return Triton's own key of an installation."""
    return triton + "-".join(files.values())


def key_differences(job: RebuildJob, kernel: RebuiltKernel) -> list[str]:
    """Return why the captured program would not find a kernel under its own key; empty if it would."""
    captured = job.kernel
    if not captured.hash:
        return []  # a variant, whose key nobody has captured
    found = [f"the hash of {name} comes out differently" for name in kernel.unlike]
    for part, was, now in zip(PARTS, captured.key, kernel.key, strict=False):
        if was != now and not (part == "source" and found):
            shown = backend_release if part == "backend" else _shown
            found.append(f"{part}: captured {shown(was)}, here {shown(now)}")
    if not found and kernel.hash != captured.hash:
        found.append("another installation of Triton")
    return found


def _shown(text: str) -> str:
    """Shorten a part of a key: the beginning of a hash."""
    return text if len(text) < 64 else f"{text[:12]}…"
