"""A tensor that is too large for the emulator."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from tests.ops.rows.checking import normal
from tests.support.dtypes import BF16

pytestmark = pytest.mark.on("gpu")


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
