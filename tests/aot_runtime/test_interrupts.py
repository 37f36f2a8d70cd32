"""After an interrupt anywhere in an open or a call, the next call is right."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from aot_runtime import Bundle, open_bundle
from tests.support.interrupts import interrupted_at

X = np.arange(12, dtype=np.float32).reshape(2, 6)


@pytest.mark.parametrize("seed", range(12))
def test_a_call_after_an_interrupt(small_bundle: Path, seed: int):
    source = random.Random(seed)
    opened = open_bundle(small_bundle, "emulator")
    expected = open_bundle(small_bundle, "emulator").affine(X)
    places: list[str | None] = []

    def work(bundle: Bundle | None = None) -> None:
        (bundle or open_bundle(small_bundle, "emulator")).affine(X)

    for most in (200, 2000, 20_000):
        places.append(interrupted_at(lambda: work(opened), source.randrange(1, most)))
        places.append(interrupted_at(work, source.randrange(1, most)))
        for bundle in (opened, open_bundle(small_bundle, "emulator")):
            assert np.array_equal(bundle.affine(X), expected), places
    assert any(places)
