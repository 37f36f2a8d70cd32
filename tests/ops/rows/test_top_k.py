"""The largest elements of rows."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.rows import reference
from tests.ops.rows.checking import normal
from tests.support.dtypes import BF16, FP16, FP32
from tests.support.poison import poisoned

pytestmark = pytest.mark.sampled(3)

DTYPES = (FP32, FP16, BF16)


def check_top_k(bundle: Bundle, x: np.ndarray, k: int, **options: object) -> None:
    """Check values and columns exactly; NaN has to be in the same places."""
    placed = {name: poisoned(bundle, value) if name == "table" else value for name, value in options.items()}
    values, columns = bundle.top_k(poisoned(bundle, x), k=k, **placed)
    wanted_values, wanted_columns = reference.top_k(x, k, **options)
    assert np.array_equal(columns.numpy(), wanted_columns)
    assert np.array_equal(values.numpy().astype(FP32), wanted_values.astype(FP32), equal_nan=True)


@pytest.mark.parametrize("is_sorted", (True, False))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols, k", ((1, 1), (111, 1), (111, 111), (1000, 64), (9000, 300), (16400, 5)))
def test_largest(rows: Bundle, cols: int, k: int, dtype: np.dtype, is_sorted: bool):
    check_top_k(rows, normal(np.random.default_rng(k), (3, cols), dtype), k, is_sorted=is_sorted)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("ties", ("first", "last"))
@pytest.mark.parametrize("is_sorted", (True, False))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("k", (2, 40, 200))
def test_equal_elements(rows: Bundle, k: int, dtype: np.dtype, is_sorted: bool, ties: str):
    """Few different values, of both signs; both zeros, NaN and infinities; rows of one value."""
    rng = np.random.default_rng(k)
    some = (1.5, 0.0, -0.0, -2.25, -7.0)
    x = np.stack([rng.choice([*some, np.nan, np.inf, -np.inf], 300), rng.choice(some, 300), np.full(300, -3.0),
                  np.full(300, -np.inf), np.full(300, np.nan)]).astype(dtype)  # fmt: skip
    check_top_k(rows, x, k, is_sorted=is_sorted, ties=ties)


@pytest.mark.parametrize("page_size", (0, 1, 64))
@pytest.mark.parametrize("with_offsets", (False, True))
def test_lengths_and_pages(rows: Bundle, with_offsets: bool, page_size: int):
    """Rows end before their last column, some before k; their columns are numbers of keys in pages."""
    rng = np.random.default_rng(page_size)
    lengths = np.array((0, 3, 70, 500, 501, 10**6, -1), np.int32)
    options: dict[str, object] = {"lengths": lengths}
    if with_offsets:
        options["offsets"] = np.arange(7, dtype=np.int32) * 1000
    if page_size:
        options |= {"table": rng.integers(0, 10**6, (7, -(-500 // page_size)), dtype=np.int32), "page_size": page_size}
    check_top_k(rows, normal(rng, (7, 500), FP32), 70, **options)
