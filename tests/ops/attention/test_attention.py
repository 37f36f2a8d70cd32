"""The attention ops against the fp64 references: every feature with every other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.attention import reference
from kernels.tolerance import assert_close
from tests.ops.attention.calls import FLOORS, Array, Call, Placed, check, expected, launched, packed, placed, run
from tests.ops.attention.cases import (
    EDGES,
    FEW,
    LARGE,
    PACKED,
    SCHEDULES,
    SINGLE,
    WIDE,
    Case,
    make_call,
    pairwise,
    rows_first,
)
from tests.ops.attention.latent import CASES as LATENT
from tests.ops.attention.latent import LONG, Latent
from tests.ops.attention.latent import make_call as latent_call
from tests.ops.attention.quantised import CASES as QUANTISED
from tests.ops.attention.quantised import FEATURES, Quantised
from tests.ops.attention.quantised import make_call as quantised_call
from tests.support.choices import with_few_units


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", pairwise(), ids=str)
def test_every_two_features(attention: Bundle, case: Case):
    check(attention, make_call(case))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", EDGES, ids=str)
def test_ends_of_what_is_allowed(attention: Bundle, case: Case):
    check(attention, make_call(case))


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("case", "is_packed"), [*((c, False) for c in FEW), *((c, True) for c in PACKED)], ids=str)
def test_keys_of_few_queries_are_split(attention: Bundle, case: Case, is_packed: bool):
    call = packed(make_call(case)) if is_packed else make_call(case)
    assert [item.symbol.partition("__")[0] for item in launched(attention, call)] == ["decode_split", "merge_parts"]
    check(attention, call)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(12))
def test_chunks(attention: Bundle, seed: int):
    rng = np.random.default_rng(seed)
    masks, scores, dims = (
        ("0", "b", "t", "b:20,-1", "t:7,3"),
        ("plain", "alibi of batches"),
        ((64, 64), (128, 128), (40, 40)),
    )
    lengths = ((70, 100), (90, 50), (130, 64), (33, 150))
    case = Case(
        str(rng.choice(masks)), dims[rng.integers(3)], str(rng.choice(scores)), lengths[rng.integers(4)],
        mode=str(rng.choice(("batch", "varlen"))),
    )  # fmt: skip
    call = make_call(case)
    chunk = int(rng.choice((1, 7, 32, 64, 100, 2**31 - 1)))
    check(attention, replace(call, scalars=call.scalars | {"attention_chunk": chunk}))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ("batch", "varlen"))
@pytest.mark.parametrize("mask, score", (("b", "plain"), ("b:20,-1", "alibi of batches"), ("0", "bias")))
def test_sinks(attention: Bundle, mask: str, score: str, mode: str):
    """With more queries than keys, some see nothing but the sink."""
    call = make_call(Case(mask, lengths=(90, 50), score=score, mode=mode))
    check(attention, replace(call, inputs=call.inputs | {"sinks": np.array([3.0, -2.0], np.float32)}))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", WIDE, ids=str)
def test_large_head_dims(attention: Bundle, case: Case):
    check(attention, make_call(case))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_head_dims_over_256(attention: Bundle, case: Case):
    check(attention, make_call(case))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", SINGLE, ids=str)
def test_float32(attention: Bundle, case: Case):
    check(attention, make_call(case))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", SCHEDULES, ids=lambda case: f"{case.schedule} {case.mode} {case.lengths}")
def test_persistent_programs_do_every_tile_once(attention: Bundle, case: Case):
    check(attention, make_call(case))


def test_the_counter_of_tiles_is_zeroed_for_each_call(attention: Bundle):
    """Two calls on one stream share its memory, and the first leaves the counter past all tiles."""
    call = make_call(replace(SCHEDULES[-1], lengths=(20, 30)))
    check(attention, call)
    check(attention, call)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", LATENT, ids=str)
def test_latent_attention_matches_both_formulas(attention: Bundle, case: Latent):
    check(attention, latent_call(case))


@pytest.mark.on("gpu")
@pytest.mark.parametrize("case", LONG, ids=str)
def test_latent_attention_of_several_blocks(attention: Bundle, case: Latent):
    check(attention, latent_call(case))


def test_one_row_of_the_values_is_copied_exactly(attention: Bundle):
    """A score that dwarfs the rest selects the row, bit for bit."""
    call = make_call(Case(lengths=(48, 48), heads=(1, 1), scale=1.0))
    q, k, v = (call.inputs[name].values for name in "qkv")
    chosen = np.random.default_rng(1).permutation(48)
    k[...] = np.eye(48, 64)
    q[...] = 200 * k[:, :, chosen]
    results = run(attention, call)
    np.testing.assert_array_equal(results["out"], v[:, :, chosen])
    np.testing.assert_allclose(results["lse"], 200, rtol=1e-6)


@pytest.mark.parametrize(("name", "values"), (
    ("cu_seqlens_q", [0, 80, 40, 43, 200]), ("cu_seqlens_q", [-7, 10, 20, 30, 40]),
    ("cu_seqlens_k", [0, 2**31 - 1, 5, 5, 9]), ("cu_seqlens_k", [500, 600, 700, 800, 900]),
))  # fmt: skip
def test_offsets_on_the_device_are_clamped(attention: Bundle, name: str, values: list[int]):
    """Wrong lengths on the device cause no access outside of the tensors, which strict mode would report."""
    call = make_call(Case("t", lengths=(1, 65), layout="bshd", heads=(3, 1), mode="varlen", v_rows=False))
    there = Placed(np.array(values, np.int32), lambda array: array)
    run(attention, replace(call, inputs=call.inputs | {name: there}))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("queries", (20, 70))  # 70: what is written for Hopper
def test_a_sequence_takes_nothing_of_the_next_one(attention: Bundle, queries: int):
    """The next one's values are NaN, and lie within the first one's last block of keys."""
    call = make_call(Case("0", lengths=(queries, 40), mode="varlen", values=1.0))
    _, first, *_, last = call.inputs["cu_seqlens_k"]
    call.inputs["v"].values[first:last] = np.nan
    out = run(attention, call)["out"]
    starts = call.inputs["cu_seqlens_q"]
    assert np.isnan(out[starts[-2] : starts[-1]]).all()
    np.testing.assert_array_equal(out[starts[0] : starts[1]], 1.0)


PADDED = (
    Case("b", (128, 128), lengths=(200, 300), mode="varlen"),
    Case("b", lengths=(130, 90), mode="varlen", dtype="bfloat16"),
    Case("t:30,10", (33, 33), "bias alibi softcap", (80, 70), mode="varlen"), Case("0", (128, 64), mode="varlen"),
)  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", PADDED, ids=str)
@pytest.mark.parametrize("sides", ("q", "k", "qk"))
def test_rows_that_are_not_used_do_not_count(attention: Bundle, case: Case, sides: str):
    """They are NaN, and out and lse stay as they are there."""
    call = make_call(case)
    for side in sides:
        starts = call.inputs[f"cu_seqlens_{side}"]
        used = np.maximum(np.diff(starts) * 2 // 3, 1) - np.arange(4) % 2
        call.inputs[f"seqused_{side}"] = used.astype(np.int32)
        for first, end, count in zip(starts, starts[1:], used, strict=False):
            for name in side if side == "q" else "kv":
                call.inputs[name].values[first + count : end] = np.nan
    check(attention, call)


def test_keys_beyond_max_seqlen_k_do_not_count(attention: Bundle):
    """The keys are beyond the bias's columns, in a sequence whose length the host does not see."""
    tensors = make_call(Case(score="bias", lengths=(20, 40), batch=1, return_lse=False))
    own = rows_first({**tensors.inputs, **tensors.outputs})
    bias = Placed(tensors.inputs["bias"].whole, lambda whole: whole[0, :, :, :30])
    inputs = {name: own[name] for name in "qkv"} | {"bias": bias, "cu_seqlens_q": np.array([0, 20], np.int32)}
    short, long = ({"cu_seqlens_k": np.array([0, keys], np.int32)} for keys in (30, 40))
    call = Call("flash_attention_varlen", inputs | short, {"out": own["out"]}, {"max_seqlen_k": 30})
    there = {name: Placed(values, lambda array: array) for name, values in long.items()}
    result = run(attention, replace(call, inputs=inputs | there))["out"]
    same_dtype, exact = expected(call)
    assert_close(result, exact["out"], same_dtype["out"], FLOORS["out"])


# Of 8 bits


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", QUANTISED, ids=str)
def test_quantised_attention(attention_quantised: Bundle, case: Quantised):
    check(attention_quantised, quantised_call(attention_quantised, case))


@pytest.mark.on("emulator", "rocm")
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("case", "config"), (
    (Quantised("int8", lengths=(300, 90)), "long_small"), (Quantised("int8", head_dim=128, lengths=(270, 90)), "long"),
    (Quantised("int8", "b", 128, (150, 170)), "plain"), (Quantised("int8", "b", lengths=(150, 170)), "exact"),
    (Quantised("int8_kv", lengths=(300, 90)), "long_small"),
))  # fmt: skip
def test_large_tiles_of_quantised_attention(
    attention_quantised: Bundle, case: Quantised, config: str, monkeypatch: pytest.MonkeyPatch
):
    with_few_units(attention_quantised, monkeypatch)
    call = quantised_call(attention_quantised, case)
    (variant,) = launched(attention_quantised, call)
    (launch,) = (one for one in attention_quantised[call.op].planner.op.launches if "hopper" not in one.kernel)
    assert launch.configs[variant.config].name == config
    check(attention_quantised, call)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", FEATURES, ids=str)
def test_features_of_quantised_attention(attention_quantised: Bundle, case: Quantised):
    check(attention_quantised, quantised_call(attention_quantised, case))


def test_int8_probabilities_depend_neither_on_blocks_nor_on_their_order(attention_quantised: Bundle):
    """Bit for bit: a call of few queries uses other blocks than one of many."""
    call = quantised_call(attention_quantised, Quantised("int8", int8_p=True, return_lse=False))

    def out_of(queries: int, keys: Array) -> Array:
        order = {"q": np.arange(queries), "k": keys, "v": keys}
        cut = {name: placed(call.inputs[name].values[:, :, rows]) for name, rows in order.items()}
        out = placed(call.outputs["out"].values[:, :, :queries])
        return run(attention_quantised, replace(call, inputs=call.inputs | cut, outputs={"out": out}))["out"]

    whole = out_of(70, np.arange(100))
    np.testing.assert_array_equal(out_of(70, np.random.default_rng(1).permutation(100)), whole)
    np.testing.assert_array_equal(out_of(20, np.arange(100)), whole[:, :, :20])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("case", "bound"), (
    (Quantised("int8"), 2e-2), (Quantised("int8", int8_p=True), 5e-2), (Quantised("int8_kv"), 2e-2),
    (Quantised("fp8"), 0.14),
), ids=str)  # fmt: skip
def test_quantised_attention_stands_for_what_was_quantised(attention_quantised: Bundle, case: Quantised, bound: float):
    """Results stay within 2e-2 of unquantised ones, the bound of perf-kernels' int8, where probabilities keep 11
    bits."""
    rng = np.random.default_rng(0)
    q, (k, v) = rng.standard_normal((2, 2, 70, 64)), rng.standard_normal((2, 2, 1, 100, 64))
    out = run(attention_quantised, quantised_call(attention_quantised, case, (q, k, v)))["out"]
    assert np.abs(out - reference.attention(q, k, v, scale=0.125)).max() <= bound
