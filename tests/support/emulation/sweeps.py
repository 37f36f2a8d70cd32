"""Long lists of cases, of which a sample is tested by default."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sweep(names: str, cases: Iterable[Any], every: int, ids: Callable[[Any], str | None] | None = None) -> Any:
    """`parametrize`, with all cases but each `every`-th marked slow."""
    count = len(names.split(","))
    marked = [
        pytest.param(*(case if count > 1 else (case,)), marks=pytest.mark.slow if index % every else ())
        for index, case in enumerate(cases)
    ]
    return pytest.mark.parametrize(names, marked, ids=ids)
