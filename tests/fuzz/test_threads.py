"""Random steps of threads. `FUZZ_COUNT` does more of them."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.threads import run_threads
from tests.fuzz.trial import SEED, count_of
from tests.support.hip_double.double import in_double


@in_double()
def test_threads_leave_nothing_behind(tmp_path: Path):
    assert run_threads(tmp_path, 6, SEED, count_of(600)) == []
