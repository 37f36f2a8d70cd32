"""Results where an input was: what a wavefront stores, no other reads afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.rows import reference
from kernels.tolerance import assert_close
from tests.ops.rows.checking import CALLS, given, normal
from tests.support.dtypes import BF16, FP16, FP32
from tests.support.poison import poisoned

pytestmark = pytest.mark.sampled(2)

DTYPES = (FP16, FP32, BF16)


def check(rows: Bundle, op: str, name: str, arguments: dict[str, Any]) -> None:
    """An op whose result takes the place of the input `name`."""
    placed = {key: poisoned(rows, x) if isinstance(x, np.ndarray) else x for key, x in arguments.items()}
    out = getattr(rows, op)(**placed, out=placed[name]).numpy()
    exact, same = (getattr(reference, f"{op}{suffix}")(**arguments) for suffix in ("", "_same_dtype"))
    assert_close(out, exact, same, 2e-6)


@pytest.mark.parametrize("cols", (33, 64, 1, 512, 5000, 40000, 600))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("op", "vectors"), CALLS, ids=str)
def test_softmax_and_norms(rows: Bundle, op: str, vectors: str, dtype: np.dtype, cols: int):
    check(rows, op, "x", given(np.random.default_rng(cols), op, vectors, (3, cols), dtype))


@pytest.mark.parametrize("name", ("up", "gate"))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ("silu_mul", "gelu_mul"))
@pytest.mark.parametrize("cols", (33, 64, 1, 2048))
def test_gates(rows: Bundle, cols: int, op: str, dtype: np.dtype, name: str):
    rng = np.random.default_rng(cols)
    check(rows, op, name, {part: normal(rng, (3, cols), dtype) for part in ("gate", "up")})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", (1, 9))
@pytest.mark.parametrize("head_dim, pairs", ((64, 32), (40, 3), (128, 64), (256, 128), (200, 16)), ids=str)
def test_rotary(rows: Bundle, head_dim: int, pairs: int, heads: int, dtype: np.dtype, interleaved: bool):
    rng = np.random.default_rng(heads)
    phases = rng.uniform(-np.pi, np.pi, (7, pairs))
    arguments = {"x": normal(rng, (3, heads, head_dim), dtype), "positions": np.array([6, 0, 3], np.int32)}
    arguments |= {"cos": np.cos(phases).astype(np.float32), "sin": np.sin(phases).astype(np.float32)}
    check(rows, "rotary", "x", arguments | {"interleaved": interleaved})
