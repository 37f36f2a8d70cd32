"""The Gluon kernel of attention for CDNA 3: calls that use it, its results, and its code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot_bundle.callspec import CallSpec
from aot_runtime import Bundle
from tests.ops.attention.calls import Call, check, launched
from tests.ops.attention.cases import Case, make_call
from tests.support.kernel_compiling import check_resources, compile_variant, loops, variants

pytestmark = pytest.mark.sampled(4)

CASES = (
    Case("0", (128, 128), lengths=(65, 64)), Case("0", (128, 128), lengths=(130, 1), dtype="bfloat16"),
    Case("0", (128, 128), lengths=(70, 300), layout="bshd", heads=(4, 2)),
    Case("b", (128, 128), lengths=(300, 300), dtype="bfloat16"), Case("b", (128, 128), lengths=(200, 90)),
    Case("b", (128, 128), lengths=(90, 460), layout="packed", dtype="bfloat16"),
    Case("t", (128, 128), lengths=(300, 100)), Case("t:-1,20", (128, 128), lengths=(150, 400), scale=-0.2),
    Case("0", (64, 64), lengths=(65, 129)), Case("0", (64, 64), lengths=(140, 320), heads=(3, 1), dtype="bfloat16"),
    Case("b", (64, 64), lengths=(300, 300)), Case("b", (64, 64), lengths=(200, 90), dtype="bfloat16"),
    Case("b", (64, 64), lengths=(90, 460), layout="bshd", return_lse=False), Case("b", (64, 64), scale=0.0),
    Case("t:-1,-20", (64, 64), lengths=(150, 130), dtype="bfloat16"),
    # Windows; tiles that see nothing; between masked blocks, blocks that all queries see
    Case("b:20,-1", (128, 128), lengths=(300, 300), dtype="bfloat16"), Case("t:90,3", (64, 64), lengths=(400, 150)),
    Case("b:400,30", (128, 128), lengths=(140, 700)), Case("g:12,-4", (64, 64), lengths=(140, 300), dtype="bfloat16"),
    # One behind the other
    Case("0", (128, 128), lengths=(140, 330), mode="varlen"), Case("b", (64, 64), lengths=(200, 130), mode="varlen"),
    Case("b:70,5", (128, 128), lengths=(150, 260), mode="varlen", heads=(4, 2), dtype="bfloat16"),
    Case("t", (64, 64), lengths=(130, 70), mode="varlen", return_lse=False, dtype="bfloat16"),
    # Other head dims
    Case("b", (256, 256), lengths=(150, 300), dtype="bfloat16"), Case("0", (192, 256), lengths=(70, 129)),
    Case("b:70,5", (256, 256), lengths=(140, 260), mode="varlen", heads=(4, 2)), Case("b", (80, 96), lengths=(90, 200)),
    Case("0", (48, 40), lengths=(140, 70), dtype="bfloat16"), Case("t:9,9", (128, 72), lengths=(70, 90), mode="varlen"),
)  # fmt: skip


@pytest.fixture
def on_gfx942(attention: Bundle) -> Bundle:
    if attention.index.target.arch != "gfx942":
        pytest.skip("the kernel is for gfx942")
    return attention


def check_served(bundle: Bundle, call: Call) -> None:
    assert [item.symbol.partition("__")[0] for item in launched(bundle, call)] == ["attention_forward_cdna3"]
    check(bundle, call)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_masks_and_ragged_edges(on_gfx942: Bundle, case: Case):
    check_served(on_gfx942, make_call(case))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", (
    Case("b:100,-1", (64, 64), lengths=(260, 130), dtype="bfloat16"), Case("b", (128, 128), lengths=(90, 50)),
    Case("b", (64, 64), lengths=(150, 200), mode="varlen", scale=-0.2), Case("0", (128, 128), lengths=(70, 65)),
), ids=str)  # fmt: skip
def test_sinks(on_gfx942: Bundle, case: Case):
    """Logits above and below those of keys, and of queries that see nothing else."""
    call = make_call(case)
    check_served(on_gfx942, replace(call, inputs=call.inputs | {"sinks": np.array([9.0, -2.0], np.float32)}))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", (
    Case("b", (128, 128), lengths=(140, 230), magnitude=30.0, scale=-1.0), Case("0", (64, 64), lengths=(70, 200)),
    Case("b:90,2", (64, 64), lengths=(200, 150), mode="varlen", dtype="bfloat16"),
    Case("b", (256, 256), lengths=(130, 200), dtype="bfloat16"),
), ids=str)  # fmt: skip
def test_soft_caps(on_gfx942: Bundle, case: Case):
    check_served(on_gfx942, make_call(replace(case, score="softcap")))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunk", (7, 64, 150))
@pytest.mark.parametrize("case", (
    Case("b", (64, 64), lengths=(140, 300)), Case("t:70,3", (128, 128), lengths=(260, 200), mode="varlen"),
), ids=str)  # fmt: skip
def test_chunks(on_gfx942: Bundle, case: Case, chunk: int):
    call = make_call(case)
    check_served(on_gfx942, replace(call, scalars=call.scalars | {"attention_chunk": chunk}))


@pytest.mark.parametrize("head_dim", (128, 64, 256))
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("mask", ("0", "b"))
def test_maxima_that_grow(on_gfx942: Bundle, mask: str, dtype: str, head_dim: int):
    """Keys become larger towards the last one, and the scores of one query much more than others."""
    call = make_call(Case(mask, (head_dim, head_dim), lengths=(150, 400), dtype=dtype, heads=(1, 1), batch=1))
    q, k = call.inputs["q"].values, call.inputs["k"].values
    q[..., 37, :] *= 4
    k *= np.linspace(0.1, 6, k.shape[-2]).astype(k.dtype)[:, None]
    check_served(on_gfx942, call)


@pytest.mark.on("emulator")
@pytest.mark.parametrize("head_dim", (128, 64, 256))
def test_no_bank_conflicts(on_gfx942: Bundle, head_dim: int):
    from aot_bundle.profile.profile_call import profile_on
    from aot_bundle.profile.profile_report import profile_data

    dims = {"batch": 1, "heads": 1, "heads_kv": 1, "seqlen_q": 70, "seqlen_k": 300}
    call = CallSpec(dims=dims | {"head_dim": head_dim, "head_dim_v": head_dim}, dtypes={"T": "bfloat16"})
    profile = profile_on(on_gfx942.device.driver, on_gfx942, "flash_attention", call)
    (launch,) = profile_data(profile, by_instruction=False)["launches"]
    accesses = [launch["accesses"][f"lds_{action}"] for action in ("load", "store")]
    assert [(access["passes"] > 0, access["conflicts"]) for access in accesses] == [(True, 0)] * 2


@pytest.mark.on("emulator")
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("head_dim", (128, 64, 256))
def test_code(head_dim: int, dtype: str):
    """No vector register is spilled; besides exponentials, the loop has three vector instructions for two scores, and
    where there is a soft-cap, five for two more, of which two are reciprocals."""
    (variant,) = variants(
        "gfx942", "attention", "flash_attention", kernel="attention_forward_cdna3", HEAD_DIM=head_dim, T=dtype
    )
    compiled = compile_variant(variant)
    check_resources(compiled, scalar=head_dim < 256)
    body = min((body for body in loops(compiled, "v_mfma") if "ds_write_b128" in body), key=len)
    products = sum(name.startswith("v_mfma") for name in body)
    assert products == head_dim // 2
    assert sum(name == "ds_read_b128" for name in body) == products // 2
    assert [sum(name.startswith(start) for name in body) for start in ("v_exp", "v_rcp")] == [64, 32]
    vector = [name for name in body if name.startswith("v_") and not name.startswith(("v_mfma", "v_exp"))]
    assert len(vector) <= {64: 165, 128: 175, 256: 260}[head_dim]
