"""TFLOP/s of flash_attention on this GPU, beside torch's FlashAttention and cuDNN backends.

    aotbuild --arch sm_90 manifests/attention.yaml && python benchmarks/attention.py dist/attention-sm_90

`--float8 dist/attention_quantised-sm_90`, the bundle of manifests/attention_quantised.yaml, measures float8, too.

All backends use the same tensors in device memory; our outputs are preallocated. Device times are measured between two
events around about 20 ms of calls. The backends take turns, and medians are shown. A matrix product of M x N x K counts
2 M N K; a causal mask halves the work. Caches are not flushed between calls. The difference is the largest between our
result and that of torch's first backend.

These shapes are also shown as fractions of the plain shape's TFLOP/s: fewer heads of K and V than of Q (16/2),
concatenated sequences of different lengths (v: half to one and a half times the given length), a soft-cap of 50 (s),
and ALiBi (a). float8 is compared with our 16-bit attention, for the same values rounded to e4m3 and scales of 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import table
from on_gpu import device_times, heading, import_torch, max_difference, working

from aot_runtime import AotError, Bundle, DeviceArray, open_bundle

SHAPES = (
    "4x16x4096x128 4x16x4096x128c 16x16x1024x128 16x16x1024x128c 1x16x16384x128c 4x16x4096x64 4x16x4096x64c "
    "4x16x4096x256c 4x16/2x4096x128 4x16/2x4096x128c 4x16x4096x128v 4x16x4096x128cv 4x16x4096x128cs 4x16x4096x128ca"
)


@dataclass(frozen=True)
class Shape:
    """A call. varlen: `batch` sequences of `seqlen` tokens on average."""

    batch: int
    heads: int
    heads_kv: int
    seqlen: int
    head_dim: int
    causal: bool = False
    varlen: bool = False
    softcap: bool = False
    alibi: bool = False

    @classmethod
    def parse(cls, text: str) -> Shape:
        """`4x16/2x4096x128cvsa`: batch, heads/those of K and V, sequence length, head dim, causal, varlen, soft-cap,
        ALiBi.

        Raises ValueError.
        """
        digits = text.rstrip("cvsa")
        batch, heads, seqlen, head_dim = digits.split("x")
        heads, _, heads_kv = heads.partition("/")
        extents = int(batch), int(heads), int(heads_kv or heads), int(seqlen), int(head_dim)
        return cls(*extents, *(flag in text[len(digits) :] for flag in "cvsa"))

    def __str__(self) -> str:
        heads = f"{self.heads}/{self.heads_kv}" if self.heads_kv < self.heads else f"{self.heads}"
        kinds = " causal" * self.causal + " varlen" * self.varlen + " soft-cap" * self.softcap + " ALiBi" * self.alibi
        return f"{self.batch}x{heads}x{self.seqlen}x{self.head_dim}{kinds}"

    @property
    def plain(self) -> Shape:
        return replace(self, heads_kv=self.heads, varlen=False, softcap=False, alibi=False)

    @property
    def lengths(self) -> list[int]:
        """Return the lengths of the sequences."""
        if not self.varlen:
            return [self.seqlen] * self.batch
        return np.linspace(self.seqlen / 2, self.seqlen * 3 / 2, self.batch).astype(int).tolist()

    def extents(self, heads: int) -> tuple[int, ...]:
        """Return the shape of a tensor with this many heads."""
        if self.varlen:
            return sum(self.lengths), heads, self.head_dim
        return self.batch, heads, self.seqlen, self.head_dim

    @property
    def flops(self) -> float:
        """Return the number of operations of the two matrix products."""
        return 4 * self.heads * self.head_dim * sum(n * n for n in self.lengths) / (2 if self.causal else 1)


@dataclass(frozen=True)
class Inputs:
    """q, k, v, and a place for our result, as device arrays; and the first three as torch's tensors, if it is there."""

    arrays: tuple[DeviceArray, DeviceArray, DeviceArray]
    out: DeviceArray
    tensors: tuple[Any, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/attention.yaml for this GPU")
    parser.add_argument("--shapes", type=Shape.parse, nargs="+", default=[Shape.parse(text) for text in SHAPES.split()],
                        metavar="BxH[/HKV]xSxD[c][v][s][a]",
                        help=f"what to run; c causal, v varlen, s soft-cap, a ALiBi (default: {SHAPES})")  # fmt: skip
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="float16", help="(default: %(default)s)")
    parser.add_argument("--float8", type=Path, help="the bundle of manifests/attention_quantised.yaml for this GPU")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each backend (default: %(default)s)")
    options = parser.parse_args()
    try:
        bundle = open_bundle(options.bundle)
        print(f"{heading(bundle.device)}; {options.dtype}\n")
        float8 = open_bundle(options.float8) if options.float8 else None
        print(report(bundle, options.shapes, options.dtype, options.rounds, float8))
    except AotError as error:
        sys.exit(f"attention.py: {error}")


def report(bundle: Bundle, shapes: list[Shape], dtype: str, rounds: int, float8: Bundle | None = None) -> str:
    torch = import_torch()
    peers = torch_backends(torch)
    rows, rates = [], {}
    for shape in shapes:
        inputs = make_inputs(bundle, shape, dtype, torch)
        ways = {"ours": our_call(bundle, shape, inputs)}
        if not (shape.varlen or shape.softcap or shape.alibi):  # which torch's public function has no fused kernel for
            ways |= working(shape, {name: partial(peer, *inputs.tensors, shape.causal) for name, peer in peers.items()})
        ways["ours"]()
        difference = max_difference(inputs.out, next((way() for name, way in ways.items() if name != "ours"), None))
        if float8 and not (shape.softcap or shape.alibi):
            ways["float8"] = float8_call(float8, shape, inputs)
        times = device_times(bundle, ways, rounds)
        rate = {name: shape.flops / taken / 1e12 for name, taken in times.items()}
        rates[shape] = rate["ours"]
        plain = f"{rate['ours'] / rates[shape.plain]:.2f}" if shape != shape.plain in rates else "-"
        beside = [cell for name in peers for cell in _cells(rate, name, "ours", name)]
        of_float8 = _cells(rate, "float8", "float8", "ours") if float8 else ()
        rows.append([str(shape), f"{rate['ours']:.0f}", plain, *beside, *of_float8, difference])
    of_float8 = ("float8", "it / ours") if float8 else ()
    of_peers = (t for name in peers for t in (name, "ours / it"))
    headings = ("TFLOP/s", "ours", "of plain", *of_peers, *of_float8, "difference")
    return table(headings, rows)


def _cells(rate: dict[str, float], name: str, one: str, other: str) -> tuple[str, str]:
    """Format the rate of `name`, and that of `one` relative to `other`; dashes where it was not measured."""
    return (f"{rate[name]:.0f}", f"{rate[one] / rate[other]:.2f}") if name in rate else ("-", "-")


def our_call(bundle: Bundle, shape: Shape, inputs: Inputs) -> Callable[[], Any]:
    features: dict[str, Any] = {"softcap": 50.0} if shape.softcap else {}
    if shape.alibi:
        slopes = np.linspace(0.5, 0.01, shape.heads, dtype=np.float32)[None, :]
        features["alibi_slopes"] = bundle.device.array(slopes)
    if not shape.varlen:
        return partial(bundle.flash_attention, *inputs.arrays, causal=shape.causal, out=inputs.out, **features)
    starts = bundle.device.array(np.cumsum([0, *shape.lengths]).astype(np.int32))
    return partial(
        bundle.flash_attention_varlen, *inputs.arrays, starts, starts, causal=shape.causal, out=inputs.out,
        max_seqlen_q=max(shape.lengths), **features,
    )  # fmt: skip


def float8_call(bundle: Bundle, shape: Shape, inputs: Inputs) -> Callable[[], Any]:
    """Return the call in e4m3, from another bundle."""
    from aot_runtime.contract.dtypes import numpy_dtype

    device, float8 = bundle.device, numpy_dtype("float8_e4m3fn")
    numbers = [device.array(array.numpy().astype(float8)) for array in inputs.arrays]
    out, one = device.empty(inputs.out.shape, inputs.out.dtype), device.array(np.ones((1, 1), np.float32))
    if not shape.varlen:
        return partial(bundle.flash_attention_fp8, *numbers, out, one, one, one, causal=shape.causal)
    starts = device.array(np.cumsum([0, *shape.lengths]).astype(np.int32))
    return partial(
        bundle.flash_attention_fp8_varlen, *numbers, out, starts, starts, one, one, one, causal=shape.causal,
        max_seqlen_q=max(shape.lengths),
    )  # fmt: skip


def make_inputs(bundle: Bundle, shape: Shape, dtype: str, torch: Any) -> Inputs:
    extents = [shape.extents(heads) for heads in (shape.heads, shape.heads_kv, shape.heads_kv)]
    if torch is None:
        from aot_runtime.contract.dtypes import numpy_dtype

        rng = np.random.default_rng(0)
        hosts = (rng.standard_normal(extent, np.float32).astype(numpy_dtype(dtype)) for extent in extents)
        q, k, v = (bundle.device.array(host) for host in hosts)
        return Inputs((q, k, v), bundle.device.empty(extents[0], dtype), ())
    generator = torch.Generator("cuda").manual_seed(0)
    new = partial(torch.randn, device="cuda", dtype=getattr(torch, dtype), generator=generator)
    tensors = tuple(new(extent) for extent in extents)
    torch.cuda.synchronize()
    q, k, v = (bundle.device.wrap(tensor) for tensor in tensors)
    return Inputs((q, k, v), bundle.device.wrap(torch.empty_like(tensors[0])), tensors)


# Peers


def torch_backends(torch: Any) -> dict[str, Callable[..., Any]]:
    """Return torch's backends that have fused kernels, as functions of q, k, v and causal."""
    if torch is None:
        return {}
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attention(backend: Any, q: Any, k: Any, v: Any, causal: bool) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    return {
        "torch FlashAttention": partial(attention, SDPBackend.FLASH_ATTENTION),
        "torch cuDNN": partial(attention, SDPBackend.CUDNN_ATTENTION),
    }


if __name__ == "__main__":
    main()
