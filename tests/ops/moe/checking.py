"""Call mixtures of experts with poison around all tensors, and compare them with the fp64 references."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from aot_runtime import Bundle
from kernels.gemm.reference import largest, to_8_bits
from kernels.moe import quantised_reference, reference
from kernels.tolerance import assert_close
from tests.support.dtypes import FP32, INT32
from tests.support.poison import into_poison, poisoned

FLOOR = 1e-6


def check_route(moe: Bundle, logits: np.ndarray, topk: int, bias: np.ndarray | None = None, **how: Any) -> np.ndarray:
    """Check the chosen experts: each is as good as the exact choice, as far as fp32 can tell, and its weight is
    right."""
    tokens, experts = logits.shape
    given = {"logits": poisoned(moe, logits)}
    if bias is not None:
        given["bias" if bias.dtype == FP32 else f"bias_{bias.dtype}"] = poisoned(moe, bias)
    chosen = moe.device.empty((tokens, topk), INT32)
    weights = into_poison(
        moe, (tokens, topk), FP32, lambda out: moe.moe_route(**given, topk=topk, weights=out, chosen=chosen, **how)
    )
    found = chosen.numpy()
    assert all(len(set(row)) == topk for row in found.tolist()) and ((found >= 0) & (found < experts)).all()

    scoring, groups = how.get("scoring", "softmax"), how.get("groups", 1)
    exact = reference.expert_weights(logits.astype(np.float64), scoring)
    worth = logits.astype(np.float64) if bias is None else exact + bias.astype(np.float64)
    taking_part = reference.in_best_groups(worth, bias is not None, groups, how.get("topk_groups", 1))
    assert np.take_along_axis(taking_part, found, 1).all()
    order = -np.sort(-np.where(taking_part, worth, -np.inf), 1)[:, :topk]
    assert np.abs(np.take_along_axis(worth, found, 1) - order).max(initial=0) <= 1e-6 * max(1, np.abs(worth).max())

    same = reference.expert_weights(logits.astype(FP32), scoring)
    picked = [np.take_along_axis(scores, found, 1) for scores in (exact, same)]
    if how.get("renormalise", True):
        picked = [scores / scores.sum(1, keepdims=True) for scores in picked]
    scale = how.get("scale", 1)
    assert_close(weights, picked[0] * scale, picked[1] * scale, FLOOR)
    return found


PACKED = ("weights", "chosen", *(f"{name}_{matrix}" for name in ("scale", "scales", "zeros", "order")
                                for matrix in ("gate_up", "down")))  # fmt: skip
"""Tensors without gaps between rows, where there is no room for poison."""


def check_moe(
    moe: Bundle, activation: str = "silu", op: str = "moe", how: dict[str, float] | None = None, **arrays: np.ndarray
) -> np.ndarray:
    """Check the result of `moe`, or of its like with weights of fewer bits, on these tensors. how: more scalars."""
    x = arrays["x"]
    place = dict.fromkeys(PACKED, moe.device.array)
    placed = {name: place.get(name, partial(poisoned, moe))(host) for name, host in arrays.items()}
    result = into_poison(
        moe, x.shape, x.dtype, lambda out: getattr(moe, op)(**placed, **(how or {}), activation=activation, out=out)
    )
    of = reference if op == "moe" else quantised_reference
    gating = {name: value for name, value in (how or {}).items() if name in ("limit", "shift")}
    exact, same = (getattr(of, f"{op}{end}")(**arrays, activation=activation, **gating) for end in ("", "_same_dtype"))
    assert_close(result, exact, same, FLOOR)
    return result


def made(
    rng: np.random.Generator, tokens: int, experts: int, topk: int, hidden: int, intermediate: int, dtype: np.dtype
) -> dict[str, np.ndarray]:
    """Make tensors of `moe` whose results are about 1; no token has an expert twice."""
    chosen = np.argsort(rng.random((tokens, experts)), 1)[:, :topk].astype(np.int32)
    return {
        "x": rng.standard_normal((tokens, hidden)).astype(dtype),
        "gate_up": (rng.standard_normal((experts, 2 * intermediate, hidden)) * hidden**-0.5).astype(dtype),
        "down": (rng.standard_normal((experts, hidden, intermediate)) * intermediate**-0.5).astype(dtype),
        "weights": rng.random((tokens, topk)).astype(np.float32),
        "chosen": np.ascontiguousarray(chosen),
    }


def made_scaled(
    rng: np.random.Generator, eight_bits: np.dtype, dims: tuple[int, int, int, int, int], dtype: np.dtype,
    block: tuple[int, int] | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Make the tensors of `moe_scaled`, or of `moe_block_scaled` with its `block`; scales differ by factors up to 4.

    dims: what `made` takes.
    """
    given = made(rng, *dims, dtype)
    for name, parts in (("gate_up", 2), ("down", 1)):
        weight = given[name].astype(FP32)
        rows, columns = weight.shape[1] // parts, weight.shape[2]
        height, width = block or (1, columns)
        of_row = np.concatenate([np.arange(rows) // height + part * -(-rows // height) for part in range(parts)])
        of_column = np.arange(columns) // width
        scale = rng.uniform(0.5, 2, (len(weight), of_row[-1] + 1, of_column[-1] + 1)) / largest(eight_bits)
        scale = scale.astype(FP32) * np.abs(weight).max()
        given[name] = to_8_bits(weight / scale.max(), eight_bits)
        given[f"scale_{name}"] = scale if block else scale[:, :, 0]
    return given


def made_codes(
    rng: np.random.Generator, codes: np.dtype, dims: tuple[int, int, int, int, int], dtype: np.dtype,
    groups: tuple[int, int] = (1, 1), with_zeros: bool = False, ordered: bool = False,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Make the arguments of `moe_int4`, `moe_int8` or `moe_fp8`, by the dtype of the codes, with as many groups of gate
    and up, and of down; scales differ."""
    given, is_int4 = made(rng, *dims, dtype), codes == np.uint8
    for name, count in zip(("gate_up", "down"), groups, strict=True):
        experts, rows, columns = given[name].shape
        if codes.kind in "iu":
            shape = (experts, rows, -(-columns // 2) if is_int4 else columns)
            given[name] = rng.integers(0 if is_int4 else -127, 256 if is_int4 else 128, shape, codes)
        else:
            given[name] = rng.standard_normal(given[name].shape).astype(codes)
        largest_code = 4 if is_int4 else 64 if codes == np.int8 else 1
        scale = rng.uniform(0.5, 2, (experts, count, rows)) * columns**-0.5 / largest_code
        given[f"scales_{name}"] = scale.astype(dtype)
        if with_zeros:
            given[f"zeros_{name}"] = rng.integers(3, 13, scale.shape, np.uint8) if is_int4 else rng.integers(
                -40, 40, scale.shape, np.int8)  # fmt: skip
        if ordered:
            given[f"order_{name}"] = np.argsort(rng.random((experts, columns)), 1).astype(np.int32)
    return given
