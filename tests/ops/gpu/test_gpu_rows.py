"""Row-wise kernels on a real GPU."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from tests.ops.rows.rows_suite import *  # noqa: F403 -- its tests
from tests.ops.rows.rows_suite import (
    BF16,
    FP16,
    FP32,
    WIDTHS,
    RowsFor,
    check_sample,
    check_softmax,
    normal,
    parameters,
    run_norm,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def rows_for(rows: Bundle) -> RowsFor:
    return lambda dtype: rows


@pytest.fixture(scope="module")
def sample_for(rows: Bundle) -> RowsFor:
    return lambda dtype: rows


@pytest.fixture(scope="module")
def cast_for(rows: Bundle) -> RowsFor:
    return lambda dtype: rows


@pytest.mark.parametrize("count", (1, 333, 40_000))
@pytest.mark.parametrize("cols", (16, 128, 500, 512, 1024))
def test_many_rows(rows: Bundle, cols: int, count: int):
    """As many as make programs take several."""
    rng = np.random.default_rng(cols)
    x, weight = normal(rng, (count, cols), BF16), normal(rng, (cols,), BF16)
    check_softmax(rows, x)
    for op in ("rms_norm", "layer_norm"):
        run_norm(rows, op, x, weight)
        run_norm(
            rows, op, x, weight, normal(rng, (count, cols), BF16), **({"bias": weight} if op == "layer_norm" else {})
        )


@pytest.mark.parametrize("cols", WIDTHS)
def test_float16(rows: Bundle, cols: int):
    rng = np.random.default_rng(cols)
    x, weight = normal(rng, (9, cols), FP16, 3), normal(rng, (cols,), FP16)
    check_softmax(rows, x)
    for op in ("rms_norm", "layer_norm"):
        run_norm(rows, op, x, weight)


def test_a_captured_step_draws_anew(rows: Bundle):
    """What changes from step to step is in device memory: positions make other numbers of the same seeds."""
    rng, device = np.random.default_rng(0), rows.device
    x, given = normal(rng, (16, 32000), FP32), parameters(rng, 16)
    given |= {"top_k": np.full(16, 50, np.int32), "top_p": np.full(16, 0.95, np.float32)}
    logits, arrays = device.array(x), {name: device.array(value) for name, value in given.items()}
    out, stream = device.empty((16,), np.int32), device.stream()
    rows.sample(logits, **arrays, out=out, stream=stream)  # loads the code and makes the workspace
    stream.synchronize()
    with device.capture(stream) as graph:
        rows.sample(logits, **arrays, out=out, stream=stream)
    drawn = []
    for step in range(5):
        given["positions"] = np.full(16, step, np.int32)
        arrays["positions"].copy_from(given["positions"])
        graph.launch(stream)
        stream.synchronize()
        drawn.append(out.numpy())
        assert np.array_equal(drawn[-1], check_sample(rows, x, given))
    assert len({tuple(tokens) for tokens in drawn}) == 5


@pytest.mark.slow
def test_a_matrix_over_2_gib(rows: Bundle):
    """131,073 rows of 16,384 in bfloat16: over 2**31 elements. Its last rows are right."""
    device = rows.device
    x, out = device.empty((131_073, 16_384), BF16), device.empty((131_073, 16_384), BF16)
    last = normal(np.random.default_rng(0), (3, 16_384), BF16)
    x[-3:].copy_from(last)
    x[:1].copy_from(last[:1])
    weight = np.ones(16_384, BF16)
    rows.rms_norm(x, device.array(weight), out=out)
    wanted = rows.rms_norm(last, weight)
    assert np.array_equal(out[-3:].numpy(), wanted) and np.array_equal(out[:1].numpy(), wanted[:1])
    rows.softmax(x, out=out)
    assert np.array_equal(out[-3:].numpy(), rows.softmax(last))
