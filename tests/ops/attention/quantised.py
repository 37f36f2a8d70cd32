"""Calls of the quantised attention ops: random values, quantised as a caller would, with a scale for each head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aot_models.kv_quantise import quantise_heads
from aot_models.masks import parse_mask
from aot_runtime import Bundle
from tests.ops.attention.calls import DTYPES, Array, Call, lse_room, placed, room
from tests.ops.attention.cases import SEQUENCES, longest, rows_first, score_inputs, sequences
from tests.support.dtypes import eight_bits


@dataclass(frozen=True)
class Quantised:
    """A call. op: without `flash_attention_` and `_varlen`. dtype: that of out and of a bias; float8: that of the
    tensors, with an out_scale. float8: the kind of numbers of fp8. chunk: attention_chunk. What is not said here is as
    in `cases.Case`.

    batch_scales: each head of each batch or sequence has its own factor; otherwise one serves all of a head's.
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
    score: str = "plain"
    mode: str = "batch"
    float8: str = "e4m3"
    chunk: int = 0


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

FEATURES = (
    Quantised("fp8", "t:7,3", mode="varlen", score="bias alibi softcap", float8="e5m2"),
    Quantised("int8", score="bias"), Quantised("int8_kv", "t:7,3", 128, mode="varlen", score="bias alibi softcap"),
    Quantised("fp8", "b", mode="varlen", score="bias of keys", heads=(4, 2)),
    Quantised("int8", "b", 33, mode="varlen", score="bias of keys", dtype="bfloat16", layout="bshd", heads=(3, 1)),
    Quantised("int8", "b:20,5", int8_p=True, score="bias", v_rows=False, layout="bshd"),
    Quantised("int8", "0", 40, int8_p=True, score="alibi of batches", dtype="bfloat16"),
    Quantised("int8", mode="varlen", score="alibi of batches", batch_scales=False, lengths=(130, 64)),
    Quantised("int8_kv", "b", score="bias of keys", dtype="bfloat16", v_rows=False),
    Quantised("int8_kv", "b:30,4", mode="varlen", dtype="bfloat16", v_rows=False, score="softcap"),
    Quantised("fp8", "b:30,4", score="bias alibi softcap", v_rows=False), Quantised("fp8", "g:12,-4", score="softcap"),
    Quantised("fp8", "t", 128, mode="varlen", v_rows=False, score="alibi"), Quantised("fp8", "b", 256, score="bias"),
    Quantised("fp8", float8="e5m2"), Quantised("fp8", "b", 33, (50, 20), (2, 2), "bfloat16", float8="e5m2"),
    Quantised("fp8", "b:30,4", 128, (130, 150), v_rows=False, heads=(4, 2), magnitude=4.0, float8="e5m2"),
    Quantised("int8", "b", int8_p=True, score="bias alibi softcap", magnitude=4.0),
    Quantised("fp8", "b", chunk=24), Quantised("fp8", "0", 128, mode="varlen", chunk=33, score="softcap sinks"),
    Quantised("fp8", "b:20,-1", score="sinks", chunk=50, dtype="float8"), Quantised("fp8", "t:7,3", dtype="float8"),
    Quantised("fp8", "b", 33, mode="varlen", score="alibi sinks", dtype="float8", heads=(4, 2)),
    Quantised("int8", "b", int8_p=True, chunk=40), Quantised("int8_kv", "g:12,-4", chunk=17, dtype="bfloat16"),
)  # fmt: skip
"""Calls with a bias, ALiBi or a soft-cap, of sequences of different lengths, or of e5m2: what looks at run time."""


def make_call(bundle: Bundle, case: Quantised, unquantised: tuple[Array, Array, Array] | None = None) -> Call:
    """Make random inputs of a case, or use `unquantised` q, k and v, with poison around them and NaN in outputs."""
    rng = np.random.default_rng(0)
    offsets = sequences(*case.lengths) if case.mode == "varlen" else {}
    batch, rows_q, rows_k = (1, *(int(cu[-1]) + 1 for cu in offsets.values())) if offsets else (2, *case.lengths)
    (heads, heads_kv), dtype = case.heads, eight_bits(bundle, "int8" if case.op.startswith("int8") else case.float8)
    shapes = ((batch, heads, rows_q, case.head_dim), *2 * ((batch, heads_kv, rows_k, case.head_dim),))
    tensors = unquantised or [
        rng.standard_normal(shape) * magnitude for shape, magnitude in zip(shapes, (case.magnitude, 1, 1), strict=True)
    ]
    inputs: dict[str, Any] = {}
    for name, x in zip("qkv", tensors, strict=True):
        if name == "q" and case.op == "int8_kv":
            numbers = x.astype(DTYPES[case.dtype])
        else:
            numbers, inputs[f"{name}_scale"] = _quantise(x, dtype, case.batch_scales)
        inputs[name] = placed(numbers, case.layout if name != "v" or case.v_rows else "columns")
    outputs = {"out": room(shapes[0], dtype if case.dtype == "float8" else DTYPES[case.dtype], case.layout)}
    inputs |= {"out_scale": np.array([0.01], np.float32)} if case.dtype == "float8" else {}
    inputs |= {"sinks": np.linspace(-3, 5, heads, dtype=np.float32)} if "sinks" in case.score else {}
    scalars = parse_mask(case.mask) | {"return_lse": case.return_lse}
    scalars |= {"int8_probabilities": True} if case.int8_p else {}
    scalars |= {"softcap": 1.5} if "softcap" in case.score else {}
    scalars |= {"attention_chunk": case.chunk} if case.chunk else {}
    op = f"flash_attention_{case.op}"
    if offsets:
        op += "_varlen"
        inputs |= rows_first({name: inputs[name] for name in "qkv"}) | offsets
        scales = [f"{name}_scale" for name in "qkv" if f"{name}_scale" in inputs and case.batch_scales]
        inputs |= {name: _of_sequences(inputs[name]) for name in scales}
        outputs, scalars = rows_first(outputs), scalars | longest(offsets)
        inputs |= score_inputs(case, rng, SEQUENCES, rows_q, scalars["max_seqlen_k"])
    else:
        inputs |= score_inputs(case, rng, batch, rows_q, rows_k)
    if case.return_lse:
        outputs["lse"] = lse_room(*shapes[0][1 if offsets else 0 : 3])
    return Call(op, inputs, outputs, scalars)


def _of_sequences(factors: Array) -> Array:
    """Return factors of each sequence that differ from the one [1, heads] by which all numbers were made."""
    return factors * np.linspace(0.5, 1, SEQUENCES, dtype=np.float32)[:, None]


def _quantise(x: Array, dtype: np.dtype[Any], batches: bool) -> tuple[Array, Array]:
    """Quantise with a factor for each head of each batch, or one for each head."""
    if batches:
        return quantise_heads(x, dtype)
    numbers, factors = quantise_heads(x.swapaxes(0, 1).reshape(1, x.shape[1], -1, x.shape[3]), dtype)
    return numbers.reshape(x.shape[1], x.shape[0], *x.shape[2:]).swapaxes(0, 1), factors
