"""Calls of our ops for combinations of the peers' tests, their exact results, and the suites' own tolerances.

Extents that a suite parametrises are those of the combination; others, such as the batch and the heads of
flash-attention's tests, are small. An argument that no contract has yet is passed all the same: the rules say which
combinations ask for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from aot_models.masks import parse_mask
from kernels.attention.reference import attention, attention_varlen
from kernels.gemm import reference as gemm
from kernels.moe.reference import moe, moe_same_dtype
from kernels.rows import reference as rows
from tests.ops.moe.checking import made
from tests.peers.grids import Combination, Function
from tests.support.dtypes import BF16, FP16, FP32, INT8

Array = np.ndarray[Any, Any]
DTYPES = {
    "float16": FP16, "fp16": FP16, "bfloat16": BF16, "bf16": BF16, "float32": FP32, "fp32": FP32, "int8": INT8,
}  # fmt: skip
EPSILON = {FP16: 2.0**-10, BF16: 2.0**-7, FP32: 2.0**-23}
DEFAULT = {FP16: (1e-3, 1e-3), BF16: (1e-3, 1.6e-2), FP32: (1e-5, 1.3e-6)}
"""Absolute and relative tolerances of PyTorch's comparisons."""

WINDOW = "window"
"""The argument of `paged_attention` that is `window_left` in attention."""


class TooLargeError(Exception):
    """A combination that takes more work than the sample is allowed."""


@dataclass(frozen=True)
class Tolerance:
    """|result - exact| <= factor * max |same dtype - exact| + absolute + relative * |exact|."""

    absolute: float = 0.0
    relative: float = 0.0
    factor: float = 0.0

    def check(self, result: Array, exact: Array, same_dtype: Array) -> None:
        result, exact, same_dtype = (np.asarray(x, np.float64) for x in (result, exact, same_dtype))
        limit = self.factor * np.abs(same_dtype - exact).max(initial=0) + self.absolute
        error = np.abs(result - exact)
        wrong = ~(error <= limit + self.relative * np.abs(exact))
        assert result.shape == exact.shape and not wrong.any(), (
            f"{np.count_nonzero(wrong)} of {wrong.size} differ, by up to {np.nanmax(error):.3e}; allowed are "
            f"{limit:.3e}, and {self.relative} of the exact result"
        )


@dataclass(frozen=True)
class Call:
    """A call of an op. expected: returns the exact result and that in the op's dtypes."""

    op: str
    tensors: Mapping[str, Array]
    scalars: Mapping[str, Any]
    expected: Callable[[], tuple[Array, Array]]
    tolerance: Tolerance
    out: tuple[str, tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True)
class Draw:
    """A combination of a test function, with the work that a call of it may take, in multiplications."""

    function: Function
    values: Combination
    limit: float
    float8: np.dtype[Any]
    rng: np.random.Generator

    def get(self, names: str, default: Any = None) -> Any:
        """Return the value of the first of the parameters, by names that blanks part, that the function has."""
        return next((self.values[name] for name in names.split() if name in self.values), default)

    def dtype(self, names: str = "dtype prec test_dtype in_dtype_str", default: str = "float16") -> np.dtype[Any]:
        asked = self.get(names) or default
        return self.float8 if asked.startswith(("float8", "fp8", "current_platform")) else DTYPES[asked]

    def within(self, work: float) -> None:
        if work > self.limit:
            raise TooLargeError(f"{work:.1e} multiplications")

    def normal(self, *shape: int, dtype: np.dtype[Any] = FP32) -> Array:
        return self.rng.standard_normal(shape).astype(dtype)

    def tensor(self, *shape: int, dtype: np.dtype[Any], swapped: tuple[int, int] | None = None) -> Array:
        """Return normal values; swapped: two dims that are the other way round in memory."""
        x = self.normal(*shape, dtype=dtype)
        return x if swapped is None else np.ascontiguousarray(x.swapaxes(*swapped)).swapaxes(*swapped)

    @property
    def heads(self) -> tuple[int, int]:
        """Heads of queries and of keys."""
        if (pair := self.get("num_heads N_HEADS")) and isinstance(pair, list):
            return pair[0], pair[1]
        if kind := self.get("mha_type"):
            return {"mha": (2, 2), "mqa": (2, 1), "gqa": (4, 2)}[kind]
        kv = self.get("num_kv_heads NUM_K_HEADS", 1)
        count = self.get("num_qo_heads num_heads NUM_Q_HEADS h", kv * self.get("gqa_group_size", 2))
        if count % kv:
            raise TooLargeError("heads that are not a multiple of the key heads, which the test skips")
        return count, kv


def tolerance(draw: Draw, dtype: np.dtype[Any], masked: Mapping[str, Any]) -> Tolerance:
    """Return what the suite's tests of attention allow. masked: arguments of the call."""
    suite, kvcache = draw.function.suite, draw.function.op == "paged_attention"
    if suite == "flash-attention 2":
        return Tolerance(1e-5, factor=5 if "alibi_slopes" in masked else 3) if kvcache else Tolerance(factor=2)
    if suite == "flash-attention 3":
        factor = 3 if masked.get("softcap") else 2
        return Tolerance(1e-4, factor=4) if kvcache else Tolerance(EPSILON[dtype], factor=factor)
    if suite == "aotriton":
        return Tolerance(*DEFAULT[dtype], factor=1)
    if suite == "composable_kernel":
        return Tolerance(*((1e-3, 1e-3) if dtype == FP16 else (1e-2, 1e-2)))
    if suite == "aiter":
        return Tolerance(2e-2 if kvcache else 1e-2, 1e-2)
    if suite == "flashinfer":
        return Tolerance(*((1e-3, 1e-3) if dtype == FP16 else (1e-2, 1e-2)))
    return Tolerance(1.5e-2, 1e-2)


def masks(draw: Draw, keys: int, causal: bool = False) -> dict[str, Any]:
    """Return the scalars of a combination's mask and scores. causal: what a test does that does not say."""
    if (text := draw.get("mask")) is not None:
        return dict(parse_mask(str(text)))
    causal = bool(draw.get("causal CAUSAL", causal or "causal" in draw.function.name))
    found: dict[str, Any] = {"causal": causal}
    if draw.get("local"):
        left, right = draw.rng.integers(0, max(keys, 1), 2).tolist()
        found |= {"window_left": left, "window_right": 0 if causal else right}
    if (window := draw.get("window_left sliding_window")) is not None and window >= 0:
        found["window_left"] = window - (draw.get("sliding_window") is not None)
    if draw.function.suite == "aotriton":
        found["mask_align"] = "top_left"
    if softcap := draw.get("softcap logits_soft_cap soft_cap"):
        found["softcap"] = softcap
    if draw.get("attention_chunk"):
        found["attention_chunk"] = int(draw.rng.integers(1, 2 * keys))
    if (scale := draw.get("sm_scale")) is not None:
        dim = draw.get("D_HEAD", 64)
        found["scale"] = dim**-0.5 if scale == "l1" else 1 / dim
    return found


def head_dims(draw: Draw) -> tuple[int, int]:
    dim = draw.get("d hd D_HEAD HEAD_SZ head_dim head_size", 64)
    return dim, draw.get("dv", dim)


def scale_of(scalars: Mapping[str, Any], dim: int) -> dict[str, Any]:
    """Return the scalars as references take them."""
    return {"scale": dim**-0.5} | dict(scalars)


def torch_like(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Options of a reference that rounds scores too, as a computation in the dtype of the queries does."""
    return {"compute": np.float32, "storage": dtype, "score_mod": lambda s, b, h, i, j: s.astype(dtype).astype(FP32)}


def dense(draw: Draw) -> Call:
    """flash_attention over sequences of one length."""
    queries, keys = lengths(draw)
    batch, (heads, heads_kv), (dim, dim_v) = draw.get("batch_size BATCH b", 2), draw.heads, head_dims(draw)
    if draw.function.suite == "composable_kernel":
        batch, heads, heads_kv = 1, 2, 1
    draw.within(batch * heads * queries * keys * (dim + dim_v))
    dtype, scalars = draw.dtype(), masks(draw, keys)
    rows_first = draw.function.suite.startswith("flash") or draw.get("storage_flip") or draw.get("perm") == 0
    layout = (1, 2) if rows_first else None
    q = draw.tensor(batch, heads, queries, dim, dtype=dtype, swapped=layout)
    k = draw.tensor(batch, heads_kv, keys, dim, dtype=dtype, swapped=layout)
    v = draw.tensor(batch, heads_kv, keys, dim_v, dtype=dtype, swapped=(2, 3) if draw.get("vl") == "c" else layout)
    tensors = {"q": q, "k": k, "v": v} | biases(draw, batch, heads, queries, keys, dtype)
    if draw.get("has_qv"):
        tensors["qv"] = draw.normal(batch, heads, queries, dim_v, dtype=dtype)
    if dtype.itemsize == 1:
        return in_float8(draw, batch, tensors, scalars)
    reference = partial(attention, **tensors, **scale_of(scalars, dim))
    expected = lambda: (reference(), reference(**torch_like(dtype)))  # noqa: E731
    return Call("flash_attention", tensors, scalars, expected, tolerance(draw, dtype, scalars),
                ("out", (batch, heads, queries, dim_v), dtype))  # fmt: skip


def in_float8(draw: Draw, batch: int, tensors: Mapping[str, Array], scalars: Mapping[str, Any]) -> Call:
    """The same with float8 tensors, which have a scale for each sequence and head, and with a result of bfloat16."""
    op = "flash_attention_fp8_varlen" if "cu_seqlens_q" in tensors else "flash_attention_fp8"
    scales = {name: (draw.rng.random((batch, tensors[name].shape[1])) * 2).astype(FP32) for name in "qkv"}
    exact = dict(tensors)
    for name, scale in scales.items():
        if op.endswith("varlen"):
            factors = np.repeat(scale, np.diff(tensors["cu_seqlens_q" if name == "q" else "cu_seqlens_k"]), 0)[
                ..., None
            ]
        else:
            factors = scale[..., None, None]
        exact[name] = tensors[name].astype(np.float64) * factors
    like = {"compute": np.float32, "storage": BF16, "rounding": partial(rounded, tensors["v"].dtype)}
    options = scale_of(scalars, tensors["q"].shape[-1])
    reference = partial(attention_varlen if op.endswith("varlen") else attention, **exact, **options)
    expected = lambda: (reference(), reference(**like))  # noqa: E731
    return Call(op, {**tensors, **{f"{name}_scale": scale for name, scale in scales.items()}}, scalars, expected,
                tolerance(draw, BF16, scalars), ("out", (*tensors["q"].shape[:-1], tensors["v"].shape[-1]), BF16),
                )  # fmt: skip


def rounded(dtype: np.dtype[Any], probabilities: Array) -> tuple[Array, Array]:
    return probabilities.astype(dtype).astype(FP32), probabilities


def lengths(draw: Draw) -> tuple[int, int]:
    """Return the (longest) sequences of queries and keys."""
    queries = draw.get("seqlen_q SEQLEN_Q qo_len q_len seq_len seqlen s")
    keys = draw.get("seqlen_k SEQLEN_K kv_len s_k seq_len seqlen", queries)
    return (keys, queries) if draw.get("swap_sq_sk") else (queries, keys)


def biases(draw: Draw, batch: int, heads: int, queries: int, keys: int, dtype: np.dtype[Any]) -> dict[str, Array]:
    """Return the bias or the slopes that a combination asks for."""
    if draw.get("alibi") or draw.get("bias") == "a":
        return {"alibi_slopes": (draw.rng.random((batch, heads)) * 0.3).astype(FP32)}
    if draw.get("bias_type") or draw.get("bias") == "e" or "matrix_bias" in draw.function.name:
        return {"bias": draw.normal(batch, heads, queries, keys, dtype=dtype)}
    return {}


def varlen(draw: Draw) -> Call:
    """flash_attention_varlen over three sequences, or as many as the combination has, of random lengths."""
    queries, keys = lengths(draw)
    batch, (heads, heads_kv), (dim, dim_v) = draw.get("batch_size BATCH", 3), draw.heads, head_dims(draw)
    draw.within(batch * heads * queries * keys * (dim + dim_v))
    cu_q, cu_k = (offsets(draw.rng.integers(max(1, n - 20), n + 1, batch)) for n in (queries, keys))
    if draw.function.suite == "flashinfer" or (queries == keys and "packed" in draw.function.name):
        cu_q, cu_k = offsets([queries] * batch), offsets([keys] * batch)
    dtype, scalars = draw.dtype(), masks(draw, keys)
    q = draw.normal(cu_q[-1], heads, dim, dtype=dtype)
    k, v = (draw.normal(cu_k[-1], heads_kv, width, dtype=dtype) for width in (dim, dim_v))
    tensors = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    tensors |= biases(draw, batch, heads, queries, keys, dtype)
    if draw.get("has_qv"):
        tensors["qv"] = draw.normal(cu_q[-1], heads, dim_v, dtype=dtype)
    if draw.get("pos_encoding_mode", "NONE") == "ROPE_LLAMA":
        tensors["cos"] = draw.normal(keys, dim // 2)
    if dtype.itemsize == 1:
        return in_float8(draw, batch, tensors, scalars)
    reference = partial(attention_varlen, **tensors, **scale_of(scalars, dim))
    expected = lambda: (reference(), reference(**torch_like(dtype)))  # noqa: E731
    return Call("flash_attention_varlen", tensors, scalars | {"max_seqlen_q": queries, "max_seqlen_k": keys}, expected,
                tolerance(draw, dtype, scalars), ("out", (len(q), heads, dim_v), dtype))  # fmt: skip


def offsets(counts: Any) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def cache(draw: Draw) -> Call:
    """paged_attention; a contiguous cache is one in blocks of its length."""
    pairs = of_sequences(draw)
    batch, (heads, heads_kv), (dim, _) = len(pairs), draw.heads, head_dims(draw)
    draw.within(heads * dim * 2 * sum(queries * keys for queries, keys in pairs))
    longest = max(keys for _, keys in pairs)
    size = draw.get("paged_kv_block_size page_size page_block_size block_size") or longest
    per_sequence = -(-longest // size)
    dtype, scalars = draw.dtype(default="bfloat16" if draw.function.suite == "flash-attention 3" else "float16"), {}
    if str(draw.get("q_dtype input_dtype")).startswith(("fp8", "float8")):
        dtype = draw.float8
    scalars = masks(draw, longest, causal=True)
    if all(queries == 1 for queries, _ in pairs):
        scalars = {name: value for name, value in scalars.items() if name not in ("causal", "window_right")}
    elif scalars.get("causal") is not False:
        scalars.pop("causal", None)
        scalars.pop("window_right", None)
    layout = (1, 2) if draw.get("kv_layout layout") == "HND" else None
    k, v = (draw.tensor(batch * per_sequence, size, heads_kv, dim, dtype=dtype, swapped=layout) for _ in range(2))
    tables = draw.rng.permutation(batch * per_sequence).astype(np.int32).reshape(batch, per_sequence)
    q = draw.normal(sum(queries for queries, _ in pairs), heads, dim, dtype=dtype)
    slopes = biases(draw, batch, heads, 0, 0, dtype)
    first = (
        {"first_keys": draw.rng.integers(0, longest // 5 + 1, batch).astype(np.int32)}
        if draw.get("has_leftpad")
        else {}
    )
    tensors = {"q": q, "k": k, "v": v, "block_tables": tables,
               "seqlens_k": np.array([keys for _, keys in pairs], np.int32),
               "cu_seqlens_q": offsets([queries for queries, _ in pairs])} | slopes | first  # fmt: skip
    if draw.get("pos_encoding_mode", "NONE") == "ROPE_LLAMA":
        tensors["cos"] = draw.normal(longest, dim // 2)
    if draw.get("v_scale"):
        scalars["out_scale"] = draw.get("v_scale")
    expected = partial(gathered, tensors, pairs, {"causal": True} | scale_of(scalars, dim), dtype)
    scalars = {WINDOW if name == "window_left" else name: value for name, value in scalars.items()}
    return Call("paged_attention", tensors, scalars | {"max_seqlen_q": max(queries for queries, _ in pairs)}, expected,
                tolerance(draw, dtype, slopes), ("out", q.shape, dtype))  # fmt: skip


def of_sequences(draw: Draw) -> list[tuple[int, int]]:
    """Return the queries and keys of each sequence of a cache."""
    if pairs := draw.get("seq_lens"):
        return [(queries, keys) for queries, keys in pairs]
    if keys := draw.get("kv_lens"):
        return [(1, count) for count in keys]
    queries, keys = lengths(draw)
    queries = 1 if "decode" in draw.function.name else queries
    if draw.function.suite in ("flashinfer", "aiter"):
        return [(queries, keys)] * draw.get("batch_size", 2)
    if draw.get("has_leftpad"):
        queries = min(queries, keys - keys // 5)
    return [(queries, int(count)) for count in draw.rng.integers(max(min(queries, keys), keys // 2), keys + 1, 2)]


def gathered(
    tensors: Mapping[str, Array], pairs: list[tuple[int, int]], options: dict[str, Any], dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """Attention of each sequence over its keys, gathered from their blocks, exact and in the dtypes of torch."""
    results: list[list[Array]] = [[], []]
    chunk = options.pop("attention_chunk", 0)
    for b, (queries, keys) in enumerate(pairs):
        first = int(tensors["first_keys"][b]) if "first_keys" in tensors else 0
        k, v = (
            tensors[name][tensors["block_tables"][b]].reshape(-1, *tensors[name].shape[2:])[first:keys] for name in "kv"
        )
        q = tensors["q"][tensors["cu_seqlens_q"][b] :][:queries]
        q, k, v = (x.swapaxes(0, 1)[None] for x in (q, k, v))
        given = {"alibi_slopes": tensors["alibi_slopes"][[b]]} if "alibi_slopes" in tensors else {}
        if chunk:
            given["mask_mod"] = partial(in_chunk, keys - first - queries, chunk)
        for found, how in zip(results, ({}, torch_like(dtype)), strict=True):
            found.append(attention(q, k, v, **given, **options, **how)[0].swapaxes(0, 1))
    return np.concatenate(results[0]), np.concatenate(results[1])


def in_chunk(shift: int, chunk: int, _batch: int, _head: int, queries: Array, keys: Array) -> Array:
    """Tell which keys are in the chunk of each query's diagonal."""
    return keys // chunk == (queries + shift) // chunk


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
"""What makes the call of a test, by suite and name; with its file, if others of that name make other calls."""


def maker(function: Function) -> Callable[[Draw], Call] | None:
    """Return what makes the calls of a test function, if the sample has them."""
    qualified = f"{function.file.rpartition('/')[2]}::{function.name}"
    return CALLS.get((function.suite, qualified)) or CALLS.get((function.suite, function.name))
