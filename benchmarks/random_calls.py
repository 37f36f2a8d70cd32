"""Random calls of ops: the distribution of their speed beside a peer's, and the worst of them.

    aotbuild --arch sm_90 manifests/gemm.yaml
    python benchmarks/random_calls.py matmul dist/gemm-sm_90 --seed 5 --count 100

Extents are log-uniform; dtypes, layouts and flags are drawn, too. A seed gives the same calls on every machine. Peers:

    matmul       torch.mm, or torch.addmm with a bias
    linear_int4  torch.mm of 16-bit weights; also linear_int4_prepacked, if the bundle has it
    attention    the fastest of torch's fused backends; with a soft-cap or ALiBi, our own call without it
    rows         softmax, rms_norm, layer_norm and silu_mul: a copy of as many bytes

All of them work on the same tensors and are captured in graphs of several calls with tensors of their own, more than
caches hold if there is room. Ways take turns, round by round; medians are shown. A part of every result is held to
float64: its largest error is at most twice that of torch in the same dtype, and a floor.

`--modelled` needs no GPU: the peer is the same op at the nearest aligned extents, multiples of 64 or, where these differ
by more than an eighth, of 32, 16 or 8. Its time is scaled by work; the emulator's model gives both. With `--plan`, calls are only planned, which shows the variants that they get.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gemm import int4_weights, prepacked_weights
from measure import machine, table
from on_gpu import device_times, heading, our_graph, peer_graph, require_torch, working
from rows import EPS
from rows import OPS as ROW_OPS

from aot_bundle.callspec import CallSpec, parse_scalar, plan_call
from aot_runtime import AotError, Bundle, open_bundle
from aot_runtime.call.choosing import Decision
from aot_runtime.contract.dtypes import DTYPES

Rng = np.random.Generator
Tensors = dict[str, Any]
"""torch's tensors by name, including outputs."""

CACHED = 256 << 20
"""Bytes that the calls of a graph go through: more than an L2 cache holds."""
MOST_COPIES = 16
MOST_WORK = 2e12
"""Maximum number of operations, or bytes, of a call."""
MOST_ELEMENTS = 1 << 27
"""Maximum number of elements of a matrix, or of all heads of q or k."""
PART = 64
"""Rows of a result that are compared with float64."""
BEYOND = 1.5
"""A modelled call may take this many times as long as its aligned neighbour, scaled by work."""
LATENCY_S = 5e-6
"""Times up to this are mostly latency, and are not scaled by work."""


@dataclass(frozen=True)
class Drawn:
    """A random call, and the aligned call nearest to it.

    Attributes:
        group: kind of call, with a distribution of its own.
        features: scalars and optional tensors that `plain` lacks.
    """

    op: str
    group: str
    call: CallSpec
    neighbour: CallSpec
    features: frozenset[str] = frozenset()

    @property
    def plain(self) -> CallSpec:
        """Return the call without its features."""
        scalars = {name: value for name, value in self.call.scalars.items() if name not in self.features}
        return replace(self.call, scalars=scalars, given=self.call.given - self.features)

    def __str__(self) -> str:
        dims = " ".join(f"{name}={extent}" for name, extent in self.call.dims.items())
        rest = [*self.call.dtypes.values(), *sorted(self.call.given)]
        rest += [f"{name}={value}" for name, value in self.call.scalars.items() if name != "eps"]
        rest += [f"{name} by dim {dim}" for name, dim in self.call.innermost.items()]
        return " ".join([self.op, dims, *rest])


@dataclass(frozen=True)
class Family:
    """A kind of call that the command line names.

    Attributes:
        draw: a random call of one of these ops; None if it is too large.
        work: operations or bytes of a call, from its extents.
        unit: of 10 ** 12 of work in a second.
        part: cut all tensors down to what a part of the output needs; the fraction says which part.
        expected: the output, from torch's tensors of any float dtype.
        peers: torch's ways to compute a call, by name, or to move as many bytes.
    """

    draw: Callable[[Rng, frozenset[str]], Drawn | None]
    work: Callable[[CallSpec], float]
    part: Callable[[Tensors, CallSpec, float], Tensors]
    expected: Callable[[Any, Tensors, CallSpec, str], Any]
    peers: Callable[[Any, Tensors, CallSpec, str], Mapping[str, Callable[[], Any]]]
    output: str
    unit: str = "TFLOP/s"


@dataclass(frozen=True)
class Timed:
    """Times of a call and of the fastest peer, in seconds. fault: a wrong result, in words."""

    drawn: Drawn
    launched: str
    ours: float
    peer: float = math.nan
    peer_name: str = ""
    fault: str = ""

    @property
    def ratio(self) -> float:
        return self.peer / self.ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("bundle", type=Path, help="a bundle that has the ops")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--count", type=int, default=100, help="calls (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each way (default: %(default)s)")
    parser.add_argument("--worst", type=int, default=20, help="calls that are listed (default: %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="run calls with this in their group or text (default: all that are drawn)")  # fmt: skip
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--modelled", action="store_true", help="model times of an AMD GPU on the emulator")
    ways.add_argument("--plan", action="store_true", help="print the launches of each call, and run none")
    options = parser.parse_args()
    try:
        run(options)
    except AotError as error:
        sys.exit(f"random_calls.py: {error}")


def run(options: argparse.Namespace) -> None:
    family = FAMILIES[options.family]
    bundle, time = (emulated if options.modelled or options.plan else on_gpu)(options, family)
    drawn = list(calls(family, frozenset(bundle.ops), options.seed, options.count))
    chosen = [each for each in drawn if options.only in f"{each.group}: {each}"]
    print(f"seed {options.seed}, {len(chosen)} of {options.count} calls\n", flush=True)
    if options.plan:
        rows = [(str(each), each.group, launches(bundle, each.op, plan(bundle, each.op, each.call))) for each in chosen]
        print(table(("call", "group", "launches"), rows))
        return
    found = []
    for number, each in enumerate(chosen):
        found.append(time(each))
        if sys.stderr.isatty():
            print(f"\r{number + 1} of {len(chosen)}", end="", file=sys.stderr, flush=True)
    print(report(family, found, options.worst, "neighbour" if options.modelled else "peer"))
    if options.modelled:
        print(f"\nbeyond {BEYOND} x the aligned neighbour: {sum(1 / timed.ratio > BEYOND for timed in found)}")
    if faults := [timed for timed in found if timed.fault]:
        sys.exit("\n".join(f"wrong: {timed.drawn}: {timed.fault}" for timed in faults))


def calls(family: Family, ops: frozenset[str], seed: int, count: int) -> Iterator[Drawn]:
    """Draw calls. Each has a generator of its own, so that call i does not depend on `count` or on earlier calls."""
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        while True:
            drawn = family.draw(rng, ops)
            if drawn and family.work(drawn.call) <= MOST_WORK:
                yield drawn
                break


# Reports


def report(family: Family, found: Sequence[Timed], worst: int, peer: str) -> str:
    groups = sorted({timed.drawn.group for timed in found})
    lines = [_distribution("all", found), *(_distribution(g, [t for t in found if t.drawn.group == g]) for g in groups)]
    known = [timed for timed in found if not math.isnan(timed.ratio)]
    rows = [
        [str(timed.drawn), f"{family.work(timed.drawn.call) / timed.ours / 1e12:.2f}", f"{timed.ours * 1e6:.1f}",
         f"{timed.peer * 1e6:.1f}", timed.peer_name, f"{timed.ratio:.2f}", timed.launched]
        for timed in sorted(known, key=lambda timed: timed.ratio)[:worst]
    ]  # fmt: skip
    distributions = table((f"{peer} / ours", "calls", "geometric mean", "median", "5th percentile", "worst"), lines)
    headings = ("worst calls", family.unit, "µs", f"{peer} µs", "", "ratio", "launches")
    return f"{distributions}\n\n{table(headings, rows)}"


def _distribution(name: str, found: Sequence[Timed]) -> list[str]:
    ratios = sorted(timed.ratio for timed in found if not math.isnan(timed.ratio))
    if not ratios:
        return [name, "0", "-", "-", "-", "-"]
    values = (statistics.geometric_mean(ratios), statistics.median(ratios), ratios[len(ratios) // 20], ratios[0])
    return [name, str(len(ratios)), *(f"{value:.2f}" for value in values)]


def plan(bundle: Bundle, op: str, call: CallSpec) -> Decision:
    properties = bundle.device.properties
    return plan_call(bundle.index, bundle[op].planner, call, properties.num_cus, properties.num_xcds)


def launches(bundle: Bundle, op: str, decision: Decision) -> str:
    """Describe the launches: their configs, and the number of programs."""
    declared = bundle[op].planner.op.launches
    taken = [
        f"{declared[launch.index].kernel.rpartition(':')[2]} "
        f"{declared[launch.index].configs[launch.variant.config].name} {math.prod(launch.grid)}"
        for launch in decision.launches
    ]
    return ", ".join(["aligned" if decision.aligned else "general", *taken])


# On a GPU


def on_gpu(options: argparse.Namespace, family: Family) -> tuple[Bundle, Callable[[Drawn], Timed]]:
    torch = require_torch()
    bundle = open_bundle(options.bundle)
    print(heading(bundle.device))
    return bundle, partial(measured, bundle, torch, family, options.rounds)


def measured(bundle: Bundle, torch: Any, family: Family, rounds: int, drawn: Drawn) -> Timed:
    decision = plan(bundle, drawn.op, drawn.call)
    nbytes = sum(layout.size * layout.itemsize for layout in decision.layouts.values())
    copies = [make_tensors(torch, decision, seed) for seed in range(max(1, min(MOST_COPIES, CACHED // max(1, nbytes))))]
    ours = [our_call(bundle, drawn.op, drawn.call, tensors) for tensors in copies]
    graphs = {"ours": our_graph(bundle, ours)}
    fault = wrong(torch, family, drawn, copies[0])
    if drawn.features:
        graphs["ours, plain"] = our_graph(bundle, [our_call(bundle, drawn.op, drawn.plain, t) for t in copies])
    else:
        peers = [family.peers(torch, tensors, drawn.call, drawn.op) for tensors in copies]
        for name in working(drawn, dict(peers[0])):
            graphs[name] = peer_graph(torch, [each[name] for each in peers])
    times = device_times(bundle, {name: way for name, (way, _) in graphs.items()}, rounds)
    seconds = {name: taken / graphs[name][1] for name, taken in times.items()}
    launched = launches(bundle, drawn.op, decision)
    own = seconds.pop("ours")
    best = min(seconds, key=seconds.__getitem__, default="")
    del graphs, copies, ours
    gc.collect()
    torch.cuda.empty_cache()
    return Timed(drawn, launched, own, seconds.get(best, math.nan), best, fault)


def make_tensors(torch: Any, decision: Decision, seed: int) -> Tensors:
    """Make the tensors of a call: floats N(0, 1), integers of all bits."""
    generator = torch.Generator("cuda").manual_seed(seed)
    made = {}
    for name, layout in decision.layouts.items():
        dtype = getattr(torch, layout.dtype)
        tensor = torch.empty_strided(layout.shape, layout.strides, dtype=dtype, device="cuda")
        if dtype.is_floating_point:
            tensor.normal_(generator=generator)
        else:
            ends = torch.iinfo(dtype)
            tensor.random_(ends.min, ends.max + 1, generator=generator)
        made[name] = tensor
    torch.cuda.synchronize()
    return made


def our_call(bundle: Bundle, op: str, call: CallSpec, tensors: Tensors) -> Callable[..., Any]:
    known = bundle[op].planner.op
    scalars = {s.name: parse_scalar(known, s, call.scalars[s.name]) for s in known.scalars if s.name in call.scalars}
    optional = {tensor.name for tensor in known.tensors if tensor.optional}
    arrays = {
        name: bundle.device.wrap(tensor)
        for name, tensor in tensors.items()
        if name in call.given or name not in optional
    }
    return partial(bundle[op], **arrays, **scalars)


def wrong(torch: Any, family: Family, drawn: Drawn, tensors: Tensors) -> str:
    """Compare a part of our result with float64; empty if it is right."""
    part = family.part(tensors, drawn.call, float(np.random.default_rng(len(str(drawn))).random()))
    double = {name: x.double() if x.dtype.is_floating_point else x for name, x in part.items()}
    truth = family.expected(torch, double, drawn.call, drawn.op)
    theirs = family.expected(torch, part, drawn.call, drawn.op)
    ours = part[family.output]
    floor = 4 * torch.finfo(ours.dtype).eps * float(truth.abs().max())
    error, allowed = (float((x.double() - truth).abs().max()) for x in (ours, theirs))
    return "" if error <= 2 * allowed + floor else f"an error of {error:.2e}, and torch has {allowed:.2e}"


# On the emulator


def emulated(options: argparse.Namespace, family: Family) -> tuple[Bundle, Callable[[Drawn], Timed]]:
    from aot_bundle.profile.profile_call import open_for
    from aot_emulator import EmulatorDriver
    from aot_runtime.trust.reader import index_reader

    driver = EmulatorDriver()
    first = index_reader()(options.bundle).ops[0].name
    bundle = open_for(driver, options.bundle, first)
    print(f"{machine()}; {bundle.index.target.arch}" + "; times are modelled, not measured" * options.modelled)
    return bundle, partial(modelled, driver, bundle, family)


def modelled(driver: Any, bundle: Bundle, family: Family, drawn: Drawn) -> Timed:
    from aot_bundle.profile.time_call import time_on

    tensors = {tensor.name: tensor.dtype for tensor in bundle[drawn.op].planner.op.tensors}
    content = {name: "0..255" for name, dtype in tensors.items() if dtype == "uint8" and name == "w"}
    ours, neighbour = (time_on(driver, bundle, drawn.op, call, content).seconds
                       for call in (drawn.call, drawn.neighbour))  # fmt: skip
    scaled = max(neighbour * family.work(drawn.call) / family.work(drawn.neighbour), min(neighbour, LATENCY_S))
    launched = launches(bundle, drawn.op, plan(bundle, drawn.op, drawn.call))
    return Timed(drawn, launched, ours, scaled, str(list(drawn.neighbour.dims.values())))


# Draws


def extent(rng: Rng, low: float, high: float, unit: int = 1) -> int:
    """Draw a log-uniform multiple of `unit` from a range."""
    return max(unit, round(math.exp(rng.uniform(math.log(low), math.log(high))) / unit) * unit)


def near(value: int, unit: int) -> int:
    """Return the positive multiple of `unit` that is nearest to a value.

    If that differs by more than an eighth, return the nearest multiple of a smaller power of two, of at least 8.
    """
    while unit > 8 and 8 * abs(round(value / unit) * unit - value) > value:
        unit //= 2
    return max(unit, round(value / unit) * unit)


def one_of(rng: Rng, values: Sequence[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def _at(call: CallSpec, **dims: int) -> CallSpec:
    return replace(call, dims={**call.dims, **dims})


# Matrix products

DTYPES_16 = ("float16", "bfloat16")
UNITS = {"by 64": 64, "by 8": 8, "odd": 1}
BY_COLUMN, BY_ROW = 0, 1
"""Position of the dim of b with stride 1: k or n."""


def draw_matmul(rng: Rng, ops: frozenset[str]) -> Drawn:
    name = one_of(rng, list(UNITS))
    unit = UNITS[name]
    m, n, k = extent(rng, 1, 16384), extent(rng, 16, 16384, unit), extent(rng, 16, 16384, unit)
    if unit == 8 and n % 64 == 0 == k % 64:
        k += 8
    if unit == 1 and n % 8 == 0 == k % 8:
        k += 1 + int(rng.integers(7))
    inner = one_of(rng, (BY_COLUMN, BY_ROW))
    given = frozenset({"bias"}) if rng.random() < 0.25 else frozenset()
    call = CallSpec(
        dims={"m": m, "n": n, "k": k}, dtypes={"T": one_of(rng, DTYPES_16)}, innermost={"b": inner}, given=given
    )
    group = f"{name}, b by {'rows' if inner == BY_ROW else 'columns'}"
    return Drawn("matmul", group, call, _at(call, n=near(n, 64), k=near(k, 64)))


def product_work(call: CallSpec) -> float:
    dims = call.dims
    return 2.0 * dims["m"] * dims.get("n", 64 * dims.get("tiles", 0)) * dims["k"]


def rows_of(names: Sequence[str], tensors: Tensors, call: CallSpec, where: float) -> Tensors:
    """Cut tensors down to `PART` rows."""
    start = int(where * max(0, len(tensors[names[0]]) - PART))
    return {name: x[start : start + PART] if name in names else x for name, x in tensors.items()}


def product(torch: Any, t: Tensors, call: CallSpec, op: str) -> Any:
    return torch.addmm(t["bias"], t["a"], t["b"]) if "bias" in t else torch.mm(t["a"], t["b"])


def product_peers(torch: Any, t: Tensors, call: CallSpec, op: str) -> Mapping[str, Callable[[], Any]]:
    return {"torch": partial(product, torch, t, call, op)}


def draw_int4(rng: Rng, ops: frozenset[str]) -> Drawn:
    op = one_of(rng, sorted(ops & {"linear_int4", "linear_int4_prepacked"}))
    m, group = extent(rng, 1, 16384), one_of(rng, (64, 128))
    k, dtypes = extent(rng, 256, 16384, group), {"T": one_of(rng, DTYPES_16)}
    rows = "1 to 16 rows" if m <= 16 else "17 to 128 rows" if m <= 128 else "more rows"
    if op == "linear_int4_prepacked":
        dims = {"m": m, "tiles": extent(rng, 4, 256), "k": k, "groups": k // group}
        call = CallSpec(dims=dims, dtypes=dtypes)
        return Drawn(op, f"prepacked, {rows}", call, _at(call, tiles=near(dims["tiles"], 2)))
    dims = {"m": m, "n": extent(rng, 256, 16384, one_of(rng, (1, 8, 64))), "k": k, "groups": k // group}
    call = CallSpec(dims=dims, dtypes=dtypes)
    return Drawn(op, f"not prepacked, {rows}", call, _at(call, n=near(dims["n"], 64)))


def int4_product(torch: Any, t: Tensors, call: CallSpec, op: str) -> Any:
    return torch.mm(t["x"], _int4_weights(torch, t, op).t())


def _int4_weights(torch: Any, t: Tensors, op: str) -> Any:
    if op == "linear_int4":
        return int4_weights(torch, t["w"], t["scales"])
    return prepacked_weights(torch, t["w"], t["scales"], 4)


def int4_peers(torch: Any, t: Tensors, call: CallSpec, op: str) -> Mapping[str, Callable[[], Any]]:
    return {"torch": partial(torch.mm, t["x"], _int4_weights(torch, t, op).t())}


# Attention

HEAD_DIMS = (64, 64, 128, 128, 40, 72, 80, 96, 160, 192, 256)


def draw_attention(rng: Rng, ops: frozenset[str]) -> Drawn | None:
    heads_kv = 1 << int(rng.integers(6))
    heads, head_dim = heads_kv * one_of(rng, (1, 1, 2, 4, 8)), one_of(rng, HEAD_DIMS)
    causal = bool(rng.random() < 0.5)
    queries = extent(rng, 1, 20000)
    keys = queries if rng.random() < 0.6 else extent(rng, queries if causal else 1, 20000)
    dims = {"batch": extent(rng, 1, 32), "heads": heads, "heads_kv": heads_kv, "seqlen_q": queries, "seqlen_k": keys,
            "head_dim": head_dim, "head_dim_v": head_dim}  # fmt: skip
    if dims["batch"] * head_dim * max(heads * queries, heads_kv * keys) > MOST_ELEMENTS:
        return None
    scalars = {"causal": "true"} if causal else {}
    feature = one_of(rng, ("", "", "", "", "", "", "softcap", "alibi_slopes"))
    if feature == "softcap":
        scalars["softcap"] = "30"
    call = CallSpec(dims=dims, dtypes={"T": one_of(rng, DTYPES_16)}, scalars=scalars,
                    given=frozenset({feature} & {"alibi_slopes"}))  # fmt: skip
    group = feature or "at most 64 queries" * (queries <= 64) or f"head dim {head_dim}"
    if group.startswith("head dim") and head_dim not in (64, 128):
        group = "other head dims"
    fitting = min(each for each in (64, 128, 256) if each >= head_dim)
    lengths = {name: near(dims[name], 64) for name in ("seqlen_q", "seqlen_k") if dims[name] > 64}
    aligned = _at(call, head_dim=fitting, head_dim_v=fitting, **lengths)
    return Drawn("flash_attention", group, call, aligned, frozenset({feature} - {""}))


def attention_work(call: CallSpec) -> float:
    """Return the operations of the two products. With a causal mask, only visible pairs count."""
    dims = call.dims
    queries, keys = dims["seqlen_q"], dims["seqlen_k"]
    pairs = queries * keys
    if "causal" in call.scalars:
        pairs -= min(queries, keys) * (min(queries, keys) - 1) // 2 + max(0, queries - keys) * keys
    return 4.0 * dims["batch"] * dims["heads"] * dims["head_dim"] * max(1, pairs)


def one_head(t: Tensors, call: CallSpec, where: float) -> Tensors:
    """Cut tensors down to some queries of one head and the keys that they see."""
    batch, heads, queries, _ = t["q"].shape
    keys, groups = t["k"].shape[2], heads // t["k"].shape[1]
    causal = "causal" in call.scalars
    b, h, start = int(where * batch), int(where * heads), int((where if causal else 1) * max(0, queries - PART))
    end = min(queries, start + PART)
    seen = keys - (queries - end) if causal else keys
    found = {name: t[name][b : b + 1, h : h + 1, start:end] for name in ("q", "out")}
    found |= {name: t[name][b : b + 1, h // groups : h // groups + 1, :seen] for name in ("k", "v")}
    if "alibi_slopes" in t:
        found["alibi_slopes"] = t["alibi_slopes"][b : b + 1, h : h + 1]
    return found


def attention(torch: Any, t: Tensors, call: CallSpec, op: str) -> Any:
    """Compute attention of one head with unfused operations."""
    q, k, v = (t[name] for name in ("q", "k", "v"))
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    if "softcap" in call.scalars:
        cap = float(call.scalars["softcap"])
        scores = cap * torch.tanh(scores / cap)
    queries, keys = scores.shape[2:]
    diagonal = torch.arange(queries, device=q.device)[:, None] + keys - queries
    distance = diagonal - torch.arange(keys, device=q.device)
    if "alibi_slopes" in t:
        scores = scores - t["alibi_slopes"][..., None, None].to(scores.dtype) * distance.abs().to(scores.dtype)
    if "causal" in call.scalars:
        scores = scores.masked_fill(distance < 0, -math.inf)
    return torch.softmax(scores, -1) @ v


def attention_peers(torch: Any, t: Tensors, call: CallSpec, op: str) -> Mapping[str, Callable[[], Any]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    queries, keys = call.dims["seqlen_q"], call.dims["seqlen_k"]
    causal = "causal" in call.scalars and queries > 1
    square = queries == keys
    mask = causal_lower_right(queries, keys) if causal and not square else None

    def fused(backend: Any) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                t["q"], t["k"], t["v"], attn_mask=mask, is_causal=causal and square, enable_gqa=True
            )

    found = {"FlashAttention": partial(fused, SDPBackend.FLASH_ATTENTION)}
    if mask is None:
        found["cuDNN"] = partial(fused, SDPBackend.CUDNN_ATTENTION)
    return found


# Rows

WEIGHTED = ("rms_norm", "layer_norm")


def draw_rows(rng: Rng, ops: frozenset[str]) -> Drawn | None:
    op = one_of(rng, sorted(ops & {"softmax", "rms_norm", "layer_norm", "silu_mul"}))
    rows, cols = extent(rng, 1, 1 << 20), extent(rng, 1, 1 << 18, one_of(rng, (1, 8, 64)))
    if rows * cols > MOST_ELEMENTS:
        return None
    name = "few" if rows <= 64 else "many" if rows > 16384 else "some"
    kind = "short" if cols <= 512 else "long" if cols > 16384 else "middling"
    given = frozenset({"bias"} if op == "layer_norm" else ())
    scalars = {"eps": str(EPS)} if op in WEIGHTED else {}
    call = CallSpec(dims={"rows": rows, "cols": cols}, dtypes={"T": one_of(rng, (*DTYPES_16, "float32"))}, given=given,
                    scalars=scalars)  # fmt: skip
    return Drawn(op, f"{name} {kind} rows", call, _at(call, cols=near(cols, 64)))


def row_bytes(call: CallSpec) -> float:
    return 2.0 * call.dims["rows"] * call.dims["cols"] * DTYPES[call.dtypes["T"]].size


def some_rows(t: Tensors, call: CallSpec, where: float) -> Tensors:
    names = [name for name in ("out", "x", "gate", "up") if name in t]
    return rows_of(names, t, call, where)


def row_op(torch: Any, t: Tensors, call: CallSpec, op: str) -> Any:
    renamed = {{"gate": "x", "up": "y"}.get(name, name): tensor for name, tensor in t.items()}
    return ROW_OPS[op].theirs(torch, renamed)


def copy_peer(torch: Any, t: Tensors, call: CallSpec, op: str) -> Mapping[str, Callable[[], Any]]:
    nbytes = ROW_OPS[op].matrices * t["out"].nbytes
    source, target = (torch.empty(max(1, nbytes // 2), dtype=torch.uint8, device="cuda") for _ in range(2))
    return {"copy": partial(target.copy_, source)}


FAMILIES = {
    "matmul": Family(draw_matmul, product_work, partial(rows_of, ("a", "e")), product, product_peers, "e"),
    "linear_int4": Family(draw_int4, product_work, partial(rows_of, ("x", "e")), int4_product, int4_peers, "e"),
    "attention": Family(draw_attention, attention_work, one_head, attention, attention_peers, "out"),
    "rows": Family(draw_rows, row_bytes, some_rows, row_op, copy_peer, "out", "TB/s"),
}


if __name__ == "__main__":
    main()
