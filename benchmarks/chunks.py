"""TFLOP/s of chunks of prompts over caches in blocks on this GPU, beside torch's attention.

    aotbuild --arch sm_90 manifests/decode.yaml && python benchmarks/chunks.py dist/decode-sm_90

Each sequence's last queries see the keys up to their own positions; blocks are in random order. torch's attention
(cuDNN) sees all keys, contiguous and of the same lengths. Only visible keys count as operations. Device times are
medians of rounds in which all take turns. The difference is the largest between our results for the first and the other
block sizes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import table
from on_gpu import device_times, heading, max_difference, require_torch, working

from aot_runtime import AotError, Bundle, open_bundle

SHAPES = "8x512x4096 4x1024x8192 16x128x4096 1x2048x2048"
BLOCK_SIZES = (16, 64)


@dataclass(frozen=True)
class Shape:
    batch: int
    queries: int
    keys: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """`8x512x4096`: sequences, queries and keys of each. Raises ValueError."""
        return cls(*(int(part) for part in text.split("x")))

    def __str__(self) -> str:
        return f"{self.batch}x{self.queries}x{self.keys}"

    @property
    def pairs(self) -> int:
        """Count the pairs of queries and keys that are seen, for one head."""
        return self.batch * (self.queries * self.keys - self.queries * (self.queries - 1) // 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/decode.yaml for this GPU")
    parser.add_argument("--shapes", type=Shape.parse, nargs="+", default=[Shape.parse(text) for text in SHAPES.split()],
                        metavar="BxQxK", help=f"sequences, queries and keys of each (default: {SHAPES})")  # fmt: skip
    parser.add_argument("--heads", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument("--heads-kv", type=int, default=8, help="key heads (default: %(default)s)")
    parser.add_argument("--head-dim", type=int, default=128, help="(default: %(default)s)")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of each (default: %(default)s)")
    options = parser.parse_args()
    torch = require_torch()
    try:
        bundle = open_bundle(options.bundle)
        print(f"{heading(bundle.device)}; {options.dtype}\n")
        print(report(bundle, torch, options))
    except AotError as error:
        sys.exit(f"chunks.py: {error}")


def report(bundle: Bundle, torch: Any, options: argparse.Namespace) -> str:
    new = partial(torch.randn, device="cuda", dtype=getattr(torch, options.dtype))
    names = [*(f"blocks of {size}" for size in BLOCK_SIZES), "cuDNN, all seen"]
    rows = []
    for shape in options.shapes:
        q = new((shape.batch * shape.queries, options.heads, options.head_dim))
        k, v = (new((shape.batch, shape.keys, options.heads_kv, options.head_dim)) for _ in range(2))
        outs = [torch.empty_like(q) for _ in BLOCK_SIZES]
        ours = [
            paged_way(bundle, torch, shape, size, q, k, v, out) for size, out in zip(BLOCK_SIZES, outs, strict=True)
        ]
        by_head = (x.unflatten(0, (shape.batch, -1)) if x is q else x for x in (q, k, v))
        theirs = partial(cudnn_attention, torch, *(x.transpose(1, 2).contiguous() for x in by_head))
        torch.cuda.synchronize()
        ways = working(shape, dict(zip(names, (*ours, theirs), strict=True)))
        torch.cuda.synchronize()
        difference = max_difference(bundle.device.wrap(outs[0]), outs[1])
        operations = 4 * options.head_dim * options.heads
        counted = dict.fromkeys(names, shape.pairs) | {names[-1]: shape.batch * shape.queries * shape.keys}
        times = device_times(bundle, ways, options.rounds)
        rate = {name: operations * counted[name] / taken / 1e12 for name, taken in times.items()}
        rows.append([str(shape), *(f"{rate[name]:.0f}" if name in rate else "-" for name in names), difference])
    return table(("TFLOP/s", *names, "difference"), rows)


def paged_way(
    bundle: Bundle, torch: Any, shape: Shape, size: int, q: Any, k: Any, v: Any, out: Any
) -> Callable[[], Any]:  # fmt: skip
    """Return the op over k and v [batch, keys, heads, head_dim] in blocks of a size."""
    per_sequence = shape.keys // size
    order = torch.randperm(shape.batch * per_sequence)
    caches = [x.unflatten(1, (per_sequence, size)).flatten(0, 1)[order.cuda()] for x in (k, v)]
    tables = order.argsort().reshape(shape.batch, per_sequence).int().numpy()
    lists = (tables, np.full(shape.batch, shape.keys, np.int32), np.arange(shape.batch + 1) * shape.queries)
    on_device = [bundle.device.array(x.astype(np.int32)) for x in lists]
    wrapped = [bundle.device.wrap(x) for x in (q, *caches)]
    return partial(
        bundle.paged_attention, *wrapped, *on_device, max_seqlen_q=shape.queries, out=bundle.device.wrap(out)
    )


def cudnn_attention(torch: Any, q: Any, k: Any, v: Any) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


if __name__ == "__main__":
    main()
