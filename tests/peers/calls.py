"""Calls of our ops for combinations of the peers' tests, their exact results, and the suites' own tolerances.

Extents that a suite parametrises are those of the combination; others, such as the batch and the heads of
flash-attention's tests, are small. An argument that no contract has yet is passed all the same: the rules say which
combinations ask for one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from kernels.gemm import reference as gemm
from kernels.moe.reference import moe, moe_same_dtype
from kernels.rows import reference as rows
from tests.ops.moe.checking import made
from tests.peers.attention import cache, dense, varlen
from tests.peers.draws import Call, Draw, Tolerance
from tests.peers.grids import Function
from tests.support.dtypes import BF16, FP16, FP32


def norm(draw: Draw, zero_centred: bool = False) -> Call:
    """rms_norm, of a sum if the test adds a residual."""
    count, width = draw.get("batch_size num_tokens M"), draw.get("hidden_size N")
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
    scalars = {"approximate": "none"} if op == "gelu_mul" else {}
    reference = getattr(rows, op), getattr(rows, f"{op}_same_dtype")
    expected = lambda: tuple(function(x, up, **scalars) for function in reference)  # noqa: E731
    return Call(op, {"gate": x, "up": up}, scalars, expected, Tolerance(1e-3, 1e-3), ("out", x.shape, dtype))


def product(draw: Draw, allowed: Tolerance, positive: bool = False) -> Call:
    """matmul: a [m, k] times weights [n, k]."""
    m, n, k = (draw.get(names, default) for names, default in (("n M", 4), ("m N", 0), ("k K", 0)))
    if draw.function.suite == "composable_kernel":
        m, n = n, m
    draw.within(m * n * k)
    dtype = draw.dtype(default="bfloat16" if draw.function.suite == "aiter" else "float16")
    a, b = ((draw.rng.random(shape) if positive else draw.normal(*shape)).astype(dtype) for shape in ((m, k), (n, k)))
    layout = draw.get("layout", "TN")
    a = a if layout[0] == "T" else np.asfortranarray(a)
    b = b.T if layout[1] == "N" else np.ascontiguousarray(b.T)
    expected = lambda: (gemm.matmul(a, b), gemm.matmul(a, b).astype(dtype))  # noqa: E731
    return Call("matmul", {"a": a, "b": b}, {}, expected, allowed, ("e", (m, n), dtype))


def scaled(draw: Draw) -> Call:
    """scaled_matmul of int8 or float8, with scales of rows and columns or of all."""
    m, n, k = draw.get("M m"), draw.get("N n"), draw.get("K k")
    draw.within(m * n * k)
    kind = draw.dtype("in_dtype")
    a, b = (draw.rng.integers(-32, 32, shape).astype(kind) for shape in ((m, k), (n, k)))
    one_a, one_b = draw.get("use_scalar_scale_a"), draw.get("use_scalar_scale_b")
    scale_a = draw.rng.random(1 if one_a else m).astype(FP32)
    scale_b = draw.rng.random(1 if one_b else n).astype(FP32)
    dtype = draw.dtype("out_dtype", "bfloat16")
    bias = {"bias": draw.normal(n, dtype=dtype)} if draw.get("use_bias") else {}
    given = {"a": a, "b": b.T, "scale_a": scale_a, "scale_b": scale_b} | bias
    expected = lambda: (gemm.scaled_matmul(**given), gemm.scaled_matmul(**given).astype(dtype))  # noqa: E731
    return Call("scaled_matmul", given, {}, expected, Tolerance(1e-1, 1e-1), ("e", (m, n), dtype))


def experts(draw: Draw) -> Call:
    """The mixture of experts of vLLM's test, whose inputs are tenths."""
    m, n, k, e, topk = (draw.get(name) for name in ("m", "n", "k", "e", "topk"))
    draw.within((m * topk + e) * n * k * 3)
    given = made(draw.rng, m, e, topk, k, n, draw.dtype())
    expected = lambda: (moe(**given), moe_same_dtype(**given))  # noqa: E731
    return Call("moe", given, {}, expected, Tolerance(2e-2, 0), ("out", (m, k), given["x"].dtype))


FA, CACHE = "tests/test_flash_attn", "test_flash_attn_kvcache"
CALLS: dict[tuple[str, str], Callable[[Draw], Call]] = {
    **{("flash-attention 2", name): dense for name in (
        "test_flash_attn_qkvpacked", "test_flash_attn_output", "test_flash_attn_causal", "test_flash_attn_splitkv")},
    **{("flash-attention 2", name): varlen for name in (
        "test_flash_attn_varlen_qkvpacked", "test_flash_attn_varlen_output")},
    ("flash-attention 2", CACHE): cache,
    ("flash-attention 3", "test_flash_attn_output"): dense,
    ("flash-attention 3", "test_flash_attn_varlen_output"): varlen,
    ("flash-attention 3", CACHE): cache,
    **{("aotriton", name): dense for name in (
        "test_op_fwd", "test_op_fwd_with_matrix_bias", "test_gqa", "test_irregulars")},
    ("composable_kernel", "fmha_fwd"): dense,
    ("composable_kernel", "gemm"): partial(product, allowed=Tolerance(1e-3, 1e-3)),
    ("aiter", "test_gemm_a16_w16"): partial(product, allowed=Tolerance(1e-1, 1e-2)),
    ("aiter", "test_gemm_a16_w16_layout"): partial(product, allowed=Tolerance(1e-1, 1e-2)),
    ("aiter", "test_batch_prefill"): cache,
    ("aiter", "test_rmsnorm"): norm,
    ("aiter", "test_fused_add_rmsnorm"): norm,
    ("flashinfer", "test_batch_prefill_with_paged_kv_cache"): cache,
    ("flashinfer", "test_batch_decode_sliding_window"): cache,
    ("flashinfer", "test_batch_paged_prefill_sliding_window"): cache,
    ("flashinfer", "test_batch_paged_prefill"): cache,
    ("flashinfer", "test_batch_prefill_kernels.py::test_batch_prefill_with_ragged_kv_cache"): varlen,
    ("flashinfer", "test_batch_ragged_prefill"): varlen,
    ("flashinfer", "test_single_prefill_logits_soft_cap"): dense,
    ("flashinfer", "test_norm"): norm,
    ("flashinfer", "test_fused_add_rmsnorm"): norm,
    ("flashinfer", "test_gemma_norm"): partial(norm, zero_centred=True),
    ("flashinfer", "test_fused_silu_mul"): gate,
    ("flashinfer", "test_fused_gelu_mul"): gate,
    ("vLLM", "test_flash_attn_with_paged_kv"): cache,
    ("vLLM", "test_varlen_with_paged_kv"): cache,
    ("vLLM", "test_triton_unified_attn"): cache,
    ("vLLM", "test_rocm_wvsplitk_kernel"): partial(product, allowed=Tolerance(1e-8, 1e-2), positive=True),
    ("vLLM", "test_rocm_llmm1_kernel"): partial(product, allowed=Tolerance(1e-8, 1e-2), positive=True),
    ("vLLM", "test_scaled_mm"): scaled,
    ("vLLM", "test_fused_moe"): experts,
}  # fmt: skip
"""Functions that make a test's call, by suite and name, and by file if tests of one name make different calls."""


def maker(function: Function) -> Callable[[Draw], Call] | None:
    """Return what makes the calls of a test function, if the sample has them."""
    qualified = f"{function.file.rpartition('/')[2]}::{function.name}"
    return CALLS.get((function.suite, qualified)) or CALLS.get((function.suite, function.name))
