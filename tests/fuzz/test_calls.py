"""Memory does not grow over many calls over the double. `FUZZ_COUNT` makes more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.calls import EPOCHS, KINDS, Growth, Sample, make_calls
from tests.fuzz.trial import count_of
from tests.support.hip_double.double import in_double


@pytest.mark.slow
@in_double()
def test_nothing_grows(tmp_path: Path):
    growth = make_calls(tmp_path, count_of(600_000))
    assert len(growth.samples) == EPOCHS
    assert growth.faults() == [], growth.faults()


def sample(**changed: int) -> Sample:
    alive = dict.fromkeys(KINDS, 2) | {kind: changed[kind] for kind in changed.keys() & set(KINDS)}
    figures = {"resident": 1 << 26, "heap": 1 << 25, "blocks": 250_000, "allocated": 1 << 20}
    return Sample(alive=alive, **{name: changed.get(name, figure) for name, figure in figures.items()})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"resident": 80 << 20}, "resident grew"),
        ({"heap": 34 << 20}, "heap grew"),
        ({"blocks": 270_000}, "Python's allocations grew"),
        ({"stream": 3}, "objects of kind stream grew from 2 to 3"),
        ({"allocated": 4 << 20}, "allocated grew"),
    ],
)
def test_growth_is_found(changed: dict[str, int], words: str):
    growth = Growth(1, [sample()] * (EPOCHS - 1) + [sample(**changed)])
    assert [words in fault for fault in growth.faults()] == [True] * bool(words)
    early = Growth(1, [sample(**changed)] + [sample()] * (EPOCHS - 1))
    assert early.faults() == [], "caches fill at the start"
