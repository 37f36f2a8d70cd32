"""Check inputs that hypothesis draws, and shrinks if one fails."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

from .trial import SEED, count_of

T = TypeVar("T")
LIMIT_S = 120
"""Maximum time of an input."""


def try_drawn(strategy: SearchStrategy[T], check: Callable[[T], str], count: int) -> Counter[str]:
    """Check `count` inputs and count each outcome. Raises what `check` raises for the smallest failing input."""
    outcomes: Counter[str] = Counter()

    @seed(SEED)
    @settings(max_examples=count_of(count), deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def run(drawn: T) -> None:
        with _time_limit():
            outcomes[check(drawn)] += 1

    run()
    return outcomes


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise AssertionError(f"it took more than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
