"""Modelled times of our kernels for gfx942 beside those of peers, with the same compiler, emulator and model.

    python benchmarks/gfx942.py fetch PEERS
    python benchmarks/gfx942.py run PEERS --results gfx942.jsonl --only attention
    python benchmarks/gfx942.py table PEERS --results gfx942.jsonl

The peers are ROCm's perf-kernels, AITER's kernels of Triton, and Triton's tutorials. Their files are not in this
repository: `fetch` writes them to a folder, at the commits and with the hashes of `benchmarks/peers/sources.yaml`. The
manifests beside it use them with their publishers' configs. Of an autotuner's list, the config that the model finds
fastest is used. No GPU is needed; docs/timing.md says how far to trust modelled times. A kernel takes seconds to
minutes. Results are kept in a file.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
        command.add_argument("--few", type=int, metavar="N",
                             help="of each list of configs just the N that are the fastest for the first case of the "
                             "same kind (default: all)")  # fmt: skip
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
    for case, found in modelled(options):
        print(f"\n{show(case, found)}", flush=True)


def run_table(options: argparse.Namespace) -> None:
    """Builds come from the compiler's cache, and times from the file of results."""
    check(options.peers)
    print(summary(list(modelled(options))))


# Work

Ways = dict[str, list[Call]]


def modelled(options: argparse.Namespace) -> Iterator[tuple[Case, dict[str, Modelled]]]:
    """Return the cases that are asked for, with the best of each way's configs."""
    wanted = [case for case in cases() if all(text in f"{case.group}: {case.name}" for text in options.only)]
    if not wanted:
        sys.exit(f"gfx942.py: no case has {' and '.join(options.only)} in its group or name")
    results = Results(options.results)
    if options.few is None:
        yield from ((case, fastest(timed)) for case, timed in all_modelled(wanted, results, options))
        return
    kinds = {case.kind for case in wanted}
    first = {case.kind: case for case in reversed(list(cases())) if case.kind in kinds}
    leading = [case if case in wanted else with_lists_alone(case) for case in first.values()]
    ranked = {}
    for case, timed in all_modelled(leading, results, options):
        for who, each in timed.items():
            numbers = [call.entry.get("scalars", {}).get("config") for call, _ in sorted(each, key=_seconds)]
            ranked[case.kind, who] = tuple(numbers[: options.few])
        if case in wanted:
            yield case, fastest(timed)
    others = [narrowed(case, ranked) for case in wanted if case not in first.values()]
    yield from ((case, fastest(timed)) for case, timed in all_modelled(others, results, options))


def with_lists_alone(case: Case) -> Case:
    return replace(case, ways=tuple(way for way in case.ways if way.configs))


def narrowed(case: Case, ranked: Mapping[tuple[str, str], tuple[int, ...]]) -> Case:
    """Return the case with those configs of each way's list that stand for its kind."""
    ways = (
        replace(way, configs=ranked.get((case.kind, way.who), way.configs)) if way.configs else way for way in case.ways
    )
    return replace(case, ways=tuple(ways))


Timed = dict[str, list[tuple[Call, Modelled]]]
"""Map each contender to the calls of its configs, and their times."""


def fastest(timed: Timed) -> dict[str, Modelled]:
    return {who: min(each, key=_seconds)[1] for who, each in timed.items()}


def _seconds(pair: tuple[Call, Modelled]) -> float:
    return pair[1].seconds


def all_modelled(chosen: Iterable[Case], results: Results, options: argparse.Namespace) -> Iterator[tuple[Case, Timed]]:
    calls = [
        (case, {way.who: [Call(way, entry) for entry in way.calls()] for way in case.ways if way.who in options.who})
        for case in chosen
    ]
    built = build_all([call for _, by_who in calls for each in by_who.values() for call in each], options)
    for case, by_who in calls:
        timed: Timed = {who: [] for who in by_who}
        for who, each in by_who.items():
            for call in each:
                timed[who].append((call, results.of(call, built[call])))
                print(f"{case.name}: {who}: {describe(timed[who][-1][1])}", file=sys.stderr, flush=True)
        yield case, timed


def build_all(calls: Sequence[Call], options: argparse.Namespace) -> dict[Call, Built]:
    work = options.results.parent / "gfx942-bundles"
    found: dict[Call, Built] = {}
    for name, group in groupby(sorted(calls, key=lambda call: call.way.manifest), key=lambda call: call.way.manifest):
        each = list(group)
        print(f"building {len(each)} calls of {name}", file=sys.stderr, flush=True)
        found |= build(each, manifest_of(each[0].way, options.peers, work), work)
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
    """Return a row of each case, and the geometric mean of the best peer's time over ours, by group and of all."""
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
