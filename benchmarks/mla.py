"""Rates of latent attention on this GPU: decoding beside a copy of as many bytes, prompts beside torch's attention.

    aotbuild --arch sm_90 manifests/decode.yaml && python benchmarks/mla.py decode dist/decode-sm_90
    aotbuild --arch sm_90 manifests/attention.yaml && python benchmarks/mla.py prefill dist/attention-sm_90

Rows of the cache have 512 latent and 64 rotated elements, in blocks in random order. The bytes of decoding are those of
the cache, read once; the copy reads half as many and writes half. Caches are not flushed between calls. torch has no
latent attention: for prompts, it computes each head's keys and values, of 192 and 128 elements, and uses its own
attention. Operations are those of our op, with absorbed projections; a causal mask halves them. Device times are
medians of rounds in which all take turns. The difference is the largest from torch's result, for decoding in float32.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import table
from on_gpu import device_times, heading, max_difference, require_torch, working

from aot_runtime import AotError, Bundle, open_bundle

LATENT, ROPE, HEAD_DIM = 512, 64, 128
SHAPES = {"decode": "64x16x8192 64x32x8192 64x64x8192 64x128x8192 4x16x32768", "prefill": "1x16x4096 1x128x4096"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=tuple(SHAPES), help="which op")
    parser.add_argument("bundle", type=Path, help="the bundle for this GPU that has it")
    parser.add_argument("--shapes", type=parse_shape, nargs="+", metavar="BxHxS",
                        help=f"batch, heads, length of the sequences (default: {SHAPES})")  # fmt: skip
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16", help="(default: %(default)s)")
    parser.add_argument("--block-size", type=int, default=64, help="rows of a block of a cache (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of each (default: %(default)s)")
    options = parser.parse_args()
    torch = require_torch()
    shapes = options.shapes or [parse_shape(text) for text in SHAPES[options.what].split()]
    report = partial(decode_report, block_size=options.block_size) if options.what == "decode" else prefill_report
    try:
        bundle = open_bundle(options.bundle)
        print(f"{heading(bundle.device)}; {options.dtype}\n")
        print(report(bundle, torch, shapes, getattr(torch, options.dtype), options.rounds))
    except AotError as error:
        sys.exit(f"mla.py: {error}")


def parse_shape(text: str) -> tuple[int, int, int]:
    """`64x16x8192`: batch, heads, length. Raises ValueError."""
    batch, heads, seqlen = (int(part) for part in text.split("x"))
    return batch, heads, seqlen


def decode_report(
    bundle: Bundle, torch: Any, shapes: list[tuple[int, int, int]], dtype: Any, rounds: int, block_size: int
) -> str:
    rows = []
    for batch, heads, seqlen in shapes:
        new = tensors(torch, dtype)
        q, cache = new(batch, heads, LATENT + ROPE), new(batch * seqlen // block_size, block_size, LATENT + ROPE)
        out = new(batch, heads, LATENT)
        tables = torch.randperm(cache.shape[0]).reshape(batch, -1)
        scale = (HEAD_DIM + ROPE) ** -0.5
        expected = torch.stack([
            one_query(torch, q[b], cache[tables[b].cuda()].flatten(0, 1), scale) for b in range(batch)
        ])  # fmt: skip
        arrays = [bundle.device.wrap(x) for x in (q, cache)]
        lists = (tables.int().numpy(), np.full(batch, seqlen, np.int32), np.arange(batch + 1, dtype=np.int32))
        result = bundle.device.wrap(out)
        ours = partial(bundle.mla_decode, *arrays, *map(bundle.device.array, lists), scale=scale, out=result)
        nbytes = 2 * cache.numel()
        source, target = (torch.empty(nbytes // 2, dtype=torch.uint8, device="cuda") for _ in range(2))
        times = device_times(bundle, {"mla": ours, "copy": partial(target.copy_, source)}, rounds)
        flops = 2 * batch * heads * seqlen * (2 * LATENT + ROPE)
        difference = max_difference(result, expected)
        rows.append([
            f"{batch}x{heads}x{seqlen}", f"{times['mla'] * 1e6:.1f}", f"{nbytes / times['mla'] / 1e9:.0f}",
            f"{nbytes / times['copy'] / 1e9:.0f}", f"{times['copy'] / times['mla']:.2f}",
            f"{flops / times['mla'] / 1e12:.0f}", difference,
        ])  # fmt: skip
    return table(("decode", "µs", "GB/s", "copy", "of the copy", "TFLOP/s", "difference"), rows)


def one_query(torch: Any, q: Any, rows: Any, scale: float) -> Any:
    """Attend a token's heads [heads, latent + rope] to the rows of its sequence, in float32."""
    p = torch.softmax(q.float() @ rows.float().T * scale, -1)
    return p @ rows[:, :LATENT].float()


def prefill_report(bundle: Bundle, torch: Any, shapes: list[tuple[int, int, int]], dtype: Any, rounds: int) -> str:
    rows = []
    for batch, heads, seqlen in shapes:
        new = tensors(torch, dtype)
        q_nope, q_pe = new(batch, heads, seqlen, HEAD_DIM), new(batch, heads, seqlen, ROPE)
        kv, k_pe = new(batch, seqlen, LATENT), new(batch, seqlen, ROPE)
        wkv_b = new(heads, 2 * HEAD_DIM, LATENT) / 16
        out = bundle.device.wrap(torch.empty_like(q_nope))
        arrays = [bundle.device.wrap(x) for x in (q_nope, q_pe, kv, k_pe, wkv_b)]
        for causal in (False, True):
            ways = working(f"{batch}x{heads}x{seqlen}", {
                "mla": partial(bundle.mla_prefill, *arrays, causal=causal, out=out),
                "torch": expanded(torch, q_nope, q_pe, kv, k_pe, wkv_b, causal),
            })  # fmt: skip
            expected = ways["torch"]() if "torch" in ways else None
            ways["mla"]()
            difference = max_difference(out, expected)
            times = device_times(bundle, ways, rounds)
            per_key = 2 * LATENT + ROPE
            flops = 2 * batch * heads * seqlen * (seqlen * per_key // (2 if causal else 1) + 2 * HEAD_DIM * LATENT)
            ratio = f"{times['torch'] / times['mla']:.2f}" if "torch" in times else "-"
            rows.append([
                f"{batch}x{heads}x{seqlen}{' causal' * causal}", f"{times['mla'] * 1e6:.0f}",
                f"{flops / times['mla'] / 1e12:.0f}", ratio, difference,
            ])  # fmt: skip
    return table(("prefill", "µs", "TFLOP/s", "of torch's rate", "difference"), rows)


def expanded(torch: Any, q_nope: Any, q_pe: Any, kv: Any, k_pe: Any, wkv_b: Any, causal: bool) -> Callable[[], Any]:
    """torch's attention to keys and values that are made for each head."""

    def attend() -> Any:
        heads = torch.einsum("bsl,hdl->bhsd", kv, wkv_b)
        k_nope, v = heads.split(HEAD_DIM, -1)
        rotated = k_pe[:, None].expand(-1, q_nope.shape[1], -1, -1)
        q, k = torch.cat((q_nope, q_pe), -1), torch.cat((k_nope, rotated), -1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return attend


def tensors(torch: Any, dtype: Any) -> Callable[..., Any]:
    """Return a function that makes normal random tensors of a shape."""
    generator = torch.Generator("cuda").manual_seed(0)
    return lambda *shape: torch.randn(shape, device="cuda", dtype=dtype, generator=generator)


if __name__ == "__main__":
    main()
