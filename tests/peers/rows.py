"""Calls of norms, activations, rotation, quantising, softmax and merging, as the suites make them."""

from __future__ import annotations

import numpy as np

from kernels.gemm import reference as gemm
from kernels.rows import reference as rows
from kernels.rows.merge_reference import merge_two_states, merge_two_states_same_dtype
from tests.peers.draws import DEFAULT, Call, Draw, Tolerance
from tests.support.dtypes import BF16, FP16, FP32, INT8


def norm(draw: Draw, zero_centred: bool = False) -> Call:
    """rms_norm, of a sum if the test adds a residual."""
    count, width = draw.get("batch_size num_tokens M"), draw.get("hidden_size N head_dim")
    count *= draw.get("num_heads", 1)
    draw.within(count * width * 64)
    dtype = draw.dtype()
    x, weight = draw.normal(count, width, dtype=dtype), draw.normal(width, dtype=dtype)
    residual = {"residual": draw.normal(count, width, dtype=dtype)} if added(draw) else {}
    scalars = {"eps": 1e-6} | ({"zero_centred": True} if zero_centred else {})
    given = {"x": x, "weight": weight} | residual
    expected = lambda: tuple(  # noqa: E731
        found[1] if residual else found for found in (rows.rms_norm(**given, **scalars),
                                                      rows.rms_norm_same_dtype(**given, **scalars))
    )  # fmt: skip
    allowed = {FP16: (1e-3, 1e-3), BF16: (1.6e-2, 1.6e-2), FP32: (1e-4, 1e-4)}[dtype]
    return Call("rms_norm", given, scalars, expected,
                Tolerance(*allowed) if draw.function.suite == "flashinfer" else Tolerance(1e-2, 1e-2),
                ("out", x.shape, dtype))  # fmt: skip


def added(draw: Draw) -> bool:
    return bool(draw.get("add_residual", "fused_add" in draw.function.name))


def gate(draw: Draw) -> Call:
    """silu_mul and gelu_mul."""
    op, width = draw.function.op, draw.get("dim d")
    count = draw.get("num_tokens") or draw.get("batch_size") * draw.get("seq_len")
    draw.within(count * width * 64)
    dtype = draw.dtype()
    x, up = draw.normal(count, width, dtype=dtype), draw.normal(count, width, dtype=dtype)
    scalars = {"approximate": "tanh" if "tanh" in draw.function.name else "none"} if op == "gelu_mul" else {}
    reference = getattr(rows, op), getattr(rows, f"{op}_same_dtype")
    expected = lambda: tuple(function(x, up, **scalars) for function in reference)  # noqa: E731
    return Call(op, {"gate": x, "up": up}, scalars, expected, Tolerance(1e-3, 1e-3), ("out", x.shape, dtype))


def rotary(draw: Draw) -> Call:
    """rotary of queries, at positions from an offset on (flashinfer) or drawn (vLLM)."""
    dim, dtype = draw.get("head_dim head_size"), draw.dtype()
    tokens = draw.get("batch_size", 3) * draw.get("qkv_len seq_len")
    heads = draw.get("num_qo_heads", 7)
    draw.within(tokens * heads * dim * 64)
    if draw.function.suite == "vLLM":
        pairs, longest = (draw.get("rotary_dim") or dim) // 2, 8192
        positions = draw.rng.integers(0, longest, tokens)
    else:
        pairs, longest = int(dim * draw.get("partial_rotary_factor", 1.0)) // 2, 2048
        positions = draw.get("offset") + np.arange(tokens) % draw.get("qkv_len")
    angles = np.arange(longest)[:, None] * 1e4 ** (-np.arange(pairs) / max(pairs, 1))
    interleaved = not draw.get("is_neox_style") if "is_neox_style" in draw.values else draw.get("interleave", True)
    positions = positions.astype(draw.get("idtype", "int32"))
    given = {"x": draw.normal(tokens, heads, dim, dtype=dtype), "cos": np.cos(angles).astype(FP32),
             "sin": np.sin(angles).astype(FP32), "positions": positions}  # fmt: skip
    scalars = {"interleaved": interleaved}
    expected = lambda: (rows.rotary(**given, **scalars), rows.rotary_same_dtype(**given, **scalars))  # noqa: E731
    allowed = DEFAULT[dtype] if draw.function.suite == "vLLM" else (1e-3, 1e-3)
    return Call("rotary", given, scalars, expected, Tolerance(*allowed), ("out", given["x"].shape, dtype))


def static(draw: Draw) -> Call:
    """quantise_static to int8, which may differ by one, or to float8."""
    shape = draw.get("num_tokens M"), draw.get("hidden_size N")
    draw.within(shape[0] * shape[1] * 64)
    dtype = draw.dtype("dtype dtype_in")
    kind = draw.float8 if "fp8" in draw.get("dtype_quant", "int8") else INT8
    x = (draw.rng.random(shape) * 1000 - 300).astype(dtype) if kind == INT8 else draw.normal(*shape, dtype=dtype)
    scale = np.full(1, draw.get("scale", 10.0 if kind == INT8 else 0.01), FP32)
    like = np.empty(shape, kind)
    expected = lambda: (gemm.quantise_static(x, like, scale), gemm.quantise_static_same_dtype(x, like, scale))  # noqa: E731
    allowed = Tolerance(1) if kind == INT8 else Tolerance(1e-1, 1e-1)
    return Call("quantise_static", {"x": x, "scale": scale}, {}, expected, allowed, ("q", shape, kind))


def softmax(draw: Draw) -> Call:
    """softmax at a temperature, or at one a row."""
    shape = draw.get("batch_size M"), draw.get("vocab_size N")
    draw.within(shape[0] * shape[1] * 64)
    dtype = draw.dtype(default="float32")
    x, temperature = draw.normal(*shape, dtype=dtype), draw.get("temperature", 1.0)
    if draw.get("neg_inf_input"):
        x[draw.rng.random(shape) < 0.5] = -np.inf
    by_row = {"temperature": np.full(shape[0], temperature, FP32)} if draw.get("temperature_arr") else {}
    scalars = {} if by_row else {"scale": 1 / temperature}
    scaled = {"scale": 1 / temperature}
    expected = lambda: (rows.softmax(x, **scaled), rows.softmax_same_dtype(x, **scaled))  # noqa: E731
    allowed = Tolerance(1e-5, 1e-5) if dtype == FP32 else Tolerance(1e-2, 1e-2)
    return Call("softmax", {"x": x} | by_row, scalars, expected, allowed, ("out", shape, dtype))


def merge(draw: Draw) -> Call:
    """merge_two_states, some of which have seen no key."""
    heads = draw.get("num_query_heads") or draw.get("num_heads")[0]
    shape = draw.get("num_tokens"), heads, draw.get("head_size")
    draw.within(shape[0] * shape[1] * shape[2] * 64)
    dtype = draw.dtype("dtype output_dtype")
    given = {"a": draw.normal(*shape, dtype=dtype), "lse_a": draw.normal(*shape[:2]),
             "b": draw.normal(*shape, dtype=dtype), "lse_b": draw.normal(*shape[:2])}  # fmt: skip
    given["lse_a"][draw.rng.random(shape[:2]) < 0.1] = -np.inf
    expected = lambda: (merge_two_states(**given)[0], merge_two_states_same_dtype(**given)[0])  # noqa: E731
    allowed = Tolerance(1e-2, 1e-2) if dtype == BF16 else Tolerance(1e-3, 1e-3)
    return Call("merge_two_states", given, {}, expected, allowed, ("out", shape, dtype))


def renormalise(draw: Draw) -> Call:
    """renorm_probs by top-k or top-p."""
    shape = draw.get("batch_size"), draw.get("vocab_size")
    draw.within(shape[0] * shape[1] * 256)
    dtype = draw.dtype(default="float32")
    probs = draw.rng.random(shape)
    probs = (probs / probs.sum(1, keepdims=True)).astype(dtype)
    limit = (
        {"top_k": np.full(1, draw.get("k"), np.int32)} if draw.get("k") else {"top_p": np.full(1, draw.get("p"), FP32)}
    )
    given = {"probs": probs} | limit
    expected = lambda: (rows.renorm_probs(**given), rows.renorm_probs_same_dtype(**given))  # noqa: E731
    allowed = Tolerance(1e-3, 1e-3) if dtype == FP32 else Tolerance(1e-2, 1e-2)
    return Call("renorm_probs", given, {}, expected, allowed, ("out", shape, dtype))
