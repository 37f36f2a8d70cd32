"""Memory does not grow over many calls over the double. `FUZZ_COUNT` makes more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.calls import EPOCHS, make_calls
from tests.fuzz.trial import count_of
from tests.support.hip_double.double import in_double


@pytest.mark.slow
@in_double()
def test_nothing_grows(tmp_path: Path):
    growth = make_calls(tmp_path, count_of(600_000))
    assert len(growth.samples) == EPOCHS
    assert growth.faults() == [], growth.faults()
