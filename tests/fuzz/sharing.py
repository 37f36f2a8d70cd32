"""Builds side by side with one cache, which is empty at first: each must give what it gives alone, byte for byte."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from aot.cache.layered_cache import Cache, CompileCache
from aot.compile.jobs import CompiledKernel
from aot_bundle.verification import verify_bundle
from tests.support.building.builds import contents

from .building import Place, run, start
from .outcomes import Outcomes

WANTED = ("op=accumulate|row_sums", "op=row_sums|scale_segments", "op=accumulate|scale_segments|row_sums")
"""Manifests that overlap, as filters of small.yaml; each is built by several at once."""
AT_ONCE = 8


class _Shared(Place):
    """A place of its own but for the cache."""

    @property
    def cache(self) -> Path:
        return self.folder.parent / "shared-cache"


def share_cache(count: int, folder: Path, outcomes: Outcomes) -> Iterator[int]:
    """`count` times, `AT_ONCE` builds at once with one empty cache; yields how many rounds are done."""
    alone = {}
    for number, wanted in enumerate(WANTED):
        place = Place(folder / f"alone-{number}").make()
        status, said, _ = run(place, wanted)
        assert status == 0, said
        alone[wanted] = contents(place.bundle)
    for number in range(count):
        for fault in _round(folder / "round", alone):
            outcomes.add("", fault, f"round {number}")
        outcomes.add(f"{AT_ONCE} builds at once, each as it is alone")
        yield number + 1


def _round(folder: Path, alone: dict[str, dict[str, bytes]]) -> Iterator[str]:
    shutil.rmtree(folder, ignore_errors=True)
    work = [(_Shared(folder / str(number)).make(), WANTED[number % len(WANTED)]) for number in range(AT_ONCE)]
    builds = [(place, wanted, start(place, wanted)) for place, wanted in work]
    for place, wanted, build in builds:
        status, said = build.wait(), build.said
        build.close()
        if status:
            yield f"a build ended with status {status}: {said[-2000:]}"
        elif contents(place.bundle) != alone[wanted]:
            yield f"a build of {wanted} gave other bytes than it gives alone"
        else:
            yield from verify_bundle(place.bundle)
    yield from torn_entries(work[0][0].cache)


def torn_entries(cache: Path) -> Iterator[str]:
    """Entries of a cache of kernels that nobody can read, and files that are none."""
    kernels: Cache[CompiledKernel] = CompileCache(cache)
    for path in sorted(path for path in cache.rglob("*") if path.is_file()):
        if path.name.startswith("."):
            yield f"{path} was left behind"
        elif path.parent.parent.name == "v2" and kernels.get(path.name) is None:
            yield f"{path} is torn"
