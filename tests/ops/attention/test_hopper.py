"""Kernels for Hopper: calls that use them, several tiles per program, transposed float8 values, rescaled sums."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aot_bundle.callspec import CallSpec, plan_call
from aot_runtime import Bundle, DeviceArray
from aot_runtime.call.planner import op_planner
from aot_runtime.contract.records import Index, Variant
from tests.ops.attention.calls import Array, check, launched, run
from tests.ops.attention.cases import Case
from tests.ops.attention.cases import make_call as make_case
from tests.ops.attention.quantised import Quantised, make_call
from tests.support.chains import assert_links_wait
from tests.support.kernel_compiling import compile_variant, variants
from tests.support.plans import planned

DENSE = {"batch": 2, "heads": 4, "heads_kv": 2, "seqlen_q": 65, "seqlen_k": 80, "head_dim": 128}
HALF = DENSE | {"head_dim_v": 128}
VARLEN = {"batch": 2, "heads": 4, "heads_kv": 2, "tokens_q": 65, "tokens_k": 80, "head_dim": 128}
HALF_VARLEN = VARLEN | {"head_dim_v": 128}


@cache
def index(manifest: str) -> Index:
    from tests.support.on_demand import index_of

    return index_of(planned("sm_90", manifest))


def launches_of(dims: dict[str, int], dtype: str, **call: Any) -> list[Variant]:
    """Return the variants that a call on Hopper launches, with arrays as aligned as their extents allow."""
    is_float8 = dtype.startswith("float8")
    spec = CallSpec(
        dims=dims, dtypes={"F": dtype, "O": "float16"} if is_float8 else {"T": dtype},
        given=frozenset(call.pop("given", ())), innermost=call.pop("innermost", {}), strides=call.pop("strides", {}),
        unaligned=frozenset(call.pop("unaligned", ())), scalars={name: str(value) for name, value in call.items()},
    )  # fmt: skip
    op = "flash_attention" + "_fp8" * is_float8 + "_varlen" * ("tokens_q" in dims)
    of = index("attention_quantised" if is_float8 else "attention")
    return [launch.variant for launch in plan_call(of, op_planner(of, op), spec, 132).launches]


def gets_it(dims: dict[str, int], dtype: str, **call: Any) -> bool:
    """Tell whether a call on Hopper gets its kernel."""
    (variant,) = launches_of(dims, dtype, **call)
    return bool(variant.axis_values["HOPPER"])


@pytest.mark.on("emulator")
@pytest.mark.parametrize(("hopper", "dims", "call"), (
    (True, DENSE, {}), (True, DENSE, {"causal": True, "window_left": 9}), (True, DENSE, {"innermost": {"v": 2}}),
    (True, VARLEN, {"causal": True}), (True, DENSE | {"seqlen_k": 83}, {}),
    (False, DENSE, {"softcap": 2}), (False, DENSE, {"given": ["bias"]}), (False, DENSE, {"given": ["alibi_slopes"]}),
    (False, DENSE, {"dtype": "float8_e5m2"}), (False, DENSE | {"seqlen_q": 64}, {}),
    (False, DENSE | {"seqlen_k": 0}, {}),
    (True, DENSE | {"head_dim": 80}, {}), (True, DENSE | {"head_dim": 96}, {"causal": True, "window_left": 9}),
    (True, VARLEN | {"head_dim": 208}, {}), (False, DENSE | {"head_dim": 72}, {}),
    (False, DENSE | {"head_dim": 80}, {"innermost": {"v": 2}}),
    (False, DENSE | {"seqlen_k": 83}, {"innermost": {"v": 2}}),
    (False, VARLEN, {"innermost": {"v": 0}}), (False, VARLEN, {"softcap": 2}), (False, VARLEN | {"tokens_k": 0}, {}),
))  # fmt: skip
def test_which_calls_of_float8_get_it(hopper: bool, dims: dict[str, int], call: dict[str, Any]):
    """It gets aligned calls of e4m3 without features, with more than 64 queries and some keys; no others."""
    assert gets_it(dims, **({"dtype": "float8_e4m3fn"} | call)) is hopper


@pytest.mark.on("emulator")
@pytest.mark.parametrize(("hopper", "dims", "call"), (
    (True, HALF, {}), (True, HALF, {"causal": True, "window_left": 9}), (True, HALF | {"seqlen_k": 83}, {}),
    (True, HALF | {"head_dim": 256}, {"window_left": 9}), (True, HALF, {"softcap": 2, "given": ["alibi_slopes"]}),
    (True, HALF | {"head_dim": 80}, {"softcap": 2}), (True, HALF_VARLEN, {"softcap": 2}), (True, HALF_VARLEN, {}),
    (True, HALF, {"strides": {"k": (10240, 128, 256, 1)}}), (True, HALF, {"given": ["alibi_slopes"]}),
    (True, HALF, {"given": ["bias"]}), (False, HALF | {"seqlen_k": 83}, {"given": ["bias"]}),
    (True, HALF_VARLEN | {"bias_columns": 80}, {"given": ["bias"]}),
    (False, HALF_VARLEN | {"bias_columns": 81}, {"given": ["bias"]}),
    (False, HALF, {"innermost": {"v": 2}}), (False, HALF | {"seqlen_q": 64}, {}),
    (True, HALF | {"head_dim_v": 40}, {}), (False, HALF | {"head_dim_v": 44}, {}),
    (False, HALF, {"dtype": "float32"}), (False, HALF, {"unaligned": ["v"]}),
    (False, HALF | {"seqlen_k": 0}, {}), (False, HALF_VARLEN | {"tokens_k": 0}, {}),
    (True, HALF, {"strides": {"k": (10240, 0, 128, 1)}}), (False, HALF, {"strides": {"k": (20480, 10240, -128, 1)}}),
))  # fmt: skip
def test_which_calls_of_16_bits_get_it(hopper: bool, dims: dict[str, int], call: dict[str, Any]):
    """It gets aligned calls by rows of V, of more than 64 queries, that maps can hold; a bias has an even number of
    columns."""
    assert gets_it(dims, **({"dtype": "bfloat16"} | call)) is hopper


ONE_QUERY = {"batch": 1, "heads": 8, "heads_kv": 2, "seqlen_q": 1, "seqlen_k": 8192, "head_dim": 128, "head_dim_v": 128}


@pytest.mark.on("emulator")
@pytest.mark.parametrize(("dims", "call"), (
    ({}, {}), ({}, {"softcap": 30}), ({"head_dim": 80, "head_dim_v": 80}, {"softcap": 30}),
    ({"head_dim": 256, "head_dim_v": 256, "seqlen_q": 20}, {"causal": True, "given": ["alibi_slopes"]}),
), ids=str)  # fmt: skip
def test_keys_of_few_queries_are_split_with_features_too(dims: dict[str, int], call: dict[str, Any]):
    split, _ = launches_of(ONE_QUERY | dims, "float16", **call)
    assert split.axis_values["SPLIT"]


@pytest.mark.on("emulator")
@pytest.mark.parametrize(
    "call", ({"given": ["bias"]}, {"given": ["sinks"]}, {"softcap": 30, "window_left": 9}), ids=str
)
def test_keys_of_few_queries_are_not_split_with_other_features(call: dict[str, Any]):
    (variant,) = launches_of(ONE_QUERY, "float16", **call)
    assert not variant.axis_values["SPLIT"]


@pytest.mark.slow
@pytest.mark.on("emulator")
@pytest.mark.parametrize("head_dim", (64, 128))
def test_soft_caps_and_slopes_take_few_operations(head_dim: int):
    """The polynomial for scores far below the cap has four operations and no special function."""
    point = {"HEAD_DIM": head_dim, "T": "float16", "PLAIN": False, "V_ROWS": True, "HOPPER": True}
    (variant,) = variants("sm_90", "attention", "flash_attention", **point)
    ptx = compile_variant(variant).asm["ptx"]
    blocks = 2 * 2  # of two warpgroups: the first one, and those of the loop
    assert ptx.count("bra large") == blocks
    near, middle, *_ = ptx.split("@some bra middle;")[1].split("bra.uni done;")
    assert near.count("fma.rn.f32") == 2 * 64 and near.count("mul.f32") == 2 * 64 + 4 and "ex2" not in near
    assert middle.count("fma.rn.f32") == 4 * 64 and "ex2" not in middle


@pytest.mark.slow
@pytest.mark.on("emulator")
def test_values_are_transposed_by_loads_and_stores_of_matrices():
    """Probabilities pass from one product to the other in registers, with no exchange between lanes."""
    point = {"HEAD_DIM": 128, "O": "float16", "V_ROWS": True, "BOUND_RIGHT": False, "HOPPER": True}
    (variant,) = variants("sm_90", "attention_quantised", "flash_attention_fp8", **point)
    ptx = compile_variant(variant).asm["ptx"]
    moved = 128 * 128 // (4 * 32 * 16)  # bytes of a block by those of four warps' instructions
    for instruction in ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "stmatrix.sync.aligned.m8n8.x4.shared.b16"):
        assert ptx.count(instruction) >= moved
    assert "m64n128k32.f32.e4m3.e4m3" in ptx and "cvt.rn.satfinite.e4m3x2.f32" in ptx and "0x1c1f" not in ptx


MANY = {"heads": (12, 4), "batch": 4}
TILES = (
    Case("0", lengths=(300, 200), **MANY), Case("b", lengths=(420, 400), layout="bshd", **MANY),
    Case("0", lengths=(2100, 130), dtype="bfloat16"), Case("0", (128, 128), lengths=(260, 300), **MANY),
    Case("b", (128, 128), lengths=(300, 290), scale=-0.7, **MANY), Case("t:7,3", lengths=(400, 300), **MANY),
    Case("b:200,4", (128, 128), lengths=(330, 350), **MANY), Case("b", (256, 256), lengths=(290, 330), **MANY),
    Case("0", (192, 128), lengths=(270, 90), **MANY), Case("b", (96, 32), lengths=(300, 260), layout="bshd", **MANY),
    Case("b", lengths=(300, 60), scale=0.0, **MANY), Case("b:99,-1", (256, 256), "softcap", (300, 420), **MANY),
    Case("b", (40, 40), lengths=(300, 333), **MANY), Case("0", (72, 104), lengths=(270, 190), **MANY),
    Case("b", (128, 128), "alibi", (300, 333), **MANY), Case("0", (80, 80), "alibi softcap", (300, 150), **MANY),
    Case("b:30,4", (64, 64), "softcap", (400, 390), scale=-1.0, magnitude=4.0, **MANY),
    Case("b", lengths=(400, 300), heads=(24, 4), mode="varlen"),
    Case("0", (128, 128), lengths=(300, 200), mode="varlen"),
    Case("0", (128, 128), "bias", (300, 290), **MANY), Case("b", (64, 64), "bias alibi softcap", (300, 310), **MANY),
    Case("b:99,4", (256, 256), "bias of keys", (270, 230), **MANY),
    Case("b", (128, 128), "bias", (300, 290), heads=(24, 4), mode="varlen", dtype="bfloat16"),
    Case("b", (128, 128), "alibi of batches", (300, 290), heads=(24, 4), mode="varlen", dtype="bfloat16"),
    # Scores far below the cap in all warps, in some of them, and with what is added to them afterwards.
    Case("0", (64, 64), "softcap", (300, 290), scale=0.008, **MANY),
    Case("b", (128, 128), "softcap", (300, 333), scale=0.006, **MANY),
    Case("b", (128, 128), "softcap", (300, 333), scale=-0.014, dtype="bfloat16", **MANY),
    Case("t:90,10", (256, 256), "softcap", (270, 230), scale=0.004, **MANY),
    Case("0", (64, 64), "softcap", (300, 290), scale=0.04, **MANY),
    Case("b", (256, 256), "softcap", (270, 330), scale=-0.018, **MANY),
    Case("b", (80, 80), "bias alibi softcap", (300, 310), scale=0.008, **MANY),
    Case("0", (64, 64), "softcap", (300, 290), scale=0.0, **MANY),
    Case("0", (64, 64), "alibi", (300, 290), scale=0.0, **MANY),
    Case("b", (128, 128), "alibi softcap", (300, 290), heads=(24, 4), mode="varlen", scale=0.006),
    Case("0", (256, 256), "bias", (300, 290), **MANY), Case("0", (96, 96), lengths=(700, 300), **MANY),
)  # fmt: skip
"""Calls with more tiles than multiprocessors, most of them, which on Hopper have its kernel."""


@pytest.mark.on("gpu")
@pytest.mark.parametrize("case", TILES, ids=str)
def test_tiles_one_after_the_other(attention: Bundle, case: Case):
    """A group computes a tile's first scores while it multiplies the last values of the tile before."""
    if attention.device.arch != "sm_90":
        pytest.skip("the kernel is for Hopper")
    call = make_case(case)
    (variant,) = launched(attention, call)
    assert variant.axis_values["HOPPER"]
    check(attention, call)


FEW = (
    Case("b", (128, 128), "softcap", (5, 700), heads=(4, 2)), Case("0", (64, 64), "alibi of batches", (1, 513)),
    Case("b", (40, 40), "alibi softcap", (64, 300), dtype="bfloat16"), Case("0", (256, 256), "softcap", (3, 520)),
    Case("b", (80, 80), "alibi", (20, 600), layout="bshd", scale=-0.3), Case("b", (64, 64), "softcap", (1, 1000)),
)  # fmt: skip


@pytest.mark.on("gpu")
@pytest.mark.parametrize("case", FEW, ids=str)
def test_keys_of_few_queries_with_features(attention: Bundle, case: Case):
    if attention.device.arch != "sm_90":
        pytest.skip("elsewhere they are not split")
    call = make_case(case)
    assert len(launched(attention, call)) == 2
    check(attention, call)


@pytest.mark.on("gpu")
def test_keys_that_batches_share_by_a_stride_of_0(attention: Bundle):
    """Results equal, bit for bit, those of the same keys stored once per batch."""
    rng = np.random.default_rng(5)
    q, k = (rng.standard_normal((batch, 2, 300, 128)).astype(np.float16) for batch in (3, 1))
    device = attention.device
    queries, keys = device.array(q), device.array(k)
    interface = keys.__cuda_array_interface__
    strides = (0, *(2 * step for step in (300 * 128, 128, 1)))
    interface |= {"shape": q.shape, "strides": strides}
    shared = device.wrap(SimpleNamespace(__cuda_array_interface__=interface, owner=keys))
    copied = device.array(np.repeat(k, 3, 0))
    results = [attention.flash_attention(queries, x, x, causal=True).numpy() for x in (shared, copied)]
    np.testing.assert_array_equal(results[0].view(np.uint16), results[1].view(np.uint16))


@pytest.mark.on("gpu")
@pytest.mark.parametrize("v_rows", (True, False))
@pytest.mark.parametrize("head_dim", (64, 128, 256))
def test_keys_and_values_stay_together(attention_quantised: Bundle, head_dim: int, v_rows: bool):
    """Each query sees one key, its own, in another order. Each result is that key's value, bit for bit."""
    case = Quantised("fp8", "0", head_dim, (512, 512), (1, 1), v_rows=v_rows, return_lse=False)
    rng = np.random.default_rng(3)
    chosen = rng.permutation(512)
    signs = rng.choice((-1.0, 1.0), (1, 1, 512, head_dim))
    values = rng.choice((-1.0, -0.5, 0.25, 1.0), (2, 1, 512, head_dim))
    k = np.repeat(signs, 2, 0)
    call = make_call(attention_quantised, case, (64 * k[:, :, chosen], k, values))
    out = run(attention_quantised, replace(call, scalars=call.scalars | {"scale": 1.0}))["out"]
    np.testing.assert_array_equal(out.astype(np.float32), values[:, :, chosen])


FLOAT8 = (
    Quantised("fp8", "0", 128, (300, 333), (8, 2)), Quantised("fp8", "b", 128, (520, 520), (16, 4), layout="bshd"),
    Quantised("fp8", "b", 64, (700, 690), (4, 4), "bfloat16"), Quantised("fp8", "0", 256, (200, 330), (3, 1)),
    Quantised("fp8", "b:99,4", 128, (400, 450), (4, 2), magnitude=4.0), Quantised("fp8", "t:7,3", 64, (300, 200)),
    Quantised("fp8", "b:30,-1", 256, (300, 420), batch_scales=False), Quantised("fp8", "g:12,-4", 128, (200, 190)),
    Quantised("fp8", "b", 128, (600, 60), (2, 1)), Quantised("fp8", "0", 128, (65, 1), magnitude=4.0),
    Quantised("fp8", "0", 128, (130, 2100), (2, 1), magnitude=8.0), Quantised("fp8", "t", 256, (300, 100), (4, 1)),
    Quantised("fp8", "b:99,4", 128, (400, 448), (4, 2), v_rows=False),
    Quantised("fp8", "b", 64, (300, 320), v_rows=False), Quantised("fp8", "0", 256, (140, 96), v_rows=False),
    Quantised("fp8", "b", 128, (400, 300), (8, 2), mode="varlen"),
    Quantised("fp8", "0", 64, (300, 290), (16, 4), mode="varlen"),
    Quantised("fp8", "b:20,5", 256, (200, 300), mode="varlen"),
    Quantised("fp8", "0", 80, (300, 333), (8, 2)), Quantised("fp8", "b", 96, (520, 520), (16, 4), layout="bshd"),
    Quantised("fp8", "b:99,4", 48, (400, 450), (4, 2), "bfloat16"), Quantised("fp8", "t:7,3", 208, (200, 330), (3, 1)),
    Quantised("fp8", "b", 96, (400, 300), (8, 2), mode="varlen"), Quantised("fp8", "0", 32, (300, 200), mode="varlen"),
)  # fmt: skip


@pytest.mark.on("gpu")
@pytest.mark.parametrize("case", FLOAT8, ids=str)
def test_float8_of_every_shape_and_mask(attention_quantised: Bundle, case: Quantised):
    """Results are held to the same reference as those of all other hardware's kernels."""
    if attention_quantised.device.arch != "sm_90":
        pytest.skip("the kernel is for Hopper")
    call = make_call(attention_quantised, case)
    (variant,) = launched(attention_quantised, call)
    assert variant.axis_values["HOPPER"]
    check(attention_quantised, call)


@pytest.mark.on("gpu")
def test_a_sequence_takes_nothing_of_the_next_one(attention_quantised: Bundle):
    """The next one's values are NaN, and lie within the first one's last block of keys."""
    call = make_call(attention_quantised, Quantised("fp8", "0", 128, (200, 150), mode="varlen", return_lse=False))
    _, first, *_, last = call.inputs["cu_seqlens_k"]
    call.inputs["v"].values[first:last] = np.nan
    out = run(attention_quantised, call)["out"]
    starts = call.inputs["cu_seqlens_q"]
    assert np.isfinite(out[starts[0] : starts[1]]).all() and np.isnan(out[starts[-2] : starts[-1]]).all()


def growing(head_dim: int, most: float) -> tuple[Array, Array, Array]:
    """Return q, k and v of 130 queries and 600 keys whose weights fall by e^(most * 128 ** 0.5) from first to last."""
    rng = np.random.default_rng(4)
    worth = np.linspace(most, 0, 600)[:, None] * 128**0.5 / head_dim**0.5
    k = worth + rng.standard_normal((2, 1, 600, head_dim)) / 16
    return np.ones((2, 1, 130, head_dim)), k, rng.standard_normal((2, 1, 600, head_dim))


@pytest.mark.on("gpu")
@pytest.mark.parametrize("most", (6, 0.7, 0.3))
@pytest.mark.parametrize("head_dim", (64, 128))
def test_maxima_that_grow_from_block_to_block(
    attention: Bundle, attention_quantised: Bundle, head_dim: int, most: float
):  # fmt: skip
    """Blocks of keys are walked from the last one, so sums are rescaled again and again; where maxima grow less, only
    some of float8's are."""
    tensors = growing(head_dim, most)
    case = Quantised("fp8", "0", head_dim, (130, 600), (1, 1))
    check(attention_quantised, make_call(attention_quantised, case, tensors))
    call = make_case(Case("0", (head_dim, head_dim), lengths=(130, 600), heads=(1, 1)))
    for name, values in zip("qkv", tensors, strict=True):
        call.inputs[name].values[...] = values
    check(attention, call)


@pytest.mark.on("gpu")
def test_the_same_bits_each_time(attention_quantised: Bundle):
    call = make_call(attention_quantised, Quantised("fp8", "b", 128, (1500, 1500), (16, 4)))
    results = [run(attention_quantised, call) for _ in range(5)]
    for other in results[1:]:
        for name, bits in (("out", np.uint16), ("lse", np.uint32)):
            np.testing.assert_array_equal(other[name].view(bits), results[0][name].view(bits))


@pytest.mark.on("gpu")
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("shape", ((2, 4, 300, 64), (1, 16, 2000, 128), (2, 4, 300, 256)), ids=str)
def test_launches_that_begin_early_wait(attention: Bundle, shape: tuple[int, ...], causal: bool):
    stream, rng = attention.device.stream(), np.random.default_rng(11)
    q, k = (attention.device.array(rng.standard_normal(shape).astype(np.float16)) for _ in range(2))

    def values(x: DeviceArray) -> DeviceArray:
        return attention.flash_attention(q, k, x, causal=causal, stream=stream)

    def keys(x: DeviceArray) -> DeviceArray:
        return attention.flash_attention(q, x, k, causal=causal, stream=stream)

    assert_links_wait(k, [values, keys], stream)
