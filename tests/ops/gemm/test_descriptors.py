"""Matrix products whose operands are loaded by tensor descriptors, which become pointers on AMD's GPUs."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="the emulator needs the extra `emulator`")
pytest.importorskip("triton", reason="building bundles needs the extra `build`")

from aot.tune.candidates import SCALAR
from aot_runtime import Bundle
from tests.ops.gemm.checking import check, matrix
from tests.support.candidates import candidates_bundle
from tests.support.choices import configs
from tests.support.dtypes import FP16

pytestmark = [pytest.mark.on("emulator"), pytest.mark.sampled(1)]

SPACE = """\
op: matmul
groups:
  - name: descriptors
    launch: matmul
    when: aligned and EPILOGUE == 'none'
    candidates:
      - {blocks: {DESCRIPTORS: true, PERSISTENT: [false, true], BLOCK_M: 32, BLOCK_N: [32, 64], BLOCK_K: 32,
           GROUP_M: 2}, options: {num_warps: 4, num_stages: 2}}
"""
FILTER = "op=matmul,T=float16,A_ROWS=true,EPILOGUE=none,SPLIT=false,STREAM=false,MULTIPLY=false"


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Return the candidates of a space."""
    return candidates_bundle(tmp_path_factory, "gemm", "matmul", SPACE, FILTER)


@pytest.mark.parametrize("m, n, k", ((33, 80, 112), (200, 16, 16)))
@pytest.mark.parametrize("b_columns", (False, True))
@pytest.mark.parametrize("candidate", (4, 1, 2, 3))
def test_descriptors(candidates: Bundle, candidate: int, b_columns: bool, m: int, n: int, k: int):
    rng, options = np.random.default_rng(m), {SCALAR: candidate, "schedule": "persistent"}
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16, b_columns)
    check(candidates, "matmul", FP16, options, a=a, b=b)
    placed = candidates.device.array(a), candidates.device.array(b)
    assert configs(candidates, "matmul", *placed, **options) == [f"candidate{candidate}"]
