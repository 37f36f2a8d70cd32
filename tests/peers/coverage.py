"""The page docs/explanation/coverage.md: what of the peers' tests the ops take, how, and what not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.peers.grids import Function
from tests.peers.rules import RULES, Contracts, Verdict, verdict

PAGE = Path(__file__).parents[2] / "docs/explanation/coverage.md"
Suites = Mapping[str, list[Function]]
Counts = Mapping[str, Counter[str]]
"""Combinations by what they are told apart by, and by suite."""

INTRO = """\
# Coverage of other libraries' tests

<!-- Written by `python -m tests.peers`. -->

The tests of other libraries say what their users call. This page counts the combinations of parameter values of their
test functions and scripts, and states for each what the ops of the shipped manifests do with it. `tests/peers/data` has
the functions, parameters and values, with the commits that they were read at, and `tests/peers/rules.py` the rules. A
rule looks for the argument, dtype or extent in the contract of the op. `python -m tests.peers read SUITE FOLDER`
compares the data with another checkout.

- *Directly*: an op takes the call, with views of its tensors and tables made on the host at most. A chain of ops counts
  as direct where the library documents the same steps, such as appending to a cache and then attention.
- *By a detour*: the result is had in another way, which costs time, memory or exactness.
- *Not*: no op computes it.

Left out are backward passes, dropout, checks of errors, compilers, several devices, and combinations that tests skip
themselves. A combination that asks for several things counts for the one that is hardest to have. Of {functions}
functions with {combinations:,} combinations, only one request of each combination is recorded: their numbers are upper
bounds of what is taken.

A seeded sample of the combinations runs on the emulator or on a GPU by the tolerances of the suites:
`pytest -m slow tests/peers`. Of 300 draws on the emulator (`PEERS_COUNT=100` with each `PEERS_SEED` of 101, 102 and
103), 296 were right and none was refused or wrong; for 4 no combination was small enough to run.
"""


def page(suites: Suites, ops: Contracts) -> str:
    """Return the whole page."""
    counts = count(suites, ops)
    detours = {request: RULES[request].detour for request in counts[Verdict.DETOUR]}
    plans = {request: str(RULES[request].needs or "") for request in counts[Verdict.NOT]}
    met = {request: str(rule.needs) for request, rule in RULES.items() if rule.verdict(ops) is Verdict.DIRECT}
    single = [item.count for functions in suites.values() for item in functions if item.counted]
    sections = [
        INTRO.format(functions=len(single), combinations=sum(single)),
        "## By suite\n",
        _table("Suite | Functions | Combinations | Directly | By a detour | Not", _by_suite(suites, counts)),
        "## Directly, by op\n",
        _table("Op | Combinations | Suites", _rows({f"`{op}`": n for op, n in counts[Verdict.DIRECT].items()})),
        *(["## Directly, by an argument\n", _table("Request | Taken by | Combinations | Suites",
           _rows(asking(suites, met), met))] if met else []),
        "## By a detour\n",
        _table("Request | Detour | Combinations | Suites", _rows(counts[Verdict.DETOUR], detours)),
        "## Not\n",
        "The second column names what would take the request, where an op or an argument is planned.\n",
        _table("Request | Planned | Combinations | Suites", _rows(counts[Verdict.NOT], plans)),
    ]  # fmt: skip
    return "\n".join(sections)


def count(suites: Suites, ops: Contracts) -> dict[Verdict, Counts]:
    """Count combinations by verdict, by the op or the request that decides, and by suite."""
    found: dict[Verdict, dict[str, Counter[str]]] = {kind: defaultdict(Counter) for kind in Verdict}
    for suite, functions in suites.items():
        for function in functions:
            for requests, combinations in function.classes().items():
                kind, request = verdict(function.op, requests, ops)
                taker = function.op or RULES[requests[0]].taker
                found[kind][taker if kind is Verdict.DIRECT else request or f"`{function.op}`"][suite] += combinations
    return found  # type: ignore[return-value]


def asking(suites: Suites, requests: Iterable[str]) -> Counts:
    """Count the combinations that ask for something, whatever else they ask for."""
    found: dict[str, Counter[str]] = {request: Counter() for request in requests}
    for suite, functions in suites.items():
        for function in functions:
            for asked, combinations in function.classes().items():
                for request in found.keys() & set(asked):
                    found[request][suite] += combinations
    return found


def _by_suite(suites: Suites, counts: Mapping[Verdict, Counts]) -> Iterator[str]:
    whole = {suite: [sum(n[suite] for n in counts[kind].values()) for kind in Verdict] for suite in suites}
    for suite, parts in sorted(whole.items(), key=lambda item: -sum(item[1])):
        yield _suite_row(suite, len(suites[suite]), parts)
    yield _suite_row("All", sum(map(len, suites.values())), [sum(parts) for parts in zip(*whole.values(), strict=True)])


def _suite_row(suite: str, functions: int, parts: list[int]) -> str:
    shares = [f"{part:,} ({part / sum(parts):.0%})" for part in parts]
    return " | ".join([suite, f"{functions:,}", f"{sum(parts):,}", *shares])


def _rows(counts: Counts, notes: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield rows, the most frequent first, with a note behind the name of each."""
    for name, suites in sorted(counts.items(), key=lambda item: (-item[1].total(), item[0])):
        among = ", ".join(sorted(suites, key=str.lower))
        yield " | ".join([name, *([notes[name]] if notes is not None else []), f"{suites.total():,}", among])


def _table(head: str, rows: Iterable[str]) -> str:
    numbers = ("Functions", "Combinations", "Directly", "By a detour", "Not")
    rule = "|".join("--:" if title in numbers else "---" for title in head.split(" | "))
    return "\n".join([f"| {head} |", f"|{rule}|", *(f"| {row} |" for row in rows)]) + "\n"
