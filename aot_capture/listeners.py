"""Listeners of Triton that do not take the place of the program's own."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


class _Each:
    """Our listeners and the program's as one; set again by a program that has read it, it is the program's alone."""

    def __init__(self, ours: list[Callable[..., None]], theirs: Any) -> None:
        self._ours, self.theirs = ours, theirs

    def __call__(self, **event: Any) -> None:
        for listener in self._ours:
            listener(**event)
        if self.theirs is not None:
            self.theirs(**event)


class _Chained:
    """The attribute `listener` of a group of knobs: ours are called, then the one that the program has set."""

    def __init__(self) -> None:
        self.ours: list[Callable[..., None]] = []

    def __get__(self, knobs: Any, owner: Any = None) -> Any:
        return self if knobs is None else _Each(self.ours, vars(knobs).get("listener"))

    def __set__(self, knobs: Any, listener: Any) -> None:
        vars(knobs)["listener"] = listener.theirs if isinstance(listener, _Each) else listener

    def __delete__(self, knobs: Any) -> None:
        vars(knobs).pop("listener", None)


def chain(knobs: Any, listener: Callable[..., None]) -> None:
    """Let a class of knobs call `listener`, whatever the program sets there before or later."""
    present = vars(knobs).get("listener")
    if not isinstance(present, _Chained):
        present = knobs.listener = _Chained()
    present.ours.append(listener)


class _Choices(dict):
    """An autotuner's choices by key, which reports new ones. A look-up is as fast as a dict's."""

    def __init__(self, fn: Any, listener: Callable[..., None]) -> None:
        super().__init__()
        self._report = functools.partial(_report_choice, fn, listener)

    def __setitem__(self, key: Any, config: Any) -> None:
        super().__setitem__(key, config)
        self._report(key, config, sys._getframe(1).f_locals)


def _report_choice(fn: Any, listener: Callable[..., None], key: Any, config: Any, names: dict[str, Any]) -> None:
    timings = names.get("timings")
    if not isinstance(timings, dict):
        return
    while not hasattr(fn, "cache_key"):
        fn = fn.fn
    start, end = names.get("bench_start"), names.get("bench_end")
    listener(
        fn=fn,
        key=key,
        best_config=config,
        configs_timings=timings,
        duration=end - start if start is not None and end is not None else None,
        cache_hit=start is None,
    )


def observe_choices(autotuner: Any, listener: Callable[..., None]) -> None:
    """Call `listener` for each choice of the class's autotuners: Triton before 3.8 has no listener for them."""
    make = autotuner.__init__

    @functools.wraps(make)
    def __init__(self: Any, fn: Any, *args: Any, **options: Any) -> None:
        make(self, fn, *args, **options)
        self.cache = _Choices(fn, listener)

    autotuner.__init__ = __init__
