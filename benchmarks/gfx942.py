"""Modelled times of our kernels for gfx942 beside those of peers: same compiler, same emulator, same model.

    python benchmarks/gfx942.py fetch PEERS
    python benchmarks/gfx942.py run PEERS --results gfx942.jsonl --only attention
    python benchmarks/gfx942.py table PEERS --results gfx942.jsonl

The peers are ROCm's perf-kernels, AITER's kernels of Triton, and Triton's tutorials. Their files are not kept here:
`fetch` writes them to a folder, each of the commit and with the hash that `benchmarks/peers/sources.yaml` has. They are
adopted by the manifests beside it, with their publishers' own configs: of a list for an autotuner the one that the
model takes for the fastest stands for it. No GPU is needed, and none is asked: docs/timing.md says what a modelled time
is worth. A kernel takes seconds to minutes; what is known is kept in the file of results.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from measure import machine, table, versions
from peers.building import Built, Call, build, manifest_of
from peers.cases import OURS, PEERS, Case, cases
from peers.modelling import Modelled, Results
from peers.sources import SourceError, check, fetch

HEADINGS = ("", "config", "µs", "of ours", "slots/MFMA", "LDS/MFMA", "conflicts", "loaded", "memory", "matrix",
            "spills")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    fetching = commands.add_parser("fetch", help="write the peers' files to a folder")
    fetching.add_argument("peers", type=Path)
    fetching.add_argument("--clone", nargs=2, action="append", default=[], metavar=("REPOSITORY", "FOLDER"),
                          help="a git clone to take a repository's files from, in place of GitHub")  # fmt: skip
    fetching.set_defaults(run=run_fetch)
    for name, run, text in (
        ("run", run_cases, "model what is not known yet, and show each case"),
        ("table", run_table, "a row for each case that is known as a whole"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("peers", type=Path, help="the folder that `fetch` wrote to")
        command.add_argument("--results", type=Path, default=Path("gfx942.jsonl"), metavar="FILE",
                             help="where modelled times are kept (default: %(default)s)")  # fmt: skip
        command.add_argument("--only", nargs="+", default=[], metavar="TEXT",
                             help="cases with all of these in their group or name (default: all)")  # fmt: skip
        command.add_argument("--who", nargs="+", choices=[OURS, *PEERS], default=[OURS, *PEERS],
                             help="whose kernels (default: everyone's)")  # fmt: skip
        command.set_defaults(run=run)
    options = parser.parse_args()
    try:
        options.run(options)
    except SourceError as error:
        sys.exit(f"gfx942.py: {error}")


def run_fetch(options: argparse.Namespace) -> None:
    clones = {repository: Path(folder) for repository, folder in options.clone}
    print(f"{fetch(options.peers, clones)} files are in {options.peers}")


def run_cases(options: argparse.Namespace) -> None:
    check(options.peers)
    print(f"{machine()}; {versions('triton', 'numpy', 'numba')}\nTimes are modelled, not measured.", flush=True)
    results = Results(options.results)
    for case, calls, built in prepared(options):
        print(f"\n{show(case, model(case, calls, built, results))}", flush=True)


def run_table(options: argparse.Namespace) -> None:
    """Builds come from the compiler's cache, and times from the file of results."""
    check(options.peers)
    results = Results(options.results)
    print(summary([(case, model(case, calls, built, results)) for case, calls, built in prepared(options)]))


# Work

Ways = dict[str, list[Call]]


def prepared(options: argparse.Namespace) -> list[tuple[Case, Ways, dict[Call, Built]]]:
    """The cases that are asked for, with the calls of each way, built."""
    found = [case for case in cases() if all(text in f"{case.group}: {case.name}" for text in options.only)]
    if not found:
        sys.exit(f"gfx942.py: no case has {' and '.join(options.only)} in its group or name")
    calls = [
        {way.who: [Call(way, entry) for entry in way.calls()] for way in case.ways if way.who in options.who}
        for case in found
    ]
    built = build_all([call for by_who in calls for each in by_who.values() for call in each], options)
    return [(case, by_who, built) for case, by_who in zip(found, calls, strict=True)]


def build_all(calls: Sequence[Call], options: argparse.Namespace) -> dict[Call, Built]:
    work = options.results.parent / "gfx942-bundles"
    found: dict[Call, Built] = {}
    for name, group in groupby(sorted(calls, key=lambda call: call.way.manifest), key=lambda call: call.way.manifest):
        each = list(group)
        print(f"building {len(each)} calls of {name}", file=sys.stderr, flush=True)
        found |= build(each, manifest_of(each[0].way, options.peers, work), work)
    return found


def model(case: Case, calls: Ways, built: dict[Call, Built], results: Results) -> dict[str, Modelled]:
    """The best of each way's configs."""
    found = {}
    for who, each in calls.items():
        modelled = []
        for number, call in enumerate(each):
            modelled.append(results.of(call, built[call]))
            print(f"{case.name}: {who} {number}: {describe(modelled[-1])}", file=sys.stderr, flush=True)
        found[who] = min(modelled, key=lambda one: one.seconds)
    return found


# Words


def describe(found: Modelled) -> str:
    return found.reason or f"{found.seconds * 1e6:.1f} µs, {found.config}"


def show(case: Case, found: dict[str, Modelled]) -> str:
    ours = found.get(OURS)
    rows = []
    for who, one in found.items():
        ratio = f"{one.seconds / ours.seconds:.2f}" if ours and who != OURS else ""
        cells = [f"{one.seconds * 1e6:.1f}", ratio, f"{one.slots:.1f}", f"{one.lds:.2f}", f"{one.conflicts:.0%}",
                 _size(one.loaded), _size(one.memory), f"{one.matrix:.0%}", str(one.spills)]  # fmt: skip
        rows.append([who, one.reason or one.config, *cells])
    return f"{case.group}: {case.name}{_rate(case, ours)}\n{table(HEADINGS, rows)}"


def _rate(case: Case, ours: Modelled | None) -> str:
    if ours is None or math.isinf(ours.seconds):
        return ""
    if case.flops:
        return f"; ours {case.flops / ours.seconds / 1e12:.0f} TFLOP/s"
    return f"; ours {case.bytes / ours.seconds / 1e9:.0f} GB/s"


def _size(nbytes: float) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"


def summary(found: Sequence[tuple[Case, dict[str, Modelled]]]) -> str:
    """A row of each case, and the geometric mean of the best peer's time over ours, by group and of all."""
    lines = ["| Case | ours, µs | rate | matrix pipes | slots/MFMA, ours and theirs | best peer | its µs | over ours |",
             "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    ratios: dict[str, list[float]] = {}
    for case, by_who in found:
        ours = by_who[OURS]
        who, best = min(((who, one) for who, one in by_who.items() if who != OURS), key=lambda item: item[1].seconds)
        ratios.setdefault(case.group, []).append(best.seconds / ours.seconds)
        rate = (f"{case.flops / ours.seconds / 1e12:.0f} TFLOP/s" if case.flops
                else f"{case.bytes / ours.seconds / 1e9:.0f} GB/s")  # fmt: skip
        matrix = f"{ours.matrix:.0%}" if case.flops else "-"
        slots = f"{ours.slots:.1f}, {best.slots:.1f}" if ours.slots and best.slots else "-"
        lines.append(f"| {case.group}: {case.name} | {ours.seconds * 1e6:.1f} | {rate} | {matrix} | {slots} | {who} "
                     f"| {best.seconds * 1e6:.1f} | {best.seconds / ours.seconds:.2f} |")  # fmt: skip
    lines += ["", *(f"{group}: {_mean(values)}" for group, values in ratios.items())]
    if len(ratios) > 1:
        lines.append(f"all: {_mean([value for values in ratios.values() for value in values])}")
    return "\n".join(lines)


def _mean(values: Sequence[float]) -> str:
    mean = math.exp(sum(math.log(value) for value in values) / len(values))
    slower = sum(value < 1 for value in values)
    return f"geometric mean {mean:.2f} of {len(values)}; the best peer is faster in {slower}"


if __name__ == "__main__":
    main()
