"""Times of a mixture-of-experts layer on this GPU, beside torch and the time to read its weights once.

    aotbuild --arch sm_90 manifests/moe.yaml && python benchmarks/moe.py dist/moe-sm_90

The default shape is that of Qwen3-30B-A3B in bfloat16: 128 experts, 8 for each token, hidden 2048, intermediate 768.
Routing is random. Calls are captured in graphs and take turns; medians are shown. Bytes are those of the experts with
tokens, each read once; a product counts 2 m n k. The peer is a captured loop over these experts in torch, with the
tokens of each expert known beforehand: two products, the activation and the weighted addition. Its weights always have
16 bits, and its result is compared only if ours do too.

--adopted takes a bundle of a foreign kernel with the contract of examples/foreign/fused_moe.yaml, such as vLLM's
fused_moe.py (with --dtype float16). Only its two 16-bit products are timed, with the order of the tokens known
beforehand, and without the activation and the final sum. --adopted-rows are the rows of its blocks for each number of
tokens, if its contract leaves them open.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from measure import line
from on_gpu import device_times, heading, require_torch

from aot_runtime import AotError, Bundle, DeviceArray, open_bundle
from aot_runtime.contract.arch import ARCHITECTURES

TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
KINDS = {"plain": ("moe", 2), "float8": ("moe_scaled", 1), "float8_blocks": ("moe_block_scaled", 1),
         "int8": ("moe_scaled", 1), "int8_weights": ("moe_int8", 1), "int4": ("moe_int4", 0.5)}  # fmt: skip
"""Kind of weights → (its op, bytes of a weight)."""
GROUP = 128
"""Weights along k that share a scale."""
FLOAT8 = {"fnuz": ml_dtypes.float8_e4m3fnuz, "ocp": ml_dtypes.float8_e4m3fn}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/moe.yaml for this GPU")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="(default: %(default)s)")
    parser.add_argument("--experts", type=int, default=128, help="(default: %(default)s)")
    parser.add_argument("--topk", type=int, default=8, help="experts of a token (default: %(default)s)")
    parser.add_argument("--hidden", type=int, default=2048, help="(default: %(default)s)")
    parser.add_argument("--intermediate", type=int, default=768, help="(default: %(default)s)")
    parser.add_argument("--kind", choices=KINDS, default="plain", help="of the weights (default: %(default)s)")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16", help="(default: %(default)s)")
    parser.add_argument("--adopted", type=Path, help="a bundle of examples/foreign/fused_moe.yaml, or of its like")
    parser.add_argument("--adopted-rows", type=int, nargs="+", default=[32], help="(default: 32 for all)")
    parser.add_argument("--no-torch", action="store_true", help="leave the loop in torch out")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of each (default: %(default)s)")
    options = parser.parse_args()
    torch = require_torch()
    try:
        bundle = open_bundle(options.bundle)
        print(heading(bundle.device))
        sizes = options.experts, options.topk, options.hidden, options.intermediate
        adopted = None if options.adopted is None else open_bundle(options.adopted)
        layer = Layer(bundle, torch, options.kind, getattr(torch, options.dtype), *sizes, adopted)
        headings = (
            "route µs", "moe µs", "weights GB/s", "TFLOP/s", "torch µs", "torch/ours", "adopted µs", "adopted/ours",
            "difference",
        )  # fmt: skip
        rows = options.adopted_rows * (len(options.tokens) if len(options.adopted_rows) == 1 else 1)
        if len(rows) != len(options.tokens):
            parser.error(f"--adopted-rows: one number, or {len(options.tokens)}")
        print(line("tokens", headings, 8))
        for tokens, of_block in zip(options.tokens, rows, strict=True):
            print(line(str(tokens), layer.measured(tokens, of_block, options), 8), flush=True)
    except AotError as error:
        sys.exit(f"moe.py: {error}")


class Layer:
    """Experts' weights, and the calls that are measured with them."""

    def __init__(
        self, bundle: Bundle, torch: Any, kind: str, dtype: Any, experts: int, topk: int, hidden: int,
        intermediate: int, adopted: Bundle | None,
    ):  # fmt: skip
        self.bundle, self.torch, self.kind, self.dtype, self.topk = bundle, torch, kind, dtype, topk
        self.adopted = adopted
        self.gate_up = self._random(experts, 2 * intermediate, hidden) * hidden**-0.5
        self.down = self._random(experts, hidden, intermediate) * intermediate**-0.5
        if kind == "plain":
            torch.cuda.synchronize()
            self.weights: Mapping[str, DeviceArray] = {
                "gate_up": bundle.device.wrap(self.gate_up), "down": bundle.device.wrap(self.down)
            }  # fmt: skip
        else:
            sixteen = np.dtype(ml_dtypes.bfloat16 if dtype == torch.bfloat16 else np.float16)
            shapes = {"gate_up": tuple(self.gate_up.shape), "down": tuple(self.down.shape)}
            made = [random_weights(bundle, kind, name, shape, sixteen) for name, shape in shapes.items()]
            self.weights = {name: bundle.device.array(host) for arrays in made for name, host in arrays.items()}

    def measured(self, tokens: int, adopted_rows: int, options: argparse.Namespace) -> list[str]:
        """Return a row of the table."""
        torch, (experts, hidden, intermediate) = self.torch, self.down.shape
        x, logits = self._random(tokens, hidden), self._random(tokens, experts)
        out = torch.empty_like(x)
        weights = torch.empty((tokens, self.topk), device="cuda")
        chosen = torch.empty((tokens, self.topk), device="cuda", dtype=torch.int32)
        torch.cuda.synchronize()
        op, size = KINDS[self.kind]
        of_x, of_weights, of_chosen, of_logits, of_out = map(self.bundle.device.wrap, (x, weights, chosen, logits, out))
        route = partial(self.bundle.moe_route, of_logits, topk=self.topk, weights=of_weights, chosen=of_chosen)
        moe = partial(getattr(self.bundle, op), of_x, **self.weights, weights=of_weights, chosen=of_chosen, out=of_out)
        ways = {"route": self._captured(route), "moe": self._captured(moe)}
        route()
        moe()
        self.bundle.device.synchronize()
        result = None
        if not options.no_torch:
            ways["torch"], result = self._peer(x, weights, chosen)
        if self.adopted is not None:
            ways["adopted"] = self._captured(self._adopted_products(self.adopted, x, weights, chosen, adopted_rows))
        seconds = device_times(self.bundle, ways, options.rounds)
        taken, used = seconds["moe"], len(torch.unique(chosen))
        numbers = 3 * hidden * intermediate
        row = [
            f"{seconds['route'] * 1e6:.1f}",
            f"{taken * 1e6:.1f}", f"{used * numbers * size / taken / 1e9:.0f}",
            f"{tokens * self.topk * numbers * 2 / taken / 1e12:.1f}",
        ]  # fmt: skip
        for peer in ("torch", "adopted"):
            theirs = seconds.get(peer)
            row += ["-", "-"] if theirs is None else [f"{theirs * 1e6:.1f}", f"{theirs / taken:.2f}"]
        is_compared = result is not None and self.kind == "plain"
        return [*row, f"{float((result - out).abs().max()):.1e}" if is_compared else "-"]

    def _random(self, *shape: int) -> Any:
        return self.torch.randn(shape, device="cuda", dtype=self.torch.float32).to(self.dtype)

    def _captured(self, call: Callable[..., Any]) -> Callable[[], Any]:
        stream = self.bundle.device.stream()
        call(stream=stream)  # loads code and makes workspaces
        stream.synchronize()
        with self.bundle.device.capture(stream) as graph:
            call(stream=stream)
        return partial(graph.launch, None)

    def _adopted_products(self, adopted: Bundle, x: Any, weights: Any, chosen: Any, rows: int) -> Callable[..., None]:
        device, (tokens, topk) = self.bundle.device, tuple(chosen.shape)
        (experts, hidden, intermediate), wide = self.down.shape, self.gate_up.shape[1]
        act = self._random(tokens * topk, intermediate)
        first, second = self._random(tokens * topk, wide), self._random(tokens * topk, hidden)
        # The second product has a row for each assignment: as many tokens with one expert, but the routed weights.
        self.torch.cuda.synchronize()
        lists = [device.array(array) for array in in_blocks(chosen.cpu().numpy(), experts, rows)]
        arrays = (x, self.gate_up, weights, first, act, self.down, weights.reshape(-1, 1), second)
        a, gate_up, by_slot, c, between, down, by_row, out = map(device.wrap, arrays)

        def products(stream: Any) -> None:
            adopted.fused_moe(a, gate_up, by_slot, *lists, c=c, mul_routed_weight=False, stream=stream)
            adopted.fused_moe(between, down, by_row, *lists, c=out, mul_routed_weight=True, stream=stream)

        return products

    def _peer(self, x: Any, weights: Any, chosen: Any) -> tuple[Callable[[], Any], Any]:
        torch = self.torch
        places = [(int(expert), *torch.nonzero(chosen == expert, as_tuple=True)) for expert in torch.unique(chosen)]

        def loop() -> Any:
            out = torch.zeros_like(x)
            for expert, tokens, slots in places:
                gate, up = (x[tokens] @ self.gate_up[expert].T).chunk(2, 1)
                part = (torch.nn.functional.silu(gate) * up) @ self.down[expert].T
                out.index_add_(0, tokens, part * weights[tokens, slots, None].to(self.dtype))
            return out

        loop()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = loop()
        graph.replay()
        torch.cuda.synchronize()
        return graph.replay, result


def random_weights(
    bundle: Bundle, kind: str, name: str, shape: tuple[int, int, int], dtype: np.dtype
) -> dict[str, np.ndarray]:
    """Make random arguments of a kind's op for one matrix of the experts; products are about 1."""
    rng, (experts, rows, columns) = np.random.default_rng(0), shape
    if kind == "int4":
        groups = (experts, columns // GROUP, rows)
        return {
            name: rng.integers(0, 256, (experts, rows, columns // 2), np.uint8),
            f"scales_{name}": np.full(groups, columns**-0.5 / 4.6, dtype),
            f"zeros_{name}": np.full(groups, 8, np.uint8),
        }
    codes = rng.integers(-63, 64, shape, np.int8)
    if kind.startswith("float8"):
        # Of float8 these are the codes of numbers below 2, of either sign; -0 is not among them, FNUZ's NaN.
        codes = (codes.view(np.uint8) & 0xBF).view(FLOAT8[ARCHITECTURES[bundle.device.arch].fp8])
    scale = columns**-0.5 / codes[0].astype(np.float32).std()
    if kind == "int8_weights":
        return {name: codes, f"scales_{name}": np.full((experts, columns // GROUP, rows), scale, dtype)}
    shape_of_scales = (experts, -(-rows // GROUP), -(-columns // GROUP)) if kind == "float8_blocks" else (experts, rows)
    return {name: codes, f"scale_{name}": np.full(shape_of_scales, scale, np.float32)}


def in_blocks(chosen: np.ndarray, experts: int, rows: int) -> list[np.ndarray]:
    """Return the assignments by expert in whole blocks of rows, the expert of each block, and the number of rows."""
    flat, ids, of_block = chosen.reshape(-1), [], []
    for expert in range(experts):
        own = np.flatnonzero(flat == expert)
        blocks = -(-len(own) // rows)
        ids += [own, np.full(blocks * rows - len(own), flat.size)]
        of_block += [expert] * blocks
    ordered = np.concatenate(ids).astype(np.int32)
    return [ordered, np.array(of_block, np.int32), np.array([len(ordered)], np.int32)]


if __name__ == "__main__":
    main()
