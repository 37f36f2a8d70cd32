"""Calls of the quantised attention ops: normal random numbers, quantised as a caller would, with a factor a head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from aot_runtime.caches import quantise_heads
from aot_runtime.masks import parse_mask
from tests.ops.attention.calls import DTYPES, INT8, Array, Call, Placed, lse_room, placed, room


@dataclass(frozen=True)
class Quantised:
    """One call. op: without `flash_attention_`. dtype: that of out. What is not said here is as in `cases.Case`.

    batch_scales: each head of each batch has its own factor; otherwise one serves all of a head's batches.
    """

    op: str
    mask: str = "0"
    head_dim: int = 64
    lengths: tuple[int, int] = (70, 100)
    heads: tuple[int, int] = (2, 1)
    dtype: str = "float16"
    layout: str = "bhsd"
    v_rows: bool = True
    int8_p: bool = False
    magnitude: float = 1.0
    batch_scales: bool = True
    return_lse: bool = True


CASES = (
    Quantised("int8"), Quantised("int8", "b:30,4", lengths=(20, 90), batch_scales=False),
    Quantised("int8", "b", 40, (37, 53), (2, 2), "bfloat16", "bshd"),
    Quantised("int8", int8_p=True), Quantised("int8", lengths=(20, 40), int8_p=True, magnitude=0.0),
    Quantised("int8", lengths=(70, 0), int8_p=True), Quantised("int8", "b", 33, (90, 70), (3, 1), int8_p=True),
    Quantised("int8", "b:20,5", lengths=(130, 150), int8_p=True, v_rows=False, layout="bshd", magnitude=4.0),
    Quantised("int8_kv"), Quantised("int8_kv", "g:12,-4", 40, (37, 53), (2, 2), "bfloat16", "bshd", magnitude=4.0),
    Quantised("fp8"), Quantised("fp8", lengths=(90, 40), magnitude=0.0),
    Quantised("fp8", "b:30,4", lengths=(130, 150), v_rows=False, heads=(4, 2), magnitude=4.0, batch_scales=False),
    Quantised("fp8", "b", 33, (50, 20), (2, 2), "bfloat16"),
)  # fmt: skip


def float8_of(arch: str, other: bool = False) -> np.dtype[Any]:
    """The float8 that the matrix units of an arch have; the `other` is the one that they have not."""
    fnuz = (arch == "gfx942") != other
    return np.dtype(ml_dtypes.float8_e4m3fnuz if fnuz else ml_dtypes.float8_e4m3fn)


def make_call(case: Quantised, arch: str, unquantised: tuple[Array, Array, Array] | None = None) -> Call:
    """Random inputs of a case, or `unquantised` q, k and v, poison around them, and NaN where outputs are to be."""
    rng = np.random.default_rng(0)
    (heads, heads_kv), (seqlen_q, seqlen_k) = case.heads, case.lengths
    dtype = INT8 if case.op.startswith("int8") else float8_of(arch)
    shapes = ((2, heads, seqlen_q, case.head_dim), *2 * ((2, heads_kv, seqlen_k, case.head_dim),))
    tensors = unquantised or [
        rng.standard_normal(shape) * magnitude for shape, magnitude in zip(shapes, (case.magnitude, 1, 1), strict=True)
    ]
    inputs: dict[str, Placed | Array] = {}
    for name, x in zip("qkv", tensors, strict=True):
        if name == "q" and case.op == "int8_kv":
            numbers = x.astype(DTYPES[case.dtype])
        else:
            numbers, inputs[f"{name}_scale"] = _quantise(x, dtype, case.batch_scales)
        inputs[name] = placed(numbers, case.layout if name != "v" or case.v_rows else "columns")
    outputs = {"out": room(shapes[0], DTYPES[case.dtype], case.layout)}
    if case.return_lse:
        outputs["lse"] = lse_room(*shapes[0][:3])
    scalars = parse_mask(case.mask) | {"return_lse": case.return_lse}
    scalars |= {"int8_probabilities": True} if case.int8_p else {}
    return Call(f"flash_attention_{case.op}", inputs, outputs, scalars)


def _quantise(x: Array, dtype: np.dtype[Any], batches: bool) -> tuple[Array, Array]:
    """`quantise_heads` with a factor for each head of each batch, or one for each head."""
    if batches:
        return quantise_heads(x, dtype)
    numbers, factors = quantise_heads(x.swapaxes(0, 1).reshape(1, x.shape[1], -1, x.shape[3]), dtype)
    return numbers.reshape(x.shape[1], x.shape[0], *x.shape[2:]).swapaxes(0, 1), factors
