"""Calls of the quantised attention ops: their inputs, and what must come out. The same run on the emulator and on GPUs.

Numbers are quantised as a caller would do it, from normal random numbers, with a factor for each head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from aot_runtime import Bundle, DeviceArray
from aot_runtime.caches import quantise_heads
from aot_runtime.masks import parse_mask
from kernels.attention import quantised_reference as reference
from kernels.tolerance import assert_close
from tests.ops.attention.cases import DTYPES, MARGIN, Array, Call, Placed

FLOORS = {"out": 1e-6, "lse": 1e-5}
INT8 = np.dtype(np.int8)
REFERENCES = {
    "flash_attention_int8": (reference.attention_int8, reference.attention_int8_same_dtype),
    "flash_attention_int8_kv": (reference.attention_kv, reference.attention_kv_same_dtype),
    "flash_attention_fp8": (reference.attention_fp8, reference.attention_fp8_same_dtype),
}


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


def float8_of(arch: str) -> np.dtype[Any]:
    """The float8 that the matrix units of an arch have."""
    return np.dtype(ml_dtypes.float8_e4m3fnuz if arch == "gfx942" else ml_dtypes.float8_e4m3fn)


def make_call(case: Quantised, arch: str, seed: int = 0) -> Call:
    """Random inputs of a case, poison around them, and NaN where outputs are to be."""
    rng = np.random.default_rng(seed)
    batch, (heads, heads_kv), (seqlen_q, seqlen_k) = 2, case.heads, case.lengths
    dtype = INT8 if case.op.startswith("int8") else float8_of(arch)
    q = rng.standard_normal((batch, heads, seqlen_q, case.head_dim)) * case.magnitude
    k, v = rng.standard_normal((2, batch, heads_kv, seqlen_k, case.head_dim))
    inputs: dict[str, Placed | Array] = {}
    for name, x in (("q", q), ("k", k), ("v", v)):
        if name == "q" and case.op == "int8_kv":
            numbers = x.astype(DTYPES[case.dtype])
        else:
            numbers, factors = quantise(x, dtype, case.batch_scales)
            inputs[f"{name}_scale"] = factors
        inputs[name] = placed(numbers, case.layout, rows=name != "v" or case.v_rows)
    out = placed(np.full(q.shape, np.nan, DTYPES[case.dtype]), case.layout)
    outputs = {"out": out}
    if case.return_lse:
        whole = np.full((batch, heads, seqlen_q + 3), np.nan, np.float32)
        outputs["lse"] = Placed(whole, lambda x: x[..., 1 : 1 + seqlen_q])
    scalars = parse_mask(case.mask) | {"return_lse": case.return_lse}
    scalars |= {"int8_probabilities": True} if case.int8_p else {}
    return Call(f"flash_attention_{case.op}", inputs, outputs, scalars)


def quantise(x: Array, dtype: np.dtype[Any], batches: bool) -> tuple[Array, Array]:
    """`quantise_heads` with a factor for each head of each batch, or one for each head."""
    if batches:
        return quantise_heads(x, dtype)
    numbers, factors = quantise_heads(x.swapaxes(0, 1).reshape(1, x.shape[1], -1, x.shape[3]), dtype)
    return numbers.reshape(x.shape[1], x.shape[0], *x.shape[2:]).swapaxes(0, 1), factors


def placed(values: Array, layout: str, rows: bool = True) -> Placed:
    """A copy of values [batch, heads, rows, columns] in an array that is NaN, or of int8 127, around it.

    rows: columns are the innermost dim of the array; else rows are.
    """
    batch, heads, length, width = values.shape
    fill = 127 if values.dtype == INT8 else np.nan
    if not rows:
        whole = np.full((batch, heads, width, -(-length // 16) * 16 + MARGIN), fill, values.dtype)
        item = Placed(whole, lambda x: x[..., :length].transpose(0, 1, 3, 2))
    elif layout == "bshd":
        whole = np.full((batch, length + 3, heads, width + MARGIN), fill, values.dtype)
        item = Placed(whole, lambda x: x[:, 2 : 2 + length, :, :width].transpose(0, 2, 1, 3))
    else:
        whole = np.full((batch, heads, length + 3, width + MARGIN), fill, values.dtype)
        item = Placed(whole, lambda x: x[:, :, 2 : 2 + length, :width])
    item.values[...] = values
    return item


def expected(call: Call) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """(out, lse) exactly, and as its dtypes allow."""
    inputs = {name: item.values if isinstance(item, Placed) else item for name, item in call.inputs.items()}
    if call.op != "flash_attention_int8_kv":
        inputs["out"] = call.outputs["out"].values
    options = {"scale": inputs["q"].shape[-1] ** -0.5} | call.scalars | {"return_lse": True}
    exact, same = REFERENCES[call.op]
    return exact(**inputs, **options), same(**inputs, **options)  # type: ignore[operator]


def run(bundle: Bundle, call: Call) -> dict[str, Array]:
    """The outputs of a call, after checking that nothing beside them was written."""

    def on_device(item: Placed | Array) -> DeviceArray:
        return item.place(bundle.device.array(item.whole)) if isinstance(item, Placed) else bundle.device.array(item)

    inputs = {name: on_device(item) for name, item in call.inputs.items()}
    wholes = {name: bundle.device.array(item.whole) for name, item in call.outputs.items()}
    outputs = {name: item.place(wholes[name]) for name, item in call.outputs.items()}
    getattr(bundle, call.op)(**inputs, **outputs, **call.scalars)
    for name, item in call.outputs.items():
        assert item.is_alone(wholes[name].numpy()), f"written beside {name}"
    return {name: item.place(wholes[name].numpy()) for name, item in call.outputs.items()}


def check(bundle: Bundle, call: Call) -> None:
    """Run a call; raise AssertionError where a result is wrong, or anything beside it was written to."""
    results = run(bundle, call)
    for name, exact, same_dtype in zip(("out", "lse"), *expected(call), strict=True):
        if name in results:
            floor = FLOORS[name]
            if call.op == "flash_attention_fp8" and bundle.device.arch.startswith("sm_"):
                # Its matrix units keep some 14 bits of a sum of float8 products.
                floor += 2**-11 * np.abs(exact[np.isfinite(exact)]).max(initial=0)
            assert_close(results[name], exact, same_dtype, floor, name)
