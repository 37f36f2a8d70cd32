"""Ways in which the work of a matrix product is dealt to programs."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from aot_runtime import Bundle
from tests.ops.gemm.checking import check, matrix
from tests.support.dtypes import FP16

pytestmark = pytest.mark.sampled(2)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("biased, added", ((False, False), (True, False), (False, True), (True, True)))
@pytest.mark.parametrize("schedule", ("multiply_reduce", "persistent", "stream_k", "tiles", "splits"))
@pytest.mark.parametrize("shape", ((8, 64, 96), (5, 33, 40)), ids=str)
def test_what_each_adds(gemm: Bundle, shape: tuple[int, int, int], schedule: str, biased: bool, added: bool):
    """A bias, an addend, both or neither, where the code asks at run time and where it does not; each time the same."""
    (m, n, k), rng = shape, np.random.default_rng(11)
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16, True)
    bias, d = matrix(rng, (n,), FP16) if biased else None, matrix(rng, (m, n), FP16) if added else None
    how = {"splits": 2} if schedule == "splits" else {"schedule": schedule}
    one, other = (check(gemm, "matmul", FP16, how, a=a, b=b, bias=bias, d=d, alpha=0.5, beta=-2.0) for _ in range(2))
    assert np.array_equal(one.view(np.uint16), other.view(np.uint16))


@pytest.mark.parametrize("cus", (7, 1, 40, 3))
@pytest.mark.parametrize("schedule", ("stream_k", "persistent"))
def test_few_compute_units(gemm: Bundle, schedule: str, cus: int, monkeypatch: pytest.MonkeyPatch):
    """Programs with several tiles, or with a part of a tile, whole tiles, and a part of another."""
    few = msgspec.structs.replace(gemm.device.properties, num_cus=cus)
    monkeypatch.setattr(type(gemm.device), "properties", property(lambda device: few))
    (m, n, k), rng = (256, 256, 192 + 16 * cus), np.random.default_rng(8)  # another shape, as plans are cached
    a, b, bias = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16, True), matrix(rng, (n,), FP16)
    check(gemm, "matmul", FP16, {"schedule": schedule}, a=a, b=b, bias=bias, activation="relu")
    placed = gemm.device.array(a), gemm.device.array(b)
    assert ("PERSISTENT=True" in gemm.explain("matmul", *placed, schedule=schedule)) == (schedule == "persistent")


@pytest.mark.parametrize("n, k", ((64, 256), (48, 80), (256, 16), (32, 1040)), ids=str)
@pytest.mark.parametrize("m", (1, 2, 3, 7, 8))
def test_multiply_reduce(gemm: Bundle, m: int, n: int, k: int):
    rng = np.random.default_rng(m)
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16, True)
    check(gemm, "matmul", FP16, {"schedule": "multiply_reduce"}, a=a, b=b, alpha=0.5, activation="gelu")
