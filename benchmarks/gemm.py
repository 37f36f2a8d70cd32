"""TFLOP/s and GB/s of matrix products on this GPU, beside torch (cuBLAS).

    aotbuild --arch sm_90 manifests/gemm.yaml && python benchmarks/gemm.py dist/gemm-sm_90

Linear layers: activations [m, k] and weights [n, k], in device memory, outputs of ours given. Kinds, and their peers:

    float16, bfloat16, float32   matmul; torch.mm
    tf32                         matmul with precision="tf32"; torch.mm with TF32 allowed
    int8                         integer_matmul; torch._int_mm
    float8, float8_fast          scaled_matmul, a scale for each row and column; torch._scaled_mm, use_fast_accum alike
    block8                       block_scaled_matmul; torch._scaled_mm with the same scales
    int4                         linear_int4, groups of 128, float16; torch.mm of float16 weights
    int4_prepacked               linear_int4_prepacked, the same
    int8_prepacked               linear_int8_prepacked, the same
    lora                         lora_linear, one adapter of rank 16, float16; torch.mm and two more for the adapter

All candidates use the same tensors and are captured in graphs, so that device times are measured even for small
products: between two events around about 20 ms of replays. A graph uses several copies of the weights, more than caches
hold. Candidates take turns, and medians are shown. A product counts 2 m n k.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from measure import table
from on_gpu import device_times, heading, max_difference, our_graph, peer_graph, require_torch, working

from aot_models.quantise import PREPACKED_ORDERS, TILE
from aot_runtime import AotError, Bundle, DeviceArray, open_bundle

LARGE = "1024x1024x1024 2048x2048x2048 4096x4096x4096 8192x8192x8192 128x8192x8192"
SMALL = " ".join(f"{m}x4096x4096" for m in (1, 2, 4, 8, 16))
CACHED = 256 << 20
"""Bytes of weights that a graph goes through: more than an L2 cache holds."""


@dataclass(frozen=True)
class Shape:
    m: int
    n: int
    k: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """`128x8192x4096`: m, n, k. Raises ValueError."""
        m, n, k = (int(part) for part in text.split("x"))
        return cls(m, n, k)

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k


@dataclass(frozen=True)
class Case:
    """A product, ready to run: ours and the peer's on the same tensors, and where our result goes.

    Ours is called with `stream`, and with scalars of the op.
    """

    ours: Callable[..., Any]
    peer: Callable[[], Any]
    out: DeviceArray


@dataclass(frozen=True)
class Maker:
    """Makes cases of one kind: (bundle, torch, shape) -> a case; weights take `bits` each."""

    make: Callable[[Bundle, Any, Shape], Case]
    bits: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/gemm.yaml for this GPU")
    parser.add_argument("--shapes", type=Shape.parse, nargs="+", metavar="MxNxK",
                        default=[Shape.parse(text) for text in f"{LARGE} {SMALL}".split()],
                        help=f"what to run (default: {LARGE} {SMALL})")  # fmt: skip
    parser.add_argument("--kinds", choices=MAKERS, nargs="+", default=["float16", "bfloat16", "int8", "int4"],
                        help="(default: %(default)s)")  # fmt: skip
    parser.add_argument("--option", type=_option, action="append", default=[], metavar="NAME=VALUE",
                        help="scalar of the op, e.g. schedule=persistent or splits=4")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=11, help="rounds of each (default: %(default)s)")
    options = parser.parse_args()
    torch = require_torch()
    try:
        bundle = open_bundle(options.bundle)
        print(heading(bundle.device))
        scalars: dict[str, Any] = dict(options.option)
        found: dict[str, dict[Shape, tuple[Seconds, str]]] = {}
        for kind in options.kinds:
            found[kind] = {
                shape: measured(bundle, torch, kind, shape, scalars, options.rounds) for shape in options.shapes
            }
            print(f"\n{report(kind, found[kind])}", flush=True)
        print(f"\n{beside_float16(found)}")
    except AotError as error:
        sys.exit(f"gemm.py: {error}")


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(text)
    return name, int(value) if value.lstrip("-").isdigit() else value


Seconds = dict[str, float]
"""Ways to compute a product: `ours` and, if it takes the operands, `torch`."""


def measured(
    bundle: Bundle, torch: Any, kind: str, shape: Shape, options: dict[str, Any], rounds: int
) -> tuple[Seconds, str]:
    """Return medians, and the difference of the results."""
    graphs, difference = captured(bundle, torch, kind, shape, options)
    times = device_times(bundle, {name: way for name, (way, _) in graphs.items()}, rounds)
    return {name: taken / graphs[name][1] for name, taken in times.items()}, difference


def report(kind: str, found: Mapping[Shape, tuple[Seconds, str]]) -> str:
    """Return the table of a kind's products beside torch's."""
    rows, ratios = [], []
    for shape, (seconds, difference) in found.items():
        ours, peer = seconds["ours"], seconds.get("torch", math.nan)
        ratios.append(peer / ours)
        weights = shape.n * shape.k * MAKERS[kind].bits / 8
        cells = [f"{ours * 1e6:.1f}", f"{shape.flops / ours / 1e12:.1f}", f"{weights / ours / 1e9:.0f}"]
        beside = [f"{peer * 1e6:.1f}", f"{shape.flops / peer / 1e12:.1f}", f"{peer / ours:.2f}"]
        rows.append([str(shape), *cells, *beside, difference])
    known = [ratio for ratio in ratios if ratio == ratio]
    mean = math.exp(sum(map(math.log, known)) / len(known)) if known else math.nan
    rows.append(["geometric mean", "", "", "", "", "", f"{mean:.2f}", ""])
    headings = (kind, "µs", "TFLOP/s", "weights GB/s", "torch µs", "TFLOP/s", "ours / torch", "difference")
    return table(headings, rows)


def beside_float16(found: Mapping[str, Mapping[Shape, tuple[Seconds, str]]]) -> str:
    """Return the speed of other kinds of products relative to float16, ours and torch's."""
    rows = []
    for kind, shapes in found.items():
        for shape in shapes if kind != "float16" else ():
            if half := found.get("float16", {}).get(shape, ({}, ""))[0]:
                ours = shapes[shape][0]["ours"]
                rows.append([kind, str(shape), *(f"{half.get(who, math.nan) / ours:.2f}" for who in ("ours", "torch"))])
    return table(("kind", "shape", "times our float16", "times torch's"), rows) if rows else ""


Graphs = Mapping[str, tuple[Callable[[], Any], int]]
"""Return, by name, a function that replays a graph, and the number of products in it."""


def captured(bundle: Bundle, torch: Any, kind: str, shape: Shape, options: dict[str, Any]) -> tuple[Graphs, str]:
    """Return our and the peer's products with several weights, as graphs; and the difference of the first ones'
    results."""
    cases = cases_of(bundle, torch, kind, shape)
    peers = working(shape, {"torch": cases[0].peer})
    cases[0].ours(**options)
    difference = max_difference(cases[0].out, cases[0].peer() if peers else None)
    graphs = {"ours": our_graph(bundle, [partial(case.ours, **options) for case in cases])}
    if peers:
        graphs["torch"] = peer_graph(torch, [case.peer for case in cases])
    return graphs, difference


def cases_of(bundle: Bundle, torch: Any, kind: str, shape: Shape) -> list[Case]:
    """Make products with different weights, more than the caches hold."""
    maker = MAKERS[kind]
    copies = max(1, min(64, CACHED // max(1, shape.n * shape.k * maker.bits // 8)))
    return [maker.make(bundle, torch, shape) for _ in range(copies)]


# Kinds


def _random(torch: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def _wrapped(bundle: Bundle, torch: Any, *tensors: Any) -> list[DeviceArray]:
    torch.cuda.synchronize()
    return [bundle.device.wrap(tensor) for tensor in tensors]


def floats(dtype: str, bundle: Bundle, torch: Any, shape: Shape) -> Case:
    kind = getattr(torch, "float32" if dtype == "tf32" else dtype)
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    x, w = _random(torch, (shape.m, shape.k), kind), _random(torch, (shape.n, shape.k), kind)
    out = torch.empty((shape.m, shape.n), dtype=kind, device="cuda")
    a, b, e = _wrapped(bundle, torch, x, w.t(), out)
    extra = {"precision": "tf32"} if dtype == "tf32" else {}
    return Case(partial(bundle.matmul, a, b, e=e, **extra), partial(torch.mm, x, w.t()), e)


def int8(bundle: Bundle, torch: Any, shape: Shape) -> Case:
    x, w = (torch.randint(-128, 128, (rows, shape.k), dtype=torch.int8, device="cuda") for rows in (shape.m, shape.n))
    a, b, e = _wrapped(bundle, torch, x, w.t(), torch.empty((shape.m, shape.n), dtype=torch.int32, device="cuda"))
    return Case(partial(bundle.integer_matmul, a, b, e=e), partial(torch._int_mm, x, w.t()), e)


def float8(fast: bool, bundle: Bundle, torch: Any, shape: Shape) -> Case:
    x, w, out = _float8_operands(torch, shape)
    scale_a, scale_b = _scales(torch, shape.m, 1), _scales(torch, 1, shape.n)
    a, b, factors_a, factors_b, e = _wrapped(bundle, torch, x, w.t(), scale_a[:, 0], scale_b[0], out)
    ours = partial(bundle.scaled_matmul, a, b, factors_a, factors_b, e, use_fast_accum=fast)
    peer = partial(torch._scaled_mm, x, w.t(), scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast)
    return Case(ours, peer, e)


def block8(bundle: Bundle, torch: Any, shape: Shape) -> Case:
    """Make scales as torch wants them: those of rows of x next to each other, those of weights along k."""
    x, w, out = _float8_operands(torch, shape)
    inner, outer = -(-shape.k // 128), -(-shape.n // 128)
    scale_a, scale_b = _scales(torch, inner, shape.m).t(), _scales(torch, outer, inner).t()
    *given, e = _wrapped(bundle, torch, x, w.t(), scale_a, scale_b, out)
    peer = partial(torch._scaled_mm, x, w.t(), scale_a, scale_b, out_dtype=torch.bfloat16)
    return Case(partial(bundle.block_scaled_matmul, *given, e), peer, e)


def _float8_operands(torch: Any, shape: Shape) -> tuple[Any, Any, Any]:
    x, w = (_random(torch, (rows, shape.k), torch.float8_e4m3fn) for rows in (shape.m, shape.n))
    return x, w, torch.empty((shape.m, shape.n), dtype=torch.bfloat16, device="cuda")


def _scales(torch: Any, *shape: int) -> Any:
    return torch.rand(shape, dtype=torch.float32, device="cuda") + 0.5


def int4(bundle: Bundle, torch: Any, shape: Shape) -> Case:
    """Make weights in codes; the peer's weights are the values of the codes."""
    x = _random(torch, (shape.m, shape.k), torch.float16)
    packed = torch.randint(0, 256, (shape.n, shape.k // 2), dtype=torch.uint8, device="cuda")
    scales = torch.rand((shape.k // 128, shape.n), device="cuda").half() / 64
    w = int4_weights(torch, packed, scales)
    out = torch.empty((shape.m, shape.n), dtype=torch.float16, device="cuda")
    a, b, factors, e = _wrapped(bundle, torch, x, packed, scales, out)
    return Case(partial(bundle.linear_int4, a, b, factors, e=e, group_size=128), partial(torch.mm, x, w.t()), e)


def int4_weights(torch: Any, packed: Any, scales: Any) -> Any:
    """Return the weights [n, k] of linear_int4's operands w and scales."""
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1).to(scales.dtype) - 8
    return codes * scales.t().repeat_interleave(codes.shape[1] // len(scales), 1)


def prepacked(bits: int, bundle: Bundle, torch: Any, shape: Shape) -> Case:
    """Make prepacked weights; the peer's weights are the values of the words."""
    m, n, k = shape.m, shape.n, shape.k
    x = _random(torch, (m, k), torch.float16)
    words = torch.randint(-(2**31), 2**31, (n // TILE, k * bits // 16, 32), dtype=torch.int32, device="cuda")
    scales = (torch.rand((k // 128, n // TILE, TILE), device="cuda") / 64).half()
    w = prepacked_weights(torch, words, scales, bits)
    a, b, factors, e = _wrapped(bundle, torch, x, words, scales, torch.empty((m, n), dtype=x.dtype, device="cuda"))
    call = partial(getattr(bundle, f"linear_int{bits}_prepacked"), a, b, factors, e=e, group_size=128)
    return Case(call, partial(torch.mm, x, w.t()), e)


def prepacked_weights(torch: Any, words: Any, scales: Any, bits: int) -> Any:
    """Return the weights [n, k] of the operands w and scales of an op of prepacked weights."""
    most = (1 << bits) - 1
    n, k = TILE * len(words), words.shape[1] * 16 // bits
    codes = torch.stack([(words.flatten() >> at & most).to(torch.uint8) for at in range(0, 32, bits)], -1)
    order = PREPACKED_ORDERS[bits]
    extents = (n // TILE, 4, 2, 8, k // TILE, 2, 2, 2, 4, 2)
    codes = codes.reshape([extents[i] for i in order])
    codes = codes.permute(*sorted(range(10), key=order.__getitem__)).reshape(n, k)
    by_output = scales.reshape(-1, n // TILE, 8, 8).transpose(2, 3).reshape(-1, n)
    return (codes.to(scales.dtype) - (1 << bits - 1)) * by_output.t().repeat_interleave(k // len(scales), 1)


def lora(bundle: Bundle, torch: Any, shape: Shape) -> Case:
    x, w = _random(torch, (shape.m, shape.k), torch.float16), _random(torch, (shape.n, shape.k), torch.float16)
    down, up = _random(torch, (1, 16, shape.k), torch.float16), _random(torch, (1, shape.n, 16), torch.float16)
    out = torch.empty((shape.m, shape.n), dtype=torch.float16, device="cuda")
    *given, e = _wrapped(bundle, torch, x, w, down, up, out)
    call = partial(bundle.lora_linear, *given, e=e, scale=0.01)

    def peer() -> Any:
        return torch.addmm(torch.mm(x, w.t()), torch.mm(x, down[0].t()), up[0].t(), alpha=0.01)

    return Case(call, peer, e)


MAKERS: Mapping[str, Maker] = {
    "float16": Maker(partial(floats, "float16"), 16),
    "bfloat16": Maker(partial(floats, "bfloat16"), 16),
    "float32": Maker(partial(floats, "float32"), 32),
    "tf32": Maker(partial(floats, "tf32"), 32),
    "int8": Maker(int8, 8),
    "float8": Maker(partial(float8, False), 8),
    "float8_fast": Maker(partial(float8, True), 8),
    "block8": Maker(block8, 8),
    "int4": Maker(int4, 4),
    "int4_prepacked": Maker(partial(prepacked, 4), 4),
    "int8_prepacked": Maker(partial(prepacked, 8), 8),
    "lora": Maker(lora, 16),
}


if __name__ == "__main__":
    main()
