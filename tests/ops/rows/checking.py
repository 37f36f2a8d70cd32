"""Call row-wise ops with poison around all tensors, and compare them with the fp64 references."""

from __future__ import annotations

from typing import Any

import numpy as np

from aot_runtime import Bundle
from kernels.rows import processing_reference, reference
from kernels.tolerance import assert_close
from tests.support.poison import into_poison, poisoned

EPS = {"rms_norm": 1e-6, "layer_norm": 1e-5}
NORMS = tuple(EPS)
CALLS = (("softmax", ""), ("rms_norm", "weight"), ("layer_norm", "weight"), ("layer_norm", "weight bias"))
"""Ops whose result is of x's shape, and what they take beside x."""


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(dtype)


def given(rng: np.random.Generator, op: str, vectors: str, shape: tuple[int, ...], dtype: np.dtype) -> dict[str, Any]:
    """Return x, the named vectors of its columns, and eps, as the op takes them."""
    found = {"x": normal(rng, shape, dtype, 3)} | {name: normal(rng, shape[1:], dtype) for name in vectors.split()}
    return found | ({"eps": EPS[op]} if op in EPS else {})


REFERENCES = vars(processing_reference) | vars(reference)


def check(
    rows: Bundle, op: str, floor: float = 2e-6, shape: tuple[int, ...] = (), dtype: np.dtype | None = None,
    **arguments: Any,
) -> np.ndarray:  # fmt: skip
    """Check the result of an op.

    shape, dtype: the result's, if not those of the first tensor. floor: of the tolerance rule, for results of about 1.
    A residual has to equal the sum exactly.
    """
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    first = next(iter(arrays.values()))
    # No two tensors have the same strides.
    placed = {name: poisoned(rows, host, 16 * number) for number, (name, host) in enumerate(arrays.items(), 1)}
    result = into_poison(
        rows, shape or first.shape, dtype or first.dtype, lambda out: getattr(rows, op)(**arguments | placed, out=out)
    )
    exact, same = (REFERENCES[f"{op}{suffix}"](**arguments) for suffix in ("", "_same_dtype"))
    if "residual" in arrays:
        (total, exact), (_, same) = exact, same
        assert np.array_equal(placed["residual"].numpy(), total)
    largest = np.abs(exact, where=np.isfinite(exact), out=np.zeros(exact.shape)).max(initial=0)
    assert_close(result, exact, same, floor * min(1.0, float(largest)))
    return result


def parameters(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """Draw parameters of sampling: in some rows the temperature is so low that the largest logit is taken."""
    temperature = rng.uniform(0.2, 2, rows).astype(np.float32)
    temperature[1:4] = (0, 1e-30, -1)[: rows - 1]
    seeds, positions = rng.integers(-(2**63), 2**63 - 1, rows), rng.integers(0, 2**31 - 1, rows, dtype=np.int32)
    return {"temperature": temperature, "seeds": seeds, "positions": positions}


def check_sample(rows: Bundle, x: np.ndarray, given: dict[str, np.ndarray]) -> np.ndarray:
    """Check that the token has the largest score, or one that fp32 cannot tell from it."""
    tokens = rows.sample(poisoned(rows, x), **given).numpy()
    scores = reference.sample_scores(x, **given)
    chosen = np.take_along_axis(scores, tokens[:, None].astype(np.int64), 1)[:, 0]
    assert (chosen >= scores.max(1) - 1e-5 * np.maximum(1, np.abs(scores.max(1)))).all()
    return tokens
