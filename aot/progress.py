"""Progress of a run: a bar on a terminal, lines in a log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import rich.console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from aot.compile.jobs import CompiledKernel
from aot.workers.batch import OnDone
from aot.workers.pool import CompileFailure
from aot_bundle.terminal import Console

LOG = logging.getLogger("aotbuild.build")
LOG_EVERY_S = 10.0
"""Interval of progress lines if the output is not a terminal."""
Advance = Callable[[bool], None]
"""Called as each step ends. The argument tells if it failed."""


@contextmanager
def progress(console: Console, labels: Mapping[str, str], workers: str, total: int) -> Iterator[OnDone]:
    """Show progress of compilations; yields the callback for each finished variant.

    Args:
        labels: names of variants, by key.
        workers: the number of workers, in words.
    """
    with steps(console, f"compiling {counted(total, 'variant')} with {workers}", total) as advance:

        def done(key: str, result: CompiledKernel | CompileFailure) -> None:
            failed = isinstance(result, CompileFailure)
            LOG.info("%s %s", "failed: " if failed else "compiled", labels[key])
            advance(failed)

        yield done


@contextmanager
def steps(console: Console, head: str, total: int) -> Iterator[Advance]:
    """Show progress of `total` steps; yields the function to call after each. `head` begins a log."""
    terminal = rich.console.Console(stderr=console.err, quiet=console.quiet)
    if not terminal.is_terminal or terminal.is_dumb_terminal:
        console.print(head)
        yield _Log(console, total)
        return
    columns = (
        TextColumn("{task.percentage:>3.0f} %"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("left{task.fields[note]}"),
    )
    with Progress(*columns, console=terminal, transient=True, expand=True) as bar:
        task = bar.add_task("", total=total, note="")
        count = 0

        def advance(failed: bool) -> None:
            nonlocal count
            count += failed
            bar.update(task, advance=1, note=_failed(count))

        yield advance


class _Log:
    """Progress in lines: one every `LOG_EVERY_S` seconds."""

    def __init__(self, console: Console, total: int):
        self.console, self.total = console, total
        self.done = self.failed = 0
        self.started = time.monotonic()
        self.next_line = self.started + LOG_EVERY_S

    def __call__(self, failed: bool) -> None:
        self.done += 1
        self.failed += failed
        now = time.monotonic()
        if now >= self.next_line and self.done < self.total:
            left = (now - self.started) * (self.total - self.done) / self.done
            minutes, seconds = divmod(round(left), 60)
            note = f", {minutes}:{seconds:02} left{_failed(self.failed)}"
            self.console.print(f"  {self.done}/{self.total}{note}")
            self.next_line = now + LOG_EVERY_S


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _failed(count: int) -> str:
    return f", {count} failed" if count else ""
