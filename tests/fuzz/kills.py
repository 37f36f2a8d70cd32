"""Builds that are killed, at times spread evenly over their length, and those whose disk is full.

After each, the bundle that was there before still opens, or the new one does; and the next build gives, byte for byte,
what a build that nobody disturbed gives, and leaves nothing behind.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aot_bundle.verification import verify_bundle
from tests.support.building.builds import contents
from tests.support.processes import kill

from .building import Build, Place, leftovers, opened, run, start
from .trial import SEED

OLDER, NEWER = "op=accumulate", "op=accumulate|row_sums"
"""Filters of the bundle that is built first, and of the one whose build is killed: they share files, and both have
selftest vectors."""


@dataclass(frozen=True)
class Good:
    """Results of undisturbed builds: the ids of both bundles, and the files of the newer one. `cold` and `warm`:
    seconds of building the newer one with an empty and with a full cache."""

    older: str
    newer: str
    files: dict[str, bytes]
    cold: float
    warm: float
    place: Place
    """The older bundle."""
    full: Path
    """A cache of everything."""


def prepare(folder: Path) -> Good:
    """Build both bundles undisturbed."""
    older, newer = Place(folder / "older").make(), Place(folder / "newer").make()
    _built(older, OLDER)
    cold, warm = [], []
    for _ in range(3):
        shutil.rmtree(newer.folder)
        cold.append(_built(newer.make(), NEWER))
        shutil.rmtree(newer.bundle)
        warm.append(_built(newer, NEWER))
    return Good(
        opened(older.bundle), opened(newer.bundle), contents(newer.bundle), min(cold), min(warm), older, newer.cache
    )


def _built(place: Place, wanted: str) -> float:
    status, said, seconds = run(place, wanted)
    assert status == 0, said
    return seconds


Disturbance = Callable[[Good, Place, float, bool], tuple[str, str]]
"""Runs and disturbs a build, `share` of the way from its start to its end, with an empty cache or a full one; returns
(what became of it, what is wrong or nothing)."""


def _kill(pick: Callable[[Build], list[int]], whom: str) -> Disturbance:
    def disturb(good: Good, place: Place, share: float, cold: bool) -> tuple[str, str]:
        build = start(place, NEWER)
        deadline = build.started + share * (good.cold if cold else good.warm)
        while (left := deadline - time.monotonic()) > 0:
            build.look()
            time.sleep(min(0.01, left))
        build.look()
        for pid in pick(build):
            kill(pid)
        status = build.wait()
        said = build.said
        build.close()
        if alive := build.wait_for_processes():
            return whom, f"processes are left: {alive}"
        if status not in (0, 1, 2, -signal.SIGKILL) or "Traceback" in said:
            return whom, f"exit status {status}: {said[-2000:]}"
        how = "it built all the same" if status == 0 else "it was killed" if status < 0 else "it said why and ended"
        return f"kill {whom}: {how}", ""

    return disturb


def _parent(build: Build) -> list[int]:
    return [build.pid]


def _child(build: Build) -> list[int]:
    return build.look()[-1:]


def _all(build: Build) -> list[int]:
    return [*_parent(build), *build.look()]


def _small_disk(good: Good, place: Place, share: float, cold: bool) -> tuple[str, str]:
    """No file can be longer than a share of the longest that a build writes, as if the disk were full then."""
    status, said, _ = run(place, NEWER, largest_file=int(share * max(map(len, good.files.values()))))
    if status not in (0, 1) or "Traceback" in said:
        return "full disk", f"exit status {status}: {said[-2000:]}"
    return f"full disk: {'it fitted' if status == 0 else 'it said why and ended'}", ""


WAYS: dict[str, Disturbance] = {
    "parent": _kill(_parent, "the build"),
    "child": _kill(_child, "a child of it"),
    "all": _kill(_all, "the build and its children"),
    "disk": _small_disk,
}
_TURNS = ("parent", "child", "all", "parent", "all", "disk")


def kill_builds(count: int, folder: Path) -> Iterator[tuple[str, str]]:
    """Disturb `count` builds; yields what became of each, and what is wrong or nothing."""
    good = prepare(folder / "good")
    rounds = -(-count // (2 * len(_TURNS)))
    for number in range(count):
        turn, way = divmod(number, len(_TURNS))
        place, cold = Place(folder / "now"), turn % 2 == 0
        # Evenly spread for each way and each cache.
        share = (turn // 2 + random.Random(f"{SEED}:{number}").random()) / rounds
        _lay_out(good, place, cold)
        what, fault = WAYS[_TURNS[way]](good, place, share, cold)
        fault = fault or _afterwards(good, place)
        label = f"number {number} of seed {SEED}, {_TURNS[way]} at {share:.3f}"
        yield f"{what} ({'empty' if cold else 'full'} cache)", fault and f"{label}: {fault}"


def _lay_out(good: Good, place: Place, cold: bool) -> None:
    shutil.rmtree(place.folder, ignore_errors=True)
    place.make()
    shutil.copytree(good.place.output, place.output, dirs_exist_ok=True)
    if not cold:
        shutil.copytree(good.full, place.cache, dirs_exist_ok=True)


def _afterwards(good: Good, place: Place) -> str:
    """Faults of the folder that a build left, and of what the next build makes of it."""
    try:
        found = opened(place.bundle)
    except Exception as error:
        return f"the bundle does not open: {type(error).__name__}: {error}"
    if found not in (good.older, good.newer):
        return f"the bundle has another id: {found}"
    status, said, _ = run(place, NEWER)
    if status:
        return f"the next build ended with status {status}: {said[-2000:]}"
    files = contents(place.bundle)
    if files != good.files:
        differ = sorted(name for name in files.keys() | good.files.keys() if files.get(name) != good.files.get(name))
        return f"the next build gave other files: {differ}"
    faults = verify_bundle(place.bundle)
    left = leftovers(place)
    return "; ".join([*faults, *([f"left behind: {left}"] if left else [])])
