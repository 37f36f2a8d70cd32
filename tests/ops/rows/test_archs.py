"""Row-wise code for the other architectures that the emulator has, and what all code of gfx942 keeps to."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="the emulator needs the extra `emulator`")

from tests.ops.rows import test_processing, test_qk_norm, test_verify
from tests.ops.rows.checking import CALLS, check, given
from tests.support.dtypes import BF16, FP16, FP32
from tests.support.emulation.bundling import built, on_demand

pytestmark = [pytest.mark.on("emulator"), pytest.mark.sampled(1)]


ARCHS = ("gfx1201", "gfx90a", "gfx950", "gfx1100")


@pytest.mark.parametrize("op, vectors", CALLS)
@pytest.mark.parametrize("cols", (33, 256, 1000, 4096, 20000))
@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
@pytest.mark.parametrize("arch", ARCHS)
def test_softmax_and_norms(arch: str, dtype: np.dtype, cols: int, op: str, vectors: str):
    bundle = on_demand("rows", "op=softmax|rms_norm|layer_norm", arch)
    check(bundle, op, **given(np.random.default_rng(cols), op, vectors, (3, cols), dtype))


@pytest.mark.slow
@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("head_dim, pairs", ((128, 64), (40, 12), (256, 32)))
@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
@pytest.mark.parametrize("arch", ARCHS)
def test_qk_norm_rotary(arch: str, dtype: np.dtype, head_dim: int, pairs: int, interleaved: bool):
    bundle = on_demand("rows", "op=qk_norm_rotary", arch)
    test_qk_norm.check(bundle, test_qk_norm.given(head_dim, pairs, dtype) | {"interleaved": interleaved})


@pytest.mark.slow
@pytest.mark.parametrize("cols", (100, 1024))
@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
@pytest.mark.parametrize("arch", ARCHS)
def test_sampling(arch: str, dtype: np.dtype, cols: int):
    bundle = on_demand("rows", "op=process_logits|count_tokens|token_logprobs|verify_drafts", arch)
    call = test_processing.given(cols, dtype, test_processing.ALL)
    check(bundle, "process_logits", floor=2e-5, **call, softcap=30.0)
    test_processing.test_count_tokens(bundle, True, False, 1000, 5, cols)
    tokens = np.arange(6, dtype=np.int32)
    check(bundle, "token_logprobs", floor=1e-5, shape=(6,), dtype=FP32, logits=call["logits"], tokens=tokens)
    test_verify.check(bundle, test_verify.given(cols, dtype, "draft_probs", *test_verify.LIMITS))


@pytest.mark.slow
def test_nothing_spills(tmp_path_factory: pytest.TempPathFactory):
    for variant in built(tmp_path_factory, "rows").index.variants:
        assert (variant.resources.vgpr_spills, variant.resources.sgpr_spills) == (0, 0), variant
