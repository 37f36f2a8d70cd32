"""GB/s of the ops of decoding on this GPU, beside torch's attention and a copy of as many bytes.

    aotbuild --arch sm_90 manifests/decode.yaml && python benchmarks/decode.py dist/decode-sm_90

Each sequence has one query token. All candidates use the same tensors in device memory; our outputs are preallocated.
Device times are measured between two events around about 20 ms of calls. All take turns, and medians are shown. Bytes
are those of K and V, each read once, and of the scales of quantised caches (for each token with int8, for each head
with float8). A number after a name is the block size. The copy reads half of the 16-bit bytes and writes half. Caches
are not flushed between calls, so shapes should exceed the L2. The difference is the largest between our results and
torch's, except for quantised caches.
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

from aot_runtime import AotError, Bundle, DeviceArray, open_bundle

SHAPES = "32x64x8x8192x128 32x32x8x8192x128 1x64x8x131072x128 8x32x32x4096x128 128x64x8x2048x128 4x8x1x32768x128"
BLOCK_SIZES = (16, 64)


@dataclass(frozen=True)
class Shape:
    batch: int
    heads: int
    heads_kv: int
    seqlen: int
    head_dim: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """`32x64x8x8192x128`: batch, heads, key heads, length of the cache, head dim. Raises ValueError."""
        batch, heads, heads_kv, seqlen, head_dim = (int(part) for part in text.split("x"))
        return cls(batch, heads, heads_kv, seqlen, head_dim)

    def __str__(self) -> str:
        return f"{self.batch}x{self.heads}x{self.heads_kv}x{self.seqlen}x{self.head_dim}"

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of K and V."""
        return 4 * self.batch * self.heads_kv * self.seqlen * self.head_dim

    @property
    def quantised_nbytes(self) -> dict[str, int]:
        """Return the number of bytes of K and V in 8 and 4 bits, by dtype: with 4 bytes of factors for a row, or
        none."""
        rows = 2 * self.batch * self.heads_kv * self.seqlen
        row = {"int8": self.head_dim + 4, "float8": self.head_dim, "int4": self.head_dim // 2 + 4}
        return {name: rows * nbytes for name, nbytes in row.items()}


@dataclass(frozen=True)
class Inputs:
    """q, k and v by head, as device arrays and torch's tensors; out is ours; lengths are those of all of the cache."""

    tensors: tuple[Any, Any, Any]
    arrays: tuple[DeviceArray, DeviceArray, DeviceArray]
    out: DeviceArray
    lengths: DeviceArray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/decode.yaml for this GPU")
    parser.add_argument("--shapes", type=Shape.parse, nargs="+", default=[Shape.parse(text) for text in SHAPES.split()],
                        metavar="BxHxHKVxSxD", help=f"what to run (default: {SHAPES})")  # fmt: skip
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of each (default: %(default)s)")
    parser.add_argument("--no-flex", action="store_true", help="leave out flex attention, which torch compiles")
    options = parser.parse_args()
    torch = require_torch()
    try:
        bundle = open_bundle(options.bundle)
        print(f"{heading(bundle.device)}; {options.dtype}\n")
        print(report(bundle, torch, options.shapes, options.dtype, options.rounds, not options.no_flex))
    except AotError as error:
        sys.exit(f"decode.py: {error}")


def report(bundle: Bundle, torch: Any, shapes: list[Shape], dtype: str, rounds: int, flex: bool) -> str:
    rows: list[list[str]] = []
    names: list[str] = []
    for shape in shapes:
        inputs = make_inputs(bundle, torch, shape, dtype)
        ours = our_ways(bundle, torch, inputs, shape)
        quantised = quantised_ways(bundle, torch, inputs, shape)
        others = {**quantised, **peers(torch, inputs, flex), "copy": copy_of(torch, shape)}
        ways = working(shape, ours | others)
        reference = next((way() for name, way in ways.items() if name.startswith("torch")), None)
        names = names or [*ours, *others]
        differences = []
        for name in ours:
            ways[name]()
            differences.append(max_difference(inputs.out, reference))
        times = device_times(bundle, ways, rounds)
        nbytes = {name: shape.quantised_nbytes.get(name.split()[0], shape.nbytes) for name in times}
        rate = {name: nbytes[name] / taken / 1e9 for name, taken in times.items()}
        cells = [f"{rate[name]:.0f}" if name in rate else "-" for name in names]
        rows.append([str(shape), *cells, f"{rate['flash'] / rate['copy']:.2f}", max(differences)])
    return table(("GB/s", *names, "flash / copy", "difference"), rows)


def make_inputs(bundle: Bundle, torch: Any, shape: Shape, dtype: str) -> Inputs:
    generator = torch.Generator("cuda").manual_seed(0)
    new = partial(torch.randn, device="cuda", dtype=getattr(torch, dtype), generator=generator)
    q = new((shape.batch, shape.heads, 1, shape.head_dim))
    # Paged caches have the heads of a token next to each other.
    k, v = (new((shape.batch, shape.seqlen, shape.heads_kv, shape.head_dim)).transpose(1, 2) for _ in range(2))
    torch.cuda.synchronize()
    lengths = bundle.device.array(np.full(shape.batch, shape.seqlen, np.int32))
    arrays = tuple(bundle.device.wrap(tensor) for tensor in (q, k, v))
    return Inputs((q, k, v), arrays, bundle.device.wrap(torch.empty_like(q)), lengths)


def our_ways(bundle: Bundle, torch: Any, inputs: Inputs, shape: Shape) -> dict[str, Callable[[], Any]]:
    """Return our ways over caches of 16 bits: contiguous, in listed blocks (all of them), and paged in a random
    order."""
    blocks = -(-shape.seqlen // 128)
    none, every, count = (
        bundle.device.array(np.array(x, np.int32)) for x in ([[0]], [[list(range(blocks))]], [[blocks]])
    )
    ways: dict[str, Callable[[], Any]] = {
        "flash": partial(bundle.flash_decode, *inputs.arrays, inputs.lengths, out=inputs.out),
        "flex": partial(bundle.flex_decode, *inputs.arrays, none, every, count, every, out=inputs.out),
    }
    _, k, v = inputs.tensors
    starts = bundle.device.array(np.arange(shape.batch + 1, dtype=np.int32))
    flat_q, flat_out = inputs.arrays[0][:, :, 0], inputs.out[:, :, 0]
    for size in BLOCK_SIZES:
        per_sequence = shape.seqlen // size
        order = torch.stack([torch.randperm(per_sequence) for _ in range(shape.batch)])
        caches = []
        for x in (k, v):
            blocks = x.transpose(1, 2).reshape(shape.batch, per_sequence, size, shape.heads_kv, shape.head_dim)
            shuffled = torch.stack([blocks[b][order[b]] for b in range(shape.batch)])
            caches.append(bundle.device.wrap(shuffled.flatten(0, 1)))
        where = order.argsort(1) + torch.arange(shape.batch)[:, None] * per_sequence
        tables = bundle.device.array(where.int().numpy())
        ways[f"paged {size}"] = partial(
            bundle.paged_attention, flat_q, *caches, tables, inputs.lengths, starts, out=flat_out
        )
    return ways


def quantised_ways(bundle: Bundle, torch: Any, inputs: Inputs, shape: Shape) -> dict[str, Callable[[], Any]]:
    """Return our ways over caches in 8 and 4 bits: contiguous, and in blocks of 16 by a shuffled table."""
    per_sequence = shape.seqlen // 16
    tables = bundle.device.array(torch.randperm(shape.batch * per_sequence).reshape(shape.batch, -1).int().numpy())
    starts = bundle.device.array(np.arange(shape.batch + 1, dtype=np.int32))
    flat_q, flat_out = inputs.arrays[0][:, :, 0], inputs.out[:, :, 0]
    made = {name: bytes_of(bundle, torch, inputs, name) for name in ("int8", "float8")}
    ways: dict[str, Callable[[], Any]] = {}
    for name, arrays in (made | {"int4": nibbles_of(bundle, inputs, shape)}).items():
        op = "_int4" if name == "int4" else ""
        flash, paged = (getattr(bundle, f"{kind}{op}") for kind in ("flash_decode", "paged_attention"))
        by_head = {key: x.transpose(0, 2, 1, *range(3, x.ndim)) for key, x in arrays.items()}
        in_blocks = {
            key: x.reshape(shape.batch * per_sequence, 16, *x.shape[2:]) if x.shape[1] > 1 else x
            for key, x in arrays.items()
        }
        ways[name] = partial(flash, inputs.arrays[0], seqlens_k=inputs.lengths, out=inputs.out, **by_head)
        ways[f"{name} 16"] = partial(
            paged, flat_q, block_tables=tables, seqlens_k=inputs.lengths, cu_seqlens_q=starts, out=flat_out, **in_blocks
        )
    return ways


def bytes_of(bundle: Bundle, torch: Any, inputs: Inputs, name: str) -> dict[str, DeviceArray]:
    """Return a cache [batch, tokens, heads, head_dim] of int8, or of float8, and its factors."""
    dtype, largest, dims = (torch.int8, 127, 3) if name == "int8" else (torch.float8_e4m3fn, 448, (0, 1, 3))
    found = {}
    for key, tensor in zip("kv", inputs.tensors[1:], strict=True):
        x = tensor.transpose(1, 2).float()
        factors = x.abs().amax(dims, keepdim=True) / largest
        numbers = x / factors
        found[key] = bundle.device.wrap((numbers.round() if name == "int8" else numbers).to(dtype))
        found[f"{key}_scale"] = bundle.device.wrap(factors[..., 0])
    torch.cuda.synchronize()
    return found


def nibbles_of(bundle: Bundle, inputs: Inputs, shape: Shape) -> dict[str, DeviceArray]:
    """Return a cache [batch, tokens, heads, head_dim // 2] that `append_kv_int4` wrote, with one group a row."""
    tokens, rows = shape.batch * shape.seqlen, (shape.batch, shape.seqlen, shape.heads_kv)
    new = [x.transpose(0, 2, 1, 3).reshape(tokens, shape.heads_kv, shape.head_dim) for x in inputs.arrays[1:]]
    caches = [bundle.device.empty((*rows, shape.head_dim // 2), np.uint8) for _ in new]
    pairs = [bundle.device.empty((*rows, 1, 2), np.float16) for _ in new]
    slots = bundle.device.array(np.arange(tokens, dtype=np.int32))
    bundle.append_kv_int4(*new, *caches, *pairs, slots)
    return dict(zip(("k", "v", "k_scale", "v_scale"), (*caches, *pairs), strict=True))


def peers(torch: Any, inputs: Inputs, flex: bool) -> dict[str, Callable[[], Any]]:
    """Return torch's fused attention, and flex attention, whose kernel for few queries is compiled at the first
    call."""
    attention = torch.nn.functional.scaled_dot_product_attention
    ways = {"torch SDPA": partial(attention, *inputs.tensors, enable_gqa=True)}
    if flex:
        from torch.nn.attention.flex_attention import flex_attention

        ways["torch flex"] = partial(torch.compile(flex_attention, dynamic=False), *inputs.tensors, enable_gqa=True)
    return ways


def copy_of(torch: Any, shape: Shape) -> Callable[[], Any]:
    source, target = (torch.empty(shape.nbytes // 2, dtype=torch.uint8, device="cuda") for _ in range(2))
    return partial(target.copy_, source)


if __name__ == "__main__":
    main()
