"""Builds that are killed, and builds side by side: a few. `python -m tests.fuzz kills` and `sharing` do many."""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="builds need the extra `build`")

from aot.cache.layered_cache import CompileCache
from aot.write import atomic_install
from aot_runtime.folders import OpenFolder
from tests.fuzz import building, kills
from tests.fuzz.building import BUNDLE, Place, run
from tests.fuzz.kills import NEWER, kill_builds
from tests.fuzz.outcomes import Outcomes
from tests.fuzz.sharing import share_cache, torn_entries


@pytest.mark.slow
def test_killed_builds(tmp_path: Path):
    """Each way, with an empty cache and with a full one."""
    outcomes = Outcomes()
    assert list(kill_builds(24, 1, tmp_path, outcomes)) == list(range(1, 25))
    assert outcomes.failures == [] and outcomes.total == 24
    assert sum(count for kind, count in outcomes.counts.items() if "it was killed" in kind) >= 8


@pytest.mark.slow
def test_a_build_that_does_not_survive_a_kill_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The index placed first: until the code is there, the bundle does not open."""
    outcomes = Outcomes()
    good = kills.prepare(tmp_path / "good")
    monkeypatch.setattr(kills, "prepare", lambda folder: good)
    monkeypatch.setattr(atomic_install, "sorted", partial(sorted, reverse=True), raising=False)
    monkeypatch.setattr(OpenFolder, "move", _slow_move)
    list(kill_builds(60, 1, tmp_path, outcomes))
    assert any("the bundle does not open" in failure for failure in outcomes.failures)


def _slow_move(self: OpenFolder, name: str, other: OpenFolder) -> None:
    (self.path / name).rename(other.path / name)
    time.sleep(0.05)


@pytest.mark.slow
def test_builds_with_one_cache(tmp_path: Path):
    outcomes = Outcomes()
    assert list(share_cache(1, tmp_path, outcomes)) == [1]
    assert outcomes.failures == []


def test_a_build_that_hangs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(building, "LIMIT_S", 0.1)
    monkeypatch.setattr(building, "main", lambda words: time.sleep(60))
    assert run(Place(tmp_path).make(), NEWER)[0] == building.HUNG_STATUS


def test_torn_entries_are_found(tmp_path: Path):
    cache = CompileCache(tmp_path)
    (tmp_path / "v2" / "ab").mkdir(parents=True)
    (tmp_path / "v2" / "ab" / "abcd").write_bytes(b"half of an entry")
    (tmp_path / "v2" / "ab" / ".new-x").touch()
    assert [fault.rpartition(" ")[2] for fault in torn_entries(cache.path)] == ["behind", "torn"]


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path):
    """The error names the bundle that cannot be written, and nothing is left of it."""
    place = Place(tmp_path).make()
    assert run(place, NEWER)[0] == 0
    shutil.rmtree(place.bundle)
    status, said, _ = run(place, NEWER, largest_file=1000)
    assert status == 1 and f"{BUNDLE} cannot be written: File too large" in said and "Traceback" not in said
    assert not place.bundle.exists()
