"""A cache shared by machines, behind the local one. Its time is bounded, and its failures do not fail a build.

All access to the store is in a process of its own: a store that hangs is killed with it, and threads of network
libraries stay out of the process that forks and compiles.
"""

from __future__ import annotations

import functools
import logging
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from aot.errors import described
from aot.forked_process import ForkedProcess, TimeLimitError
from aot_runtime.errors import AotError
from aot_runtime.formats import printable

from .stores import EntryError, Store, open_store, shown

T = TypeVar("T")

LOG = logging.getLogger("aotbuild.build")
BATCH = 32
"""Entries in one request to the process, which transfers `AT_ONCE` of them concurrently."""
AT_ONCE = 16
MAX_SHARED_BYTES = 1 << 25
"""Largest entry that is shared, which limits a batch to a gigabyte."""
GROWTH_BYTES = 96 * MAX_SHARED_BYTES
"""Memory limit of the process: a batch of the largest entries, a copy to send, and what a library needs."""
EVERY_S = 10.0
"""Longest time that an entry waits to be written, so that an interrupted build has shared nearly all entries."""
LIMIT_S = 15.0
"""Time limit of a batch. The requests of a build may take this much longer in all than their entries are worth."""
ASKED_S, MOVED_S = 0.05, 0.5
"""Seconds that a look-up, and a transfer, of an entry may take to be worthwhile: less than compiling it."""
TOLD = 3
"""Maximum number of refused entries that warnings name; further ones are counted, and logged."""
MOST_TOLD = 400
"""Maximum length of the reason why an entry is refused or a store fails."""
Take = Callable[[str, bytes], str]
"""Receives an entry's name and content; returns the reason if it refuses the entry, else an empty text."""


class CacheError(AotError):
    """A required cache cannot be read or written."""


@dataclass(frozen=True)
class SharedSettings:
    """A shared cache and its use.

    Attributes:
        url: a folder, or a URL that fsspec opens.
        readonly: write nothing to it.
        required: fail the build if it cannot be used.
        secret: authenticates entries by HMAC-SHA256; entries without it are refused.
    """

    url: str
    readonly: bool = False
    required: bool = False
    secret: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class CacheSettings:
    """The local cache's folder (None: the default), and the shared cache, if any."""

    folder: Path | None = None
    shared: SharedSettings | None = None


@dataclass(frozen=True)
class Fault:
    """The reason why an operation on an entry failed. of_entry: the entry is at fault, not its store."""

    reason: str
    of_entry: bool


def in_a_line(reason: str) -> str:
    """Text of an entry or a store as part of a line: short, and without control characters."""
    line = " ".join(printable(reason).split())
    return line if len(line) <= MOST_TOLD else f"{line[:MOST_TOLD]}…"


class Refusals:
    """Warnings about refused entries. Only the first few name an entry."""

    def __init__(self, cache: object):
        """`cache` begins each warning."""
        self._cache, self._known = cache, set[str]()

    def tell(self, reasons: Mapping[str, str], cure: str) -> None:
        """Warn about entries.

        Args:
            reasons: name of the entry → why it was refused.
            cure: what happens to each.
        """
        new = {name: reason for name, reason in reasons.items() if name not in self._known}
        self._known |= new.keys()
        told = len(new) if len(new) <= TOLD + 1 else TOLD
        for number, (name, reason) in enumerate(new.items()):
            level = logging.WARNING if number < told else logging.INFO
            LOG.log(level, "%s: entry %s %s; it is %s", self._cache, name, in_a_line(reason), cure)
        if len(new) > told:
            LOG.warning("%s: %d more entries were refused; -v lists them", self._cache, len(new) - told)


class SharedCache:
    """The shared cache of one build. Leaving its context without an exception writes pending entries.

    The first fault of the store, a batch slower than `limit_s`, or a total time that exceeds the entries' worth by as
    much,
    ends its use with one warning; if the cache is required, with a `CacheError`.
    """

    def __init__(self, settings: SharedSettings, limit_s: float = LIMIT_S):
        self.settings = settings
        self.taken = self.written = 0
        """Entries that were read and taken, and entries that were written."""
        self._limit_s, self._asked, self._spent_s = limit_s, 0, 0.0
        self._process = ForkedProcess(limit_s)
        self._reads, self._writes = True, not settings.readonly
        self._pending: dict[str, bytes] = {}
        self._flushed = time.monotonic()
        self._refusals = Refusals(self)

    def __enter__(self) -> SharedCache:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
        finally:
            self._process.close()

    def __str__(self) -> str:
        return f"shared cache {shown(self.settings.url)}"

    @property
    def use(self) -> str:
        """A summary of its use, in words; empty if it was not used."""
        return f"{self.taken} entries read, {self.written} written" if self._asked else ""

    def read(self, names: Sequence[str], take: Take) -> None:
        """Pass each entry that exists among these names to `take`."""
        refused: dict[str, str] = {}
        for start in range(0, len(names), BATCH):
            batch = names[start : start + BATCH]
            contents = self._run(_read_batch, batch) if self._reads else None
            if contents is None:
                break
            faults = [content for content in contents if isinstance(content, Fault) and not content.of_entry]
            if faults and all(isinstance(content, Fault) for content in contents):
                self._give_up(f"cannot be read: {faults[0].reason}")
                break
            for name, content in zip(batch, contents, strict=True):
                if content is None:
                    continue
                reason = f"cannot be read ({content.reason})" if isinstance(content, Fault) else take(name, content)
                self.taken += not reason
                if reason:
                    refused[name] = reason
        self._refusals.tell(refused, "made again here" if self.settings.readonly else "made again, and replaced")

    def write(self, name: str, entry: bytes) -> None:
        """Write an entry, with the next batch. Raises `CacheError` only where the cache is required."""
        if self._writes and len(entry) <= MAX_SHARED_BYTES:
            self._pending[name] = entry
            if len(self._pending) >= BATCH or time.monotonic() - self._flushed > EVERY_S:
                self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        batch, self._pending, self._flushed = [*self._pending.items()], {}, time.monotonic()
        outcomes = self._run(_write_batch, batch) or []
        named = {name: fault for (name, _), fault in zip(batch, outcomes, strict=False) if fault is not None}
        self.written += len(outcomes) - len(named)
        refused = {name: f"cannot be written ({fault.reason})" for name, fault in named.items() if fault.of_entry}
        self._refusals.tell(refused, "left out")
        if faults := [fault.reason for fault in named.values() if not fault.of_entry]:
            self._writes = False
            self._fail(f"cannot be written: {faults[0]}", "the build will only read from it")

    def _run(
        self, function: Callable[[SharedSettings, Sequence[Any]], list[T]], batch: Sequence[Any]
    ) -> list[T] | None:
        """Run a function on a batch in the process; None once the store is given up."""
        worth = ASKED_S * self._asked + MOVED_S * (self.taken + self.written)
        if self._spent_s > self._limit_s + worth:
            self._give_up(f"is too slow: {self.use} in {self._spent_s:.0f} s")
            return None
        self._asked += len(batch)
        started = time.monotonic()
        try:
            return self._process.run(function, self.settings, batch)
        except TimeLimitError:
            self._give_up(f"did not answer within {self._limit_s:g} s")
        except AotError as error:
            self._give_up(f"cannot be used: {error}")
        finally:
            self._spent_s += time.monotonic() - started
        return None

    def _give_up(self, reason: str) -> None:
        self._reads = self._writes = False
        self._pending.clear()
        self._process.close()
        self._fail(reason, "the build continues without it")

    def _fail(self, reason: str, consequence: str) -> None:
        reason = in_a_line(reason)
        if self.settings.required:
            raise CacheError(f"{self} {reason}")
        LOG.warning("%s %s; %s", self, reason, consequence)


# In the process


@functools.cache
def _limit_growth() -> None:
    """Limit the memory of this process and the files that it writes: a store may send without end."""
    with suppress(OSError, ValueError):
        data_pages = int(Path("/proc/self/statm").read_text().split()[5])
        for kind, most in (
            (resource.RLIMIT_DATA, data_pages * resource.getpagesize() + GROWTH_BYTES),
            (resource.RLIMIT_FSIZE, 2 * MAX_SHARED_BYTES),
        ):
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def _read_batch(settings: SharedSettings, names: Sequence[str]) -> list[bytes | Fault | None]:
    store = _opened(settings)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        contents = [*pool.map(partial(_attempt, partial(_read, store)), names)]
    if settings.readonly and all(content is None for content in contents) and not store.exists():
        raise CacheError("it is not there")
    return contents


def _read(store: Store, name: str) -> bytes | None:
    content = store.read(name, MAX_SHARED_BYTES)
    if content is not None and len(content) > MAX_SHARED_BYTES:
        raise EntryError(f"it has more than {MAX_SHARED_BYTES} bytes")
    return content


def _write_batch(settings: SharedSettings, batch: Sequence[tuple[str, bytes]]) -> list[Fault | None]:
    store = _opened(settings)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [*pool.map(lambda item: _attempt(store.write, *item), batch)]


def _opened(settings: SharedSettings) -> Store:
    logging.disable()  # what network libraries have to say is in what they raise
    _limit_growth()
    return open_store(settings.url, settings.readonly)


def _attempt(function: Callable[..., T], *arguments: Any) -> T | Fault:
    """Call a function and return its result, or the fault. A store may raise any exception."""
    try:
        return function(*arguments)
    except EntryError as error:
        return Fault(str(error), of_entry=True)
    except Exception as error:
        return Fault(described(error), of_entry=False)
