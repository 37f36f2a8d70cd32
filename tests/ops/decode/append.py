"""Writing to caches."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from aot_runtime.caches import dequantise_int4
from kernels.decode.reference import (
    append,
)
from kernels.tolerance import assert_close
from tests.ops.decode.cases import (
    FP16,
    other_layout,
    quantised,
)


def angles(rng: np.random.Generator, positions: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    phases = rng.uniform(-np.pi, np.pi, (positions, pairs))
    return np.cos(phases).astype(np.float32), np.sin(phases).astype(np.float32)


SLOTS = np.array([0, 37, -1, 5, 79, 80, 10**6], np.int32)  # -1 and those from 80 on are not in the cache


def run_append(decode: Bundle, op: str, kind: str, new: list, caches: list, **options: object) -> tuple[list, tuple]:
    """(what the caches and scales hold then, what they should)."""
    arrays = [decode.device.array(caches[0]), other_layout(decode, caches[1]), *map(decode.device.array, caches[2:])]
    tensors = [x for x in (options.pop(name, None) for name in ("cos", "sin", "positions")) if x is not None]
    names = dict(zip(("cos", "sin", "positions"), tensors, strict=False))
    scales = dict(zip(("k_scale", "v_scale"), arrays[2:], strict=False))
    given = dict(zip(("k_new", "v_new", "k", "v"), [*new, *arrays[:2]], strict=True))
    getattr(decode, op)(**given, slots=decode.device.array(SLOTS), **scales, **names, **options)
    wanted = append(kind, *new, *caches[:2], SLOTS, *(caches[2:] or (None, None)), *tensors, **options)
    return [array.numpy() for array in arrays][: len(wanted)], wanted


def new_tokens(rng: np.random.Generator, head_dim: int, dtype: np.dtype = FP16) -> list[np.ndarray]:
    return [rng.standard_normal((len(SLOTS), 3, head_dim)).astype(dtype) for _ in range(2)]


@pytest.mark.parametrize("head_dim", (64, 40))
def test_append(decode: Bundle, head_dim: int):
    rng = np.random.default_rng(0)
    new = new_tokens(rng, head_dim)
    caches = [np.full((5, 16, 3, head_dim), np.nan, FP16) for _ in range(2)]
    for actual, wanted in zip(*run_append(decode, "append_kv", "given", new, caches), strict=True):
        assert np.array_equal(actual, wanted, equal_nan=True)
        assert np.isfinite(actual).sum() == 4 * 3 * head_dim


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("pairs", (32, 8))
def test_append_rotated(decode: Bundle, pairs: int, interleaved: bool):
    rng = np.random.default_rng(1)
    new, caches = new_tokens(rng, 64), [np.zeros((5, 16, 3, 64), FP16) for _ in range(2)]
    cos, sin = angles(rng, 50, pairs)
    positions = np.array([0, 49, 3, 7, 20, 1, 2], np.int32)
    options = {"cos": cos, "sin": sin, "positions": positions, "interleaved": interleaved}
    actual, same = run_append(decode, "append_kv", "given", new, caches, **options)
    exact = append("given", *new, *caches, SLOTS, None, None, cos, sin, positions, interleaved=interleaved,
                   compute=np.float64)  # fmt: skip
    for found, wanted, like in zip(actual, exact, same, strict=True):
        assert_close(found, wanted, like, 1e-7)


def test_a_position_past_the_table_reads_nothing_past_it(decode: Bundle):
    rng = np.random.default_rng(1)
    cos, sin = angles(rng, 4, 8)
    caches = [np.zeros((5, 16, 3, 64), FP16) for _ in range(2)]
    positions = np.array([4, -1, 2**31 - 1, 0, -(2**31), 3, 3], np.int32)
    arrays = [decode.device.array(x) for x in (*new_tokens(rng, 64), *caches)]
    decode.append_kv(*arrays, decode.device.array(SLOTS), cos=cos, sin=sin, positions=positions)
    assert np.isfinite(arrays[2].numpy()).all()


@pytest.mark.parametrize("cache", ("int8", "float8"))
def test_append_quantised(decode: Bundle, cache: str):
    rng = np.random.default_rng(2)
    dtype = quantised(decode, cache)
    new, caches = new_tokens(rng, 64), [np.zeros((5, 16, 3, 64), dtype) for _ in range(2)]
    given = [rng.uniform(0.005, 0.02, (1, 1, 3)).astype(np.float32) for _ in range(2)]  # so small that some saturate
    for actual, wanted in zip(*run_append(decode, "append_kv", "given", new, [*caches, *given]), strict=True):
        assert np.array_equal(actual, wanted)
    new[0][0, 1] = 0  # a row without a scale
    scales = [np.full((5, 16, 3), np.nan, np.float32) for _ in range(2)]
    for actual, wanted in zip(
        *run_append(decode, "append_kv_per_token", "per_token", new, [*caches, *scales]), strict=True
    ):
        assert np.array_equal(actual, wanted, equal_nan=True)


@pytest.mark.parametrize("groups", (1, 2, 4, 8))
def test_append_int4(decode: Bundle, groups: int):
    rng = np.random.default_rng(3)
    new, caches = new_tokens(rng, 64), [np.zeros((5, 16, 3, 32), np.uint8) for _ in range(2)]
    new[1][3, 0] = 0.5  # all alike
    scales = [np.full((5, 16, 3, groups, 2), np.nan, FP16) for _ in range(2)]
    actual, wanted = run_append(decode, "append_kv_int4", "int4", new, [*caches, *scales])
    for found, exact in zip(actual, wanted, strict=True):
        assert np.array_equal(found, exact, equal_nan=True)
    back = dequantise_int4(actual[0][0, 0], actual[2][0, 0])
    step = actual[2][0, 0, :, :, 0].astype(np.float32).repeat(64 // groups, -1)
    assert (np.abs(back - new[0][0]) <= 0.51 * step + 2e-3).all()
