"""Listeners of Triton that do not take the place of the program's own."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


class _Chained:
    """A group of knobs' attribute `listener`: ours is called, then the one that the program has set."""

    def __init__(self, ours: Callable[..., None]) -> None:
        self._ours = ours

    def __get__(self, knobs: Any, owner: Any = None) -> Any:
        theirs = None if knobs is None else vars(knobs).get("listener")
        if theirs is None:
            return self._ours

        def both(**event: Any) -> None:
            self._ours(**event)
            theirs(**event)

        return both

    def __set__(self, knobs: Any, listener: Any) -> None:
        vars(knobs)["listener"] = None if listener is self._ours else listener


def chain(knobs: type, listener: Callable[..., None]) -> None:
    """Let the knobs of a class call `listener`, whatever the program sets there before or later."""
    knobs.listener = _Chained(listener)  # type: ignore[attr-defined]


class _Choices(dict):  # type: ignore[type-arg]
    """An autotuner's choices by key. A new one is reported; looking one up costs what it costs in a dict."""

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
