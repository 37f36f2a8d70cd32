"""Read the JSON output of other commands (`selftest --json`, `profile --json`) for a bundle's report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from aot_runtime.contract.records import Index
from aot_runtime.errors import ArgumentError
from aot_runtime.regular_files import read_regular
from aot_runtime.texts import ID_LENGTH

LARGEST = 256 << 20
"""Maximum size of a file, in bytes."""
SHORTEST = 1e-12
"""Shortest plausible time of a launch in a roofline, in seconds."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class TestedOutput(msgspec.Struct, frozen=True):
    """A tensor that a self-test case writes to. `error` is None if it is not finite."""

    name: str
    error: float | None
    bound: float
    fault: str = ""


class TestedCase(msgspec.Struct, frozen=True):
    """The result of a self-test case."""

    op: str
    case: str
    passed: bool
    seconds: Seconds
    outputs: tuple[TestedOutput, ...]
    fault: str = ""


class Tested(msgspec.Struct, frozen=True):
    """The results of a self-test."""

    id: str
    device: str
    passed: bool
    results: tuple[TestedCase, ...]


class MatrixCount(msgspec.Struct, frozen=True):
    """Counts of matrix instructions of one type."""

    instructions: Count
    flops: Count


class ProfiledLaunch(msgspec.Struct, frozen=True):
    """A launch of a profiled call. `memory_bytes` are distinct bytes of device memory read and written."""

    kernel: str
    config: str
    grid: tuple[Count, ...]
    instructions: Count
    classes: dict[str, Count]
    matrix: dict[str, MatrixCount]
    memory_bytes: Count
    lower_bounds: dict[str, Seconds | str]

    @property
    def flops(self) -> int:
        """Floating-point operations of its matrix instructions."""
        return sum(count.flops for count in self.matrix.values())

    @property
    def main_kind(self) -> str:
        """The most frequent type of matrix instructions."""
        return max(self.matrix, key=lambda kind: self.matrix[kind].flops)

    @property
    def intensity(self) -> float:
        return self.flops / self.memory_bytes

    @property
    def seconds(self) -> float:
        """Lower bound of the run time."""
        return max((time for time in self.lower_bounds.values() if isinstance(time, float)), default=0.0)

    @property
    def limit(self) -> str:
        """The resource with the longest lower bound."""
        return str(self.lower_bounds.get("limit", ""))

    @property
    def highest_rate(self) -> float:
        """Upper bound of operations per second, from the lower bound of time."""
        return self.flops / self.seconds

    @property
    def in_roofline(self) -> bool:
        """True if the launch can be placed in a roofline: it has matrix operations, memory traffic and a valid time."""
        return self.flops > 0 and self.memory_bytes > 0 and self.seconds >= SHORTEST

    @property
    def classes_by_count(self) -> list[tuple[str, int]]:
        return sorted(self.classes.items(), key=lambda item: -item[1])


class Profiled(msgspec.Struct, frozen=True):
    """A profiled call."""

    id: str
    op: str
    arch: str
    launches: tuple[ProfiledLaunch, ...]


Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class ModelledLaunch(msgspec.Struct, frozen=True):
    """A launch with a modelled time. `sampled` are the workgroups that were run."""

    kernel: str
    config: str
    workgroups: Count
    sampled: tuple[Count, ...]
    seconds: Seconds
    flops: Annotated[float, msgspec.Meta(ge=0)]
    memory_bytes: Annotated[float, msgspec.Meta(ge=0)]
    shares: dict[str, Share]

    @property
    def rate(self) -> str:
        """The rate of matrix operations, or of device memory if there are none."""
        seconds = max(self.seconds, SHORTEST)
        if self.flops:
            return f"{self.flops / seconds / 1e12:,.1f} TFLOP/s"
        return f"{self.memory_bytes / seconds / 1e9:,.0f} GB/s"

    @property
    def largest_shares(self) -> list[tuple[str, float]]:
        """The largest shares of the time."""
        return sorted(self.shares.items(), key=lambda item: -item[1])[:4]


class Modelled(msgspec.Struct, frozen=True):
    """A call with a modelled time."""

    id: str
    op: str
    arch: str
    launches: tuple[ModelledLaunch, ...]


_Given = TypeVar("_Given", Tested, Profiled, Modelled)


def read_tested(path: Path, index: Index) -> Tested:
    """Read the output of `selftest --json`. Raises `ArgumentError` if malformed, or for a different bundle."""
    return _about(index, path, _read(path, Tested, "aotbundle selftest --json"))


def read_profiled(path: Path, index: Index) -> Profiled:
    """Read the output of `profile --json`. Raises `ArgumentError` if malformed, or for a different bundle."""
    return _about(index, path, _read(path, Profiled, "aotbundle profile --json"))


def read_modelled(path: Path, index: Index) -> Modelled:
    """Read the output of `profile --time --json`. Raises `ArgumentError` if malformed, or for a different bundle."""
    return _about(index, path, _read(path, Modelled, "aotbundle profile --time --json"))


def _read(path: Path, form: type[_Given], command: str) -> _Given:
    if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe may block
        raise ArgumentError(f"{path} is not a regular file")
    try:
        data = read_regular(path, LARGEST)
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > LARGEST:
        raise ArgumentError(f"{path} has more than {LARGEST} bytes")
    try:
        return msgspec.json.decode(data, type=form)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} is not what `{command}` writes: {error}") from None


def _about(index: Index, path: Path, found: _Given) -> _Given:
    if found.id != index.id:
        raise ArgumentError(
            f"{path} is about the bundle with id {found.id[:ID_LENGTH]}; this one has id {index.id[:ID_LENGTH]}"
        )
    return found
