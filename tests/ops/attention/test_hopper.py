"""Which calls of float8 get the kernel of Hopper, and what is special about it: it transposes values itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle
from aot_runtime.call.callspec import CallSpec, plan_call
from aot_runtime.call.planner import op_planner
from aot_runtime.contract.records import Index
from tests.ops.attention.calls import run
from tests.ops.attention.quantised import Quantised, make_call
from tests.support.kernel_compiling import planned

DENSE = {"batch": 2, "heads": 4, "heads_kv": 2, "seqlen_q": 65, "seqlen_k": 80, "head_dim": 128}
VARLEN = {"batch": 2, "heads": 4, "heads_kv": 2, "tokens_q": 65, "tokens_k": 80, "head_dim": 128}


@cache
def index() -> Index:
    from tests.support.on_demand import index_of

    return index_of(planned("sm_90", "attention_quantised"))


def gets_it(dims: dict[str, int], dtype: str = "float8_e4m3fn", **call: Any) -> bool:
    """Whether a call on Hopper gets its kernel, of arrays that are as aligned as their extents allow."""
    spec = CallSpec(
        dims=dims, dtypes={"F": dtype, "O": "float16"}, given=frozenset(call.pop("given", ())),
        innermost=call.pop("innermost", {}), scalars={name: str(value) for name, value in call.items()},
    )  # fmt: skip
    op = "flash_attention_fp8_varlen" if "tokens_q" in dims else "flash_attention_fp8"
    (launch,) = plan_call(index(), op_planner(index(), op), spec, 132).launches
    return bool(launch.variant.axis_values["HOPPER"])


@pytest.mark.on("emulator")
@pytest.mark.parametrize(("hopper", "dims", "call"), (
    (True, DENSE, {}), (True, DENSE, {"causal": True, "window_left": 9}), (True, DENSE, {"innermost": {"v": 2}}),
    (True, VARLEN, {"causal": True}), (True, DENSE | {"seqlen_k": 83}, {}),
    (False, DENSE, {"softcap": 2}), (False, DENSE, {"given": ["bias"]}), (False, DENSE, {"given": ["alibi_slopes"]}),
    (False, DENSE, {"dtype": "float8_e5m2"}), (False, DENSE | {"seqlen_q": 64}, {}),
    (False, DENSE | {"seqlen_k": 0}, {}),
    (False, DENSE | {"head_dim": 80}, {}),
    (False, DENSE | {"seqlen_k": 83}, {"innermost": {"v": 2}}),
    (False, VARLEN, {"innermost": {"v": 0}}), (False, VARLEN, {"softcap": 2}), (False, VARLEN | {"tokens_k": 0}, {}),
))  # fmt: skip
def test_which_calls_get_it(hopper: bool, dims: dict[str, int], call: dict[str, Any]):
    """Aligned ones of e4m3 without features, of more than 64 queries and some keys; no others."""
    assert gets_it(dims, **call) is hopper


@pytest.mark.on("gpu")
@pytest.mark.parametrize("v_rows", (True, False))
@pytest.mark.parametrize("head_dim", (64, 128, 256))
def test_keys_and_values_stay_together(attention_quantised: Bundle, head_dim: int, v_rows: bool):
    """Each query sees one key: its own, in another order. Each result is that key's value, bit for bit."""
    case = Quantised("fp8", "0", head_dim, (512, 512), (1, 1), v_rows=v_rows, return_lse=False)
    rng = np.random.default_rng(3)
    chosen = rng.permutation(512)
    signs = rng.choice((-1.0, 1.0), (1, 1, 512, head_dim))
    values = rng.choice((-1.0, -0.5, 0.25, 1.0), (2, 1, 512, head_dim))
    k = np.repeat(signs, 2, 0)
    call = make_call(attention_quantised, case, (64 * k[:, :, chosen], k, values))
    out = run(attention_quantised, replace(call, scalars=call.scalars | {"scale": 1.0}))["out"]
    np.testing.assert_array_equal(out.astype(np.float32), values[:, :, chosen])


@pytest.mark.on("gpu")
def test_a_sequence_takes_nothing_of_the_next_one(attention_quantised: Bundle):
    """Whose values are NaN, and lie where a block of keys of the first one ends."""
    call = make_call(attention_quantised, Quantised("fp8", "0", 128, (200, 150), mode="varlen", return_lse=False))
    _, first, *_, last = call.inputs["cu_seqlens_k"]
    call.inputs["v"].values[first:last] = np.nan
    out = run(attention_quantised, call)["out"]
    starts = call.inputs["cu_seqlens_q"]
    assert np.isfinite(out[starts[0] : starts[1]]).all() and np.isnan(out[starts[-2] : starts[-1]]).all()


@pytest.mark.on("gpu")
def test_the_same_bits_each_time(attention_quantised: Bundle):
    call = make_call(attention_quantised, Quantised("fp8", "b", 128, (1500, 1500), (16, 4)))
    results = [run(attention_quantised, call) for _ in range(5)]
    for other in results[1:]:
        for name, bits in (("out", np.uint16), ("lse", np.uint32)):
            np.testing.assert_array_equal(other[name].view(bits), results[0][name].view(bits))
