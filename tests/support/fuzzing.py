"""Checks of drawn examples: a few by default, and a sweep of many with `pytest -m slow`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FEW, MANY = 50, 1000


def fuzz(*strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a test of a check whose last arguments are drawn, and the others fixtures."""

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(check).parameters.values())
        fixtures = parameters[: len(parameters) - len(strategies)]

        def test(examples: int, **values: Any) -> None:
            @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
            @given(st.tuples(*strategies))
            def run(drawn: tuple[Any, ...]) -> None:
                check(*values.values(), *drawn)

            run()

        examples = inspect.Parameter("examples", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        test.__signature__ = inspect.Signature([examples, *fixtures])  # type: ignore[attr-defined]
        return pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])(test)

    return decorate
