"""Calls of products and of mixtures of experts, as the suites make them."""

from __future__ import annotations

import numpy as np

from kernels.gemm import reference as gemm
from kernels.moe.reference import moe, moe_same_dtype
from tests.ops.moe.checking import made
from tests.peers.draws import Call, Draw, Tolerance
from tests.support.dtypes import BF16, FP32


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


def batched(draw: Draw) -> Call:
    """batched_matmul in bfloat16: a [b, m, k] times weights [b, n, k]."""
    b, m, n, k = (draw.get(name) for name in "bmnk")
    draw.within(b * m * n * k)
    dtype, layout = draw.dtype(default="bfloat16"), draw.get("layout", "TN")
    x = draw.tensor(b, m, k, dtype=dtype, swapped=None if layout[0] == "T" else (1, 2))
    weights = draw.tensor(b, n, k, dtype=dtype, swapped=None if layout[1] == "N" else (1, 2))
    given = {"a": x, "b": weights.swapaxes(1, 2)}
    exact = lambda: x.astype(np.float64) @ given["b"].astype(np.float64)  # noqa: E731
    expected = lambda: (exact(), exact().astype(dtype))  # noqa: E731
    return Call("batched_matmul", given, {}, expected, Tolerance(1e-1, 1e-2), ("e", (b, m, n), dtype))


def block_scaled(draw: Draw) -> Call:
    """block_scaled_matmul of float8: scales of 1 x 128 elements of a and of 128 x 128 of b."""
    m, n, k = (draw.get(names) for names in ("m", "n", "k"))
    draw.within(m * n * k)
    a, b = (draw.normal(*shape, dtype=draw.float8) for shape in ((m, k), (n, k)))
    rows_first = draw.get("scale_major_mode") == "K"
    scale_a, scale_b = (
        (draw.tensor(*shape, dtype=FP32, swapped=None if rows_first else (0, 1)) * 0.01 + 0.05).astype(FP32)
        for shape in ((m, -(-k // 128)), (-(-n // 128), -(-k // 128)))
    )
    given = {"a": a, "b": b.T, "scale_a": scale_a, "scale_b": scale_b.T}
    like = np.empty((m, n), BF16)
    expected = lambda: (  # noqa: E731
        gemm.block_scaled_matmul(**given), gemm.block_scaled_matmul_same_dtype(**given, e=like)
    )  # fmt: skip
    return Call("block_scaled_matmul", given, {}, expected, Tolerance(1e-2, 1e-2), ("e", (m, n), BF16))


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
