"""Times of a mixture of experts' layer on this GPU, beside torch and what reading its weights once takes.

    aotbuild --arch sm_90 manifests/moe.yaml && python benchmarks/moe.py dist/moe-sm_90

The default shape is that of Qwen3-30B-A3B: 128 experts, 8 of them a token, hidden 2048, intermediate 768; bfloat16. The
routers are random. Calls are captured in graphs, and ways take turns; medians are shown. Bytes are those of the experts
that have tokens, each read once; a product counts 2 m n k. The peer is a loop over these experts in torch, captured:
two products, the activation and the weighted addition of each, with the tokens of each expert known beforehand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from measure import table
from on_gpu import device_times, heading, import_torch

from aot_runtime import AotError, Bundle, open_bundle

TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
PACKAGES = ("numpy", "torch", "triton", "cuda-bindings", "hip-python")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/moe.yaml for this GPU")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS, help="(default: %(default)s)")
    parser.add_argument("--experts", type=int, default=128, help="(default: %(default)s)")
    parser.add_argument("--topk", type=int, default=8, help="experts of a token (default: %(default)s)")
    parser.add_argument("--hidden", type=int, default=2048, help="(default: %(default)s)")
    parser.add_argument("--intermediate", type=int, default=768, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of each (default: %(default)s)")
    options = parser.parse_args()
    torch = import_torch()
    if torch is None:
        sys.exit("moe.py: torch is needed, for inputs and as the peer")
    try:
        bundle = open_bundle(options.bundle)
        print(heading(bundle.device, *PACKAGES))
        layer = Layer(bundle, torch, options.experts, options.topk, options.hidden, options.intermediate)
        headings = ("tokens", "route µs", "moe µs", "weights GB/s", "TFLOP/s", "torch µs", "torch / ours", "difference")
        print(table(headings, [layer.measured(tokens, options.rounds) for tokens in options.tokens]))
    except AotError as error:
        sys.exit(f"moe.py: {error}")


class Layer:
    """Experts' weights, and what is measured with them."""

    def __init__(self, bundle: Bundle, torch: Any, experts: int, topk: int, hidden: int, intermediate: int):
        self.bundle, self.torch, self.topk = bundle, torch, topk
        self.gate_up = self._random(experts, 2 * intermediate, hidden) * hidden**-0.5
        self.down = self._random(experts, hidden, intermediate) * intermediate**-0.5

    def measured(self, tokens: int, rounds: int) -> list[str]:
        """A row of the table."""
        torch, (experts, hidden, intermediate) = self.torch, self.down.shape
        x, logits = self._random(tokens, hidden), self._random(tokens, experts)
        out = torch.empty_like(x)
        weights = torch.empty((tokens, self.topk), device="cuda")
        chosen = torch.empty((tokens, self.topk), device="cuda", dtype=torch.int32)
        torch.cuda.synchronize()
        ours = [self.bundle.device.wrap(t) for t in (x, self.gate_up, self.down, weights, chosen, logits, out)]
        route = partial(self.bundle.moe_route, ours[5], topk=self.topk, weights=ours[3], chosen=ours[4])
        moe = partial(self.bundle.moe, *ours[:5], out=ours[6])
        ways = {"route": self._captured(route), "moe": self._captured(moe)}
        route()
        moe()
        self.bundle.device.synchronize()
        peer, result = self._peer(x, weights, chosen)
        seconds = device_times(self.bundle, ways | {"torch": peer}, rounds)
        taken, used = seconds["moe"], len(torch.unique(chosen))
        numbers = 3 * hidden * intermediate
        return [
            str(tokens), f"{seconds['route'] * 1e6:.1f}",
            f"{taken * 1e6:.1f}", f"{used * numbers * 2 / taken / 1e9:.0f}",
            f"{tokens * self.topk * numbers * 2 / taken / 1e12:.1f}", f"{seconds['torch'] * 1e6:.1f}",
            f"{seconds['torch'] / taken:.2f}", f"{float((result - out).abs().max()):.1e}",
        ]  # fmt: skip

    def _random(self, *shape: int) -> Any:
        return self.torch.randn(shape, device="cuda", dtype=self.torch.float32).bfloat16()

    def _captured(self, call: Callable[..., Any]) -> Callable[[], Any]:
        stream = self.bundle.device.stream()
        call(stream=stream)  # loads code and makes workspaces
        stream.synchronize()
        with self.bundle.device.capture(stream) as graph:
            call(stream=stream)
        return partial(graph.launch, None)

    def _peer(self, x: Any, weights: Any, chosen: Any) -> tuple[Callable[[], Any], Any]:
        """What replays a loop over experts, and where its result is."""
        torch = self.torch
        places = [(int(expert), *torch.nonzero(chosen == expert, as_tuple=True)) for expert in torch.unique(chosen)]

        def loop() -> Any:
            out = torch.zeros_like(x)
            for expert, tokens, slots in places:
                gate, up = (x[tokens] @ self.gate_up[expert].T).chunk(2, 1)
                part = (torch.nn.functional.silu(gate) * up) @ self.down[expert].T
                out.index_add_(0, tokens, part * weights[tokens, slots, None].bfloat16())
            return out

        loop()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = loop()
        graph.replay()
        torch.cuda.synchronize()
        return graph.replay, result


if __name__ == "__main__":
    main()
