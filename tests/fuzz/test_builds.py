"""Builds that are killed. `FUZZ_COUNT` kills more."""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="builds need the extra `build`")

from aot.write import atomic_install
from aot_runtime.folders import OpenFolder
from tests.fuzz import building, kills
from tests.fuzz.building import BUNDLE, Place, run
from tests.fuzz.kills import NEWER, kill_builds
from tests.fuzz.trial import count_of


@pytest.mark.slow
def test_killed_builds(tmp_path: Path):
    """Each way, with an empty cache and with a full one."""
    ended = [*kill_builds(count_of(24), tmp_path)]
    assert [fault for _, fault in ended if fault] == []
    assert 3 * sum("it was killed" in kind for kind, _ in ended) >= len(ended)


@pytest.mark.slow
def test_a_build_that_does_not_survive_a_kill_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The index placed first: until the code is there, the bundle does not open."""
    good = kills.prepare(tmp_path / "good")
    monkeypatch.setattr(kills, "prepare", lambda folder: good)
    monkeypatch.setattr(atomic_install, "sorted", partial(sorted, reverse=True), raising=False)
    monkeypatch.setattr(OpenFolder, "move", _slow_move)
    assert any("the bundle does not open" in fault for _, fault in kill_builds(60, tmp_path))


def _slow_move(self: OpenFolder, name: str, other: OpenFolder) -> None:
    (self.path / name).rename(other.path / name)
    time.sleep(0.05)


def test_a_build_that_hangs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(building, "LIMIT_S", 0.1)
    monkeypatch.setattr(building, "main", lambda words: time.sleep(60))
    assert run(Place(tmp_path).make(), NEWER)[0] == building.HUNG_STATUS


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path):
    """The error names the bundle that cannot be written, and nothing is left of it."""
    place = Place(tmp_path).make()
    assert run(place, NEWER)[0] == 0
    shutil.rmtree(place.bundle)
    status, said, _ = run(place, NEWER, largest_file=1000)
    assert status == 1 and f"{BUNDLE} cannot be written: File too large" in said and "Traceback" not in said
    assert not place.bundle.exists()
