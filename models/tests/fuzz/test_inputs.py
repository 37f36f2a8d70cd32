"""A sample of the mutated checkpoints and chat templates; the slow run has many."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from models.tests.fuzz.checkpoints import Checkpoints
from models.tests.fuzz.templates import Templates
from tests.fuzz.trial import SEED, Handler, count_of, try_inputs


@pytest.mark.parametrize(
    ("handler", "count", "outcomes"),
    [
        (Checkpoints, 2000, {"refused", "taken"}),
        (Templates, 12, {"refused by Jinja", "taken"}),
        pytest.param(Checkpoints, 100_000, {"refused", "taken"}, marks=pytest.mark.slow),
        pytest.param(Templates, 300, {"refused: takes more than 0.3 s", "refused: MiB"}, marks=pytest.mark.slow),
    ],
)
def test_a_sample(tmp_path: Path, handler: Callable[[Path, int], Handler], count: int, outcomes: set[str]):
    """Some inputs must be accepted, or later stages would not be tested."""
    counts = try_inputs(partial(handler, seed=SEED), count_of(count), tmp_path)
    assert sum(counts.values()) == count_of(count) and counts.keys() >= outcomes
