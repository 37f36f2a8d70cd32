"""Random calls of ops: the distribution of their speed beside a peer's, and the worst of them.

    aotbuild --arch sm_90 manifests/gemm.yaml manifests/attention.yaml
    python benchmarks/random_calls.py matmul dist/gemm-sm_90 --seed 5 --count 100
    python benchmarks/random_calls.py all dist/gemm-sm_90 dist/attention-sm_90 --within 15 --results calls.jsonl

Extents are log-uniform; dtypes, layouts and flags are drawn, too. A seed gives the same calls on every machine whose
bundles have the same ops. `all` runs the families that the bundles have. Families, and their peers:

    matmul              torch.mm, or torch.addmm with a bias
    integer, fp8        torch._int_mm, torch._scaled_mm with scales by tensor or by row
    block_scaled        torch._scaled_mm with scales of blocks
    batched             torch.bmm
    linear              weights of 4 and 8 bits, prepacked or not; torch.mm of 16-bit weights
    lora                torch's three products
    attention           the fastest of torch's fused kernels
    attention_features  soft-cap, ALiBi or a bias; our own call without it
    attention_fp8       our own call of 16 bits and the same shape
    decode, decode_8_bits, decode_int4, decode_pages
                        caches of 16, 8 and 4 bits, and pages of 16; a copy of the bytes that are read
    mla                 latent attention; the slower of a copy and FlashMLA's published rate
    rows                softmax, rms_norm, layer_norm and silu_mul; a copy of as many bytes
    experts             the slower of a copy and the rate of a large product

Where torch refuses a product, the peer is torch's at the next multiples of 128, or else our own there, scaled by the
larger of the times that operations and bytes need. The published rate of FlashMLA is scaled by the number of
multiprocessors. Both of a pair are captured in graphs of several calls with tensors of their own, more than caches hold
if there is room. Ways take turns, round by round; medians are shown. A part of every result is held to float64: its
largest error is at most twice that of the op's reference in the same dtypes, and a floor.

`--modelled` needs no GPU: the peer is the same op at the nearest aligned extents, scaled by work, both of them timed by
the emulator's model. Aligned extents are multiples of 64 or, where these differ by more than an eighth, of 32, 16 or 8.
With `--plan`, calls are only planned, which shows the variants that they get.

The first table has a row for each family: the distribution of the peer's time over ours, what is asked of it, and how
many results were right. `--print` makes the tables of the results of an earlier run, even of one that was cut off.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from families import FAMILIES
from families.family import FLOAT8, Drawn, Family, Offer, Peaks, launches, plan, tensor_bytes
from measure import ROOT, machine, table

from aot_runtime import AotError, Bundle, open_bundle
from aot_runtime.contract.arch import ARCHITECTURES

BEYOND = 1.5
"""A modelled call may take this many times as long as its aligned neighbour, scaled by work."""
LATENCY_S = 5e-6
"""Times up to this are mostly latency, and are not scaled by work."""
MODELLED_PEAKS = Peaks(4e12, 6e14)
"""Rates that decide by which of operations and bytes modelled times are scaled."""


@dataclass(frozen=True)
class Timed:
    """A call that was timed; a line of the results.

    Attributes:
        ours, peer: seconds; NaN if there is none.
        fault: a wrong result or an error, in words.
        checked: its result was compared with float64.
    """

    family: str
    seed: int
    number: int
    group: str
    call: str
    launched: str = ""
    flops: float = 0.0
    nbytes: float = 0.0
    ours: float = math.nan
    peer: float = math.nan
    peer_name: str = ""
    fault: str = ""
    checked: bool = False

    @property
    def ratio(self) -> float:
        return self.peer / self.ours


Time = Callable[[Family, Drawn], Mapping[str, Any]]
"""Times a call. Returns fields of a `Timed`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", nargs="?", default="all", metavar="FAMILY",
                        help="one of these, several with commas, or all (default: %(default)s)")  # fmt: skip
    parser.add_argument("bundles", type=Path, nargs="*", metavar="BUNDLE", help="bundles that have the ops")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--count", type=int, default=100, help="calls of each family (default: %(default)s)")
    parser.add_argument("--within", type=float, default=math.inf, metavar="SECONDS",
                        help="begin no call of a family later than this (default: no limit)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each way (default: %(default)s)")
    parser.add_argument("--worst", type=int, default=20, help="calls that are listed (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="run calls with this in their group or text (default: all that are drawn)")  # fmt: skip
    parser.add_argument("--results", type=Path, metavar="FILE", help="append a line of JSON for each call, at once")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--modelled", action="store_true", help="model times of an AMD GPU on the emulator")
    ways.add_argument("--plan", action="store_true", help="print the launches of each call, and run none")
    ways.add_argument("--print", type=Path, metavar="FILE", dest="printed", help="print the tables of earlier results")
    options = parser.parse_args()
    try:
        run(options)
    except AotError as error:
        sys.exit(f"random_calls.py: {error}")


def run(options: argparse.Namespace) -> None:
    if options.printed:
        found = [Timed(**json.loads(line)) for line in options.printed.read_text().splitlines()]
        print(report(found, options.worst))
        return
    bundles, timer = (emulated if options.modelled or options.plan else on_gpu)(options)
    offer = offered(bundles)
    names = chosen(options.family, offer)
    found = []
    for name in names:
        print(f"{name}: seed {options.seed}", flush=True)
        if options.plan:
            print(table(("call", "group", "launches"), planned(options, bundles, offer, name)))
            continue
        for timed in timings(options, bundles, offer, name, timer):
            found.append(timed)
            if options.results:
                with options.results.open("a") as file:
                    file.write(f"{json.dumps(asdict(timed))}\n")
    if options.plan:
        return
    print(f"\n{report(found, options.worst)}")
    if options.modelled:
        print(f"\nbeyond {BEYOND} x the aligned neighbour: {sum(1 / timed.ratio > BEYOND for timed in found)}")
    if faults := [timed for timed in found if timed.fault]:
        sys.exit("\n".join(f"{timed.family} {timed.number}: {timed.call}: {timed.fault}" for timed in faults))


def offered(bundles: Mapping[str, Bundle]) -> Offer:
    arch = next(iter(bundles.values())).index.target.arch
    return Offer(frozenset(bundles), FLOAT8.get(ARCHITECTURES[arch].fp8, ""))


def chosen(text: str, offer: Offer) -> list[str]:
    """Return the families that are named, or all that the bundles have."""
    if text == "all":
        return [name for name, family in FAMILIES.items() if family.within(offer)]
    names = text.split(",")
    for name in names:
        if name not in FAMILIES:
            sys.exit(f"random_calls.py: unknown family '{name}'; known: all, {', '.join(FAMILIES)}")
        if not FAMILIES[name].within(offer):
            family = FAMILIES[name]
            wanted = " and ".join([" or ".join(family.ops), *family.needs])
            sys.exit(f"random_calls.py: {name} needs bundles with {wanted}")
    return names


def calls(options: argparse.Namespace, offer: Offer, name: str) -> Iterator[tuple[int, Drawn]]:
    """Draw the calls of a family, with their numbers, as long as there is time."""
    begun = time.monotonic()
    for number in range(options.count):
        if time.monotonic() - begun > options.within:
            return
        drawn = FAMILIES[name].drawn(offer, options.seed, number)
        if options.only in f"{drawn.group}: {drawn.call}":
            yield number, drawn


def timings(
    options: argparse.Namespace, bundles: Mapping[str, Bundle], offer: Offer, name: str, timer: Time
) -> Iterator[Timed]:
    for number, drawn in calls(options, offer, name):
        call, bundle = drawn.call, bundles[drawn.call.op]
        timed = Timed(name, options.seed, number, drawn.group, str(call), flops=call.flops)
        try:
            decision = plan(bundle, call)
            nbytes = tensor_bytes(decision) if call.nbytes is None else call.nbytes
            timed = replace(timed, launched=launches(bundle, call, decision), nbytes=nbytes)
            yield replace(timed, **timer(FAMILIES[name], drawn))
        except Exception as error:  # one call must not end a run on a GPU
            yield replace(timed, fault=f"failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        if sys.stderr.isatty():
            print(f"\r{name} {number + 1} of {options.count}", end="", file=sys.stderr, flush=True)


def planned(options: argparse.Namespace, bundles: Mapping[str, Bundle], offer: Offer, name: str) -> list[list[str]]:
    """Return rows of calls and their launches, or the reasons for which they are refused."""
    rows = []
    for _, drawn in calls(options, offer, name):
        bundle = bundles[drawn.call.op]
        try:
            text = launches(bundle, drawn.call, plan(bundle, drawn.call))
        except AotError as error:
            text = f"refused: {error}"
        rows.append([str(drawn.call), drawn.group, text])
    return rows


# Reports


def report(found: Sequence[Timed], worst: int) -> str:
    """Return the table of families, and of each family its groups and its worst calls."""
    names = [name for name in FAMILIES if any(timed.family == name for timed in found)]
    headings = ("peer / ours", "calls", "median", "5th percentile", "worst", "asked", "right")
    lines = []
    for name in names:
        own = [timed for timed in found if timed.family == name]
        checked = [timed for timed in own if timed.checked]
        right = f"{sum(not timed.fault for timed in checked)} of {len(checked)}" if checked else "-"
        lines.append([FAMILIES[name].title, *_distribution(own), str(FAMILIES[name].asked), right])
    parts = [table(headings, lines)]
    for name in names:
        parts.append(f"\n{family_report(name, [timed for timed in found if timed.family == name], worst)}")
    return "\n".join(parts)


def family_report(name: str, found: Sequence[Timed], worst: int) -> str:
    groups = sorted({timed.group for timed in found})
    lines = [[group, *_distribution([timed for timed in found if timed.group == group])] for group in groups]
    known = [timed for timed in found if not math.isnan(timed.ratio)]
    rows = [
        [timed.call, f"{timed.flops / timed.ours / 1e12:.1f}", f"{timed.nbytes / timed.ours / 1e12:.2f}",
         f"{timed.ours * 1e6:.1f}", f"{timed.peer * 1e6:.1f}", timed.peer_name, f"{timed.ratio:.2f}", timed.launched]
        for timed in sorted(known, key=lambda timed: timed.ratio)[:worst]
    ]  # fmt: skip
    distributions = table((name, "calls", "median", "5th percentile", "worst"), lines)
    headings = (f"worst of {name}", "TFLOP/s", "TB/s", "µs", "peer µs", "", "ratio", "launches")
    return f"{distributions}\n\n{table(headings, rows)}"


def _distribution(found: Sequence[Timed]) -> list[str]:
    ratios = sorted(timed.ratio for timed in found if not math.isnan(timed.ratio))
    if not ratios:
        return ["0", "-", "-", "-"]
    values = (statistics.median(ratios), ratios[len(ratios) // 20], ratios[0])
    return [str(len(ratios)), *(f"{value:.2f}" for value in values)]


# Devices


def on_gpu(options: argparse.Namespace) -> tuple[Mapping[str, Bundle], Time]:
    from families.measured import Gpu
    from on_gpu import heading, require_torch

    torch = require_torch()
    sys.path.append(str(ROOT))  # for the references, which are modules of the checkout
    opened = [open_bundle(path) for path in options.bundles]
    bundles = by_op(opened)
    print(heading(opened[0].device))
    gpu = Gpu(torch, bundles, options.rounds)

    def measure(family: Family, drawn: Drawn) -> Mapping[str, Any]:
        try:
            return {**asdict(gpu.measure(family, drawn)), "checked": True}
        finally:
            gpu.release()

    return bundles, measure


def emulated(options: argparse.Namespace) -> tuple[Mapping[str, Bundle], Time]:
    from families.modelled import modelled_seconds

    from aot_bundle.profile.profile_call import open_for
    from aot_emulator import EmulatorDriver
    from aot_runtime.trust.reader import index_reader

    driver = EmulatorDriver()
    opened = [open_for(driver, path, index_reader()(path).ops[0].name) for path in options.bundles]
    bundles = by_op(opened)
    print(f"{machine()}; {opened[0].index.target.arch}" + "; times are modelled, not measured" * options.modelled)

    def model(family: Family, drawn: Drawn) -> Mapping[str, Any]:
        pair = (drawn.call, drawn.neighbour)
        ours, neighbour = (modelled_seconds(driver, bundles[call.op], call) for call in pair)
        bounds = [MODELLED_PEAKS.bound(call, tensor_bytes(plan(bundles[call.op], call))) for call in pair]
        scaled = max(neighbour * bounds[0] / bounds[1], min(neighbour, LATENCY_S))
        return {"ours": ours, "peer": scaled, "peer_name": str(list(drawn.neighbour.spec.dims.values()))}

    return bundles, model


def by_op(bundles: Sequence[Bundle]) -> dict[str, Bundle]:
    """Return the bundle of each op, the first that has it."""
    if not bundles:
        sys.exit("random_calls.py: no bundles")
    return {op: bundle for bundle in reversed(bundles) for op in bundle.ops}


if __name__ == "__main__":
    main()
