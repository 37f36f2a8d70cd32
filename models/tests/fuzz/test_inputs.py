"""A sample of the mutated checkpoints and chat templates; the slow run has many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from models.tests.fuzz.checkpoints import Checkpoints
from models.tests.fuzz.templates import Templates
from tests.fuzz.campaign import Failure, Handler, run_inputs

SEED = 20261122


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
    """Some inputs are taken: refusals alone would say nothing about what is read after them."""
    failures: list[Failure] = []
    counts: Counter[str] = Counter()
    for found in run_inputs(partial(handler, seed=SEED), count, tmp_path, failures.append):
        counts += found.counts
    assert not failures, failures[0]
    assert sum(counts.values()) == count and counts.keys() >= outcomes
