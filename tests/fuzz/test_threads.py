"""Random steps of threads, and interrupts. `FUZZ_COUNT` does more of them."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.threads import Outcome, run_interrupted, run_threads
from tests.fuzz.trial import SEED, count_of
from tests.support.hip_double.double import in_double


@in_double()
def test_threads_leave_nothing_behind(tmp_path: Path):
    done = run_threads(tmp_path, 6, SEED, count_of(600))
    assert done.faults() == []


@in_double()
def test_interrupts_leave_nothing_behind(tmp_path: Path):
    done = run_interrupted(tmp_path, count_of(80), SEED)
    assert done.faults() == []


def test_faults_are_told():
    done = Outcome(left={"event": (0, 2)}, errors={"KeyError: 1": 3})
    assert done.faults() == ["3 times: KeyError: 1", "event: 0 before, 2 after"]
