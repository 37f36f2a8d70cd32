"""Probabilities: renormalised and masked by limits, and sampled from."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.rows import reference
from kernels.tolerance import assert_close
from tests.ops.rows.checking import normal
from tests.support.dtypes import BF16, FP16, FP32
from tests.support.poison import into_poison, poisoned

pytestmark = pytest.mark.sampled(2)

DTYPES = (FP32, FP16, BF16)
LIMITS = {
    "top_k": np.array((0, 2, 10, 40, 1, 2**31 - 1), np.int32),
    "top_p": np.array((0.9, 0.99, 1, 0.5, 0.8, 0.0), FP32),
    "min_p": np.array((0, 0.1, 0.1, 0.05, 0.3, 0.2), FP32),
}
COMBINED = (("top_k",), ("top_p",), ("min_p",), ("top_k", "top_p", "min_p"))


def probabilities(cols: int, dtype: np.dtype) -> np.ndarray:
    return reference.softmax(normal(np.random.default_rng(cols), (6, cols), FP32, 2)).astype(dtype)


def moved(names: tuple[str, ...], by: float) -> dict[str, np.ndarray]:
    """Return limits whose top_p and min_p are moved by a part: fp32 may be on the other side of them by so much."""
    return {name: LIMITS[name] if name == "top_k" else LIMITS[name] * FP32.type(1 + by) for name in names}


def check_renormalised(bundle: Bundle, cols: int, dtype: np.dtype, names: tuple[str, ...], joint: bool = False) -> None:
    x = probabilities(cols, dtype)
    limits, placed = moved(names, 0), poisoned(bundle, x)
    out = into_poison(bundle, x.shape, dtype, lambda out: bundle.renorm_probs(placed, **limits, joint=joint, out=out))
    tried = [moved(names, by) | {"joint": joint} for by in (0, 2e-6, -2e-6)]
    for row in range(len(x)):
        sets = [reference.kept_rows(x, None, **these)[row] for these in tried]
        found = [
            these for these, kept in zip(tried, sets, strict=True) if ((out[row] != 0) == (kept & (x[row] > 0))).all()
        ]
        assert found, row
        exact, same = (f(x, **found[0])[row] for f in (reference.renorm_probs, reference.renorm_probs_same_dtype))
        assert_close(out[row], exact, same, 1e-7)
    bundle.renorm_probs(placed, **limits, joint=joint, out=placed)
    assert np.array_equal(placed.numpy(), out)


@pytest.mark.parametrize("names", COMBINED, ids="-".join)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", (111, 1, 9000))
def test_renormalised(rows: Bundle, cols: int, dtype: np.dtype, names: tuple[str, ...]):
    check_renormalised(rows, cols, dtype, names)


@pytest.mark.parametrize("cols", (111, 9000))
def test_top_p_of_all(rows: Bundle, cols: int):
    check_renormalised(rows, cols, FP32, ("top_k", "top_p"), True)


@pytest.mark.parametrize("infinite", (False, True))
@pytest.mark.parametrize("names", (("top_k",), ("min_p",), ("top_k", "min_p")), ids="-".join)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", (111, 9000))
def test_masked_logits(rows: Bundle, cols: int, dtype: np.dtype, names: tuple[str, ...], infinite: bool):
    """Logits of -inf are among the largest where fewer others are left."""
    x = normal(np.random.default_rng(cols), (6, cols), dtype, 3)
    if infinite:
        x[:, 5:] = -np.inf
    limits, placed = {name: LIMITS[name] for name in names}, poisoned(rows, x)
    out = into_poison(rows, x.shape, dtype, lambda out: rows.mask_logits(placed, **limits, out=out))
    assert np.array_equal(out, reference.mask_logits(x, **limits))


@pytest.mark.parametrize("names", ((), *COMBINED), ids="-".join)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", (111, 9000))
def test_sampled(rows: Bundle, cols: int, dtype: np.dtype, names: tuple[str, ...]):
    """The token has the largest score, or one that fp32 cannot tell from it."""
    rng, x = np.random.default_rng(1), probabilities(cols, dtype)
    given = {"seeds": rng.integers(-(2**63), 2**63 - 1, 6), "positions": rng.integers(0, 2**31 - 1, 6, np.int32)}
    tokens = rows.sample_probs(poisoned(rows, x), **given, **moved(names, 0)).numpy()
    scores = reference.sample_probs_scores(x, **given, **moved(names, 0))
    chosen = np.take_along_axis(scores, tokens[:, None].astype(np.int64), 1)[:, 0]
    assert (chosen >= scores.max(1) - 1e-5 * np.maximum(1, np.abs(scores.max(1)))).all()


def test_what_has_no_probability_is_never_sampled(rows: Bundle):
    x = np.zeros((40, 50), FP32)
    x[:, (3, 49)] = 0.25, 0.75
    given = {"seeds": np.arange(40), "positions": np.zeros(40, np.int32)}
    assert set(rows.sample_probs(x, **given).tolist()) == {3, 49}
    assert set(rows.sample_probs(x, **given, top_p=np.array([0.7], FP32)).tolist()) == {49}
