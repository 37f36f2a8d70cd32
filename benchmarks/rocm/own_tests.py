"""rocBLAS's own test program: 1.26 million tests, of which one of each function is drawn."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_CATEGORIES = re.compile("quick|pre_checkin")
"""AMD's tests that take seconds on a GPU at most."""
_PASSED, _FAILED, _BEGUN = "[  PASSED  ] ", "[  FAILED  ] ", re.compile(r"^\[-+\] 1 test from (\S+)$", re.MULTILINE)
_COUNT = re.compile(re.escape(_PASSED) + r"(\d+) tests?\.")


def listed(output: str) -> list[str]:
    """Return the names of tests from the output of `--gtest_list_tests`."""
    found, suite = [], ""
    for line in output.splitlines():
        name = line.partition("#")[0].strip()
        if not line.startswith(" "):
            suite = name if name.endswith(".") else ""
        elif suite and name:
            found.append(suite + name)
    return found


def drawn(names: Iterable[str], seed: int) -> list[str]:
    """Draw a test of each suite, the same for the same seed."""
    suites: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        if _CATEGORIES.search(name):
            suites[name.partition(".")[0]].append(name)
    rng = random.Random(f"rocblas {seed}")
    return [rng.choice(suite) for _, suite in sorted(suites.items())]


@dataclass(frozen=True)
class Outcome:
    """Tests that passed, and the names of those that did not."""

    passed: int
    failed: Sequence[str]


def outcome(output: str) -> Outcome:
    """Read the output of a run. If the program did not get to its end, the suite that it was in has failed."""
    if count := _COUNT.search(output):
        failed = (line.removeprefix(_FAILED) for line in output.splitlines() if line.startswith(f"{_FAILED}_"))
        return Outcome(int(count[1]), sorted({line.partition(",")[0].partition(" (")[0] for line in failed}))
    begun = _BEGUN.findall(output)
    return Outcome(max(len(begun) - 1, 0), begun[-1:] or ["the program did not start"])
