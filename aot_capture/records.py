"""The capture file: one JSON object a line, appended to by any number of processes and read as a `Capture`."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Optional, Union

FORMAT = 1
MAX_DEPTH = 100  # of values in each other, in a record
Json = Any


class CaptureError(ValueError):
    """A capture file that cannot be read. The message begins with file and line."""


@dataclass(frozen=True)
class Installation:
    """A process's Python and Triton, and everything else of the process that Triton's keys depend on."""

    pid: int
    triton: str
    files: dict[str, str]  # under Triton's folder: their sha256, in the order in which Triton's key has them
    key_ok: bool  # the files are those of triton_key()
    python: str
    extension_suffix: str
    machine: str
    root: str
    cache: str
    ptxas: Optional[str]
    environment: dict[str, str]
    inductor_cache: Optional[str]
    inductor_warm: bool
    format: int = FORMAT


@dataclass(frozen=True)
class Function:
    """A function that Triton compiles or evaluates, with the values of the global names that it reads."""

    id: str
    type: str  # jit, gluon, constexpr; marked or builtin: Python that is marked as a builtin of Triton, or made one
    module: str
    qualname: str
    name: str
    file: str
    line: int
    def_line: int
    source: Optional[str]
    raw_source: Optional[str]
    source_sha256: str
    key: str
    noinline: bool
    launch_metadata: bool
    refers: dict[str, Json]
    closure: list[str]  # the names of `refers` that it closes over
    constexprs: list[list[str]]  # [name, text] of those that its hash holds: up to Triton 3.7, those of a function
    # that it calls are among them only if that was hashed before it


@dataclass(frozen=True)
class Aggregate:
    """A class made by Triton's `@aggregate`: the types of its fields, their defaults, and its methods."""

    id: str
    module: str
    qualname: str
    annotations: dict[str, Json]
    defaults: dict[str, Json]
    methods: dict[str, Json]


@dataclass(frozen=True)
class Kernel:
    """A kernel that Triton compiled, or found in its cache."""

    function: str
    name: str
    symbol: Optional[str]
    language: str
    hash: str
    key: list[str]  # of source, backend, options and environment
    rederived: bool  # these keys give `hash`
    environment: dict[str, str]
    target: list[Union[str, int]]  # backend, arch, lanes of a warp
    signature: dict[str, Json]
    constants: list[Json]  # [path, value]
    attributes: list[Json]  # [path, value]
    options: dict[str, Json]
    given: dict[str, Json]  # options that the launch itself gave
    tensordesc: Json
    cache_hit: bool
    compile_s: float
    record_s: float
    site: Optional[str]
    pid: int


@dataclass(frozen=True)
class Launch:
    """The launch that a kernel was compiled for."""

    kernel: str  # its hash
    grid: Json  # extents, or the function that computes them
    arguments: dict[str, Json]  # those that are numbers
    heuristics: dict[str, Json]  # argument: the function that computes it
    tuning_keys: list[str]  # arguments that the autotuner chooses by
    tuned: list[str]  # arguments that it sets


@dataclass(frozen=True)
class Autotune:
    """A choice of an autotuner: its key, the configs that were measured, and the best."""

    function: str
    name: str
    key: Json
    best: str
    configs: list[Json]  # [{attribute: value}, times, str(config), has a pre_hook]
    duration_s: Optional[float]
    cache_hit: bool


@dataclass(frozen=True)
class Unrecorded:
    """A kernel or autotuner that could not be noted, and why."""

    name: str
    reason: str
    pid: int


Record = Union[Installation, Function, Aggregate, Kernel, Launch, Autotune, Unrecorded]
KINDS: dict[str, type] = {
    kind.__name__.lower(): kind for kind in (Installation, Function, Aggregate, Kernel, Launch, Autotune, Unrecorded)
}
_START = '{"kind": "'  # in no JSON string, whose quotes are escaped, and no record has such a key elsewhere


@dataclass(frozen=True)
class Capture:
    """A capture file's records, without repetitions."""

    path: str
    installations: list[Installation] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    aggregates: dict[str, Aggregate] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    autotunes: list[Autotune] = field(default_factory=list)
    unrecorded: list[Unrecorded] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # lines that a killed process left unfinished


def line_of(record: Record) -> str:
    """Return the line of a record, without its end."""
    return json.dumps({"kind": type(record).__name__.lower(), **vars(record)})


def append(path: str, record: Record) -> None:
    """Append a record by one write, so that the lines of several processes do not mix.

    The file is opened for each: a program may close descriptors that it does not know.
    """
    data = (line_of(record) + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.write(descriptor, data) != len(data):
            os.write(descriptor, b"\n")
            raise OSError(f"{path}: the file system took a part of a record only")
    finally:
        os.close(descriptor)


def read_capture(path: Union[str, "os.PathLike[str]"]) -> Capture:
    """Read a capture file.

    Raises:
        CaptureError: A line is not a record, or the file holds no installation.
    """
    capture = Capture(os.fspath(path))
    seen: set[str] = set()
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except OSError as error:
        raise CaptureError(f"{capture.path}: {error.strerror}") from None
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        for part in _whole_parts(line, capture, number, is_last=number == len(lines)):
            if part not in seen:
                seen.add(part)
                _add(capture, parse(part, f"{capture.path}:{number}"))
    if not capture.installations and (capture.kernels or capture.functions):
        raise CaptureError(f"{capture.path}: no installation is recorded")
    _check_references(capture)
    return capture


def _whole_parts(line: str, capture: Capture, number: int, is_last: bool) -> Iterable[str]:
    """Yield the records on a line. A process that was killed leaves half a record, in front of another's or last."""
    start = line.rfind(_START)
    if start > 0:
        capture.notes.append(f"{capture.path}:{number}: a killed process left half a record, which is ignored")
        line = line[start:]
    if not line.strip():
        return
    if is_last or not line.endswith("}"):
        try:
            json.loads(line)
        except (ValueError, RecursionError):
            if not is_last and not line.startswith(_START):
                raise CaptureError(f"{capture.path}:{number}: not a record of a capture") from None
            capture.notes.append(f"{capture.path}:{number}: a killed process left half a record, which is ignored")
            return
    yield line


def parse(line: str, where: str) -> Record:
    """Return the record of a line; errors begin with `where`."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CaptureError(f"{where}: not JSON: {error}") from None
    kind = content.pop("kind", None) if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise CaptureError(f"{where}: unknown kind of record {kind!r}")
    if kind == "installation" and content.get("format") != FORMAT:
        raise CaptureError(f"{where}: format {content.get('format')!r}; this version reads format {FORMAT}")
    names = {f.name: f for f in dataclasses.fields(KINDS[kind])}
    for name in names.keys() ^ content.keys():
        problem = "lacks" if name in names else "has the unknown field"
        raise CaptureError(f"{where}: {kind} {problem} {name!r}")
    for name, declared in names.items():
        if not _fits(content[name], str(declared.type)):
            raise CaptureError(f"{where}: {kind}'s {name!r} is not of type {declared.type}: {str(content[name])[:60]}")
    record: Record = KINDS[kind](**content)
    if fault := _fault(record):
        raise CaptureError(f"{where}: {kind}'s {fault}")
    return record


def _fault(record: Record) -> str:
    """Return what is wrong with a record's values beyond their types; empty if nothing is."""
    if _depth_over(vars(record), MAX_DEPTH):
        return f"values are nested more than {MAX_DEPTH} deep"
    if isinstance(record, Kernel):
        if not re.fullmatch("[0-9a-f]{64}", record.hash):
            return f"'hash' is not a SHA-256: {record.hash[:80]!r}"
        if len(record.key) != 4:
            return f"'key' has {len(record.key)} parts, not 4"
        if list(map(type, record.target)) not in ([str, str, int], [str, int, int]):
            return f"'target' is not a backend, an architecture and a number of lanes: {str(record.target)[:80]}"
        for name, pairs in (("constants", record.constants), ("attributes", record.attributes)):
            if not all(_is_at_path(pair) for pair in pairs):
                return f"{name!r} are not pairs of a path and a value"
        if not all(isinstance(value, dict) and isinstance(value.get("list"), list) for _, value in record.attributes):
            return "'attributes' are not lists"
    if isinstance(record, Autotune):
        for config in record.configs:
            if not (isinstance(config, list) and list(map(type, config)) == [dict, list, str, bool]):
                return "'configs' are not values, times, a text and a flag each"
    return ""


def _is_at_path(pair: Any) -> bool:
    if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], list)):
        return False
    return all(type(place) is int for place in pair[0])


def _depth_over(value: Any, limit: int) -> bool:
    level = [value]
    while level and limit >= 0:
        inner = [list(item.values()) if isinstance(item, dict) else item for item in level]
        level = [item for items in inner for item in items if isinstance(item, (dict, list))]
        limit -= 1
    return bool(level)


def _fits(value: Any, declared: str) -> bool:
    if declared == "Json":
        return True
    if declared.startswith("Optional["):
        return value is None or _fits(value, declared[9:-1])
    if declared == "float":
        return type(value) in (int, float)
    if declared == "dict[str, str]":
        return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
    if declared == "list[str]":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    kinds = {"bool": bool, "int": int, "str": str, "dict": dict, "list": list}
    return type(value) is kinds[declared.partition("[")[0]]


def _add(capture: Capture, record: Record) -> None:
    if isinstance(record, Function):
        capture.functions.setdefault(record.id, record)
    elif isinstance(record, Aggregate):
        capture.aggregates.setdefault(record.id, record)
    elif isinstance(record, Installation):
        capture.installations.append(record)
    elif isinstance(record, Kernel):
        capture.kernels.append(record)
    elif isinstance(record, Launch):
        capture.launches.append(record)
    elif isinstance(record, Autotune):
        capture.autotunes.append(record)
    else:
        capture.unrecorded.append(record)


def _check_references(capture: Capture) -> None:
    users: list[Union[Kernel, Autotune]] = [*capture.kernels, *capture.autotunes]
    for record in users:
        if record.function not in capture.functions:
            raise CaptureError(
                f"{capture.path}: {record.name} refers to the function {record.function!r}, not recorded"
            )
