"""Variants that calls of attention get. Planning needs no device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from aot_bundle.callspec import CallSpec, plan_call
from aot_models.masks import parse_mask
from aot_runtime.call.choosing import Decision
from aot_runtime.call.planner import Planner, op_planner
from aot_runtime.contract.records import Index
from tests.ops.attention.calls import Call, check, launched
from tests.ops.attention.cases import AXES, Case, make_call, valid
from tests.ops.attention.latent import Latent
from tests.ops.attention.latent import make_call as latent_call
from tests.support.kernel_compiling import variants
from tests.support.op_bundles import OpBundles
from tests.support.plans import planned

pytestmark = pytest.mark.on("emulator")


@cache
def index(arch: str) -> Index:
    from tests.support.on_demand import index_of

    return index_of(planned(arch, "attention"))


@cache
def planner(arch: str, op: str) -> Planner:
    return op_planner(index(arch), op)


def decide(arch: str, case: Case, **dims: int) -> Decision:
    """Plan a call like that of a case, with 3 queries and 16 keys unless `dims` says otherwise."""
    what = "tokens" if case.mode == "varlen" else "seqlen"
    extents = dict(zip(("heads", "heads_kv", "head_dim", "head_dim_v"), case.heads + case.head_dims, strict=True))
    extents |= {"batch": case.batch, f"{what}_q": 3, f"{what}_k": 16}
    extents |= {"bias_columns": 16} if case.mode == "varlen" and "bias" in case.score else {}
    scalars = parse_mask(case.mask) | {"schedule": case.schedule, "softcap": 1.5 * ("softcap" in case.score)}
    call = CallSpec(
        dims=extents | dims, dtypes={"T": case.dtype},
        given=frozenset(["bias"] * ("bias" in case.score) + ["alibi_slopes"] * ("alibi" in case.score)),
        scalars={name: str(value) for name, value in scalars.items()},
        innermost={} if case.v_rows else {"v": 0 if case.mode == "varlen" else 2},
    )  # fmt: skip
    return plan_call(index(arch), planner(arch, case.op), call, 304)


@pytest.mark.parametrize("arch", ("gfx942", "gfx1100", "sm_90"))
def test_every_combination_is_built(arch: str):
    masks, scores = ("0", "b", "t:7,3", "g:12,-4"), ("plain", "bias", "alibi softcap")
    for mask, dims, score, mode, v_rows, schedule in itertools.product(
        masks, AXES["head_dims"], scores, AXES["mode"], (True, False), ("auto", "persistent")
    ):
        case = Case(mask, dims, score, mode=mode, v_rows=v_rows, schedule=schedule)
        if valid(case):
            (launch,) = decide(arch, case).launches
            assert launch.variant.axis_values["V_ROWS"] == case.v_rows


def test_variants_are_few():
    """On gfx942, what few calls ask for is no axis."""
    assert len(planned("gfx942", "attention").variants) <= 318
    for op in ("flash_attention", "flash_attention_varlen"):
        assert len(variants("gfx942", "attention", op, PLAIN=False)) <= 57
    assert len(planned("gfx942", "attention_quantised").variants) <= 403


@pytest.mark.parametrize(("schedule", "chosen", "changes"), (
    ("auto", "tiles", {}), ("dynamic", "dynamic", {}), ("dynamic", "dynamic", {"seqlen_q": 20, "seqlen_k": 20}),
    ("persistent", "persistent", {}), ("dynamic", "tiles", {"mask": "0"}), ("tiles", "tiles", {}),
    ("dynamic", "tiles", {"mask": "b:40,0"}), ("dynamic", "tiles", {"head_dim": 40}),
    ("persistent", "tiles", {"score": "alibi"}),
))  # fmt: skip
def test_persistent_programs_are_chosen(schedule: str, chosen: str, changes: dict[str, Any]):
    """They are chosen on demand, where they are compiled."""
    dims = {"heads": 80, "heads_kv": 80, "seqlen_q": 1024, "seqlen_k": 1024} | changes
    texts = {"mask": "b", "score": "plain"} | {name: dims.pop(name) for name in ("mask", "score") if name in dims}
    decision = decide("gfx942", Case(schedule=schedule, **texts), **{**dims, "heads_kv": dims["heads"]})
    if decision.launches[0].variant.axis_values["PERSISTENT"]:
        assert chosen == ("dynamic" if decision.names["dynamic"] else "persistent")
    else:
        assert chosen == "tiles"


@pytest.mark.parametrize(("changes", "hopper"), (
    ({}, True), ({"seqlen_q": 1, "seqlen_k": 1}, True), ({"seqlen_k": 0}, False), ({"latent": 256}, False),
    ({"head_dim_v": 64}, False), ({"rope": 48}, False), ({"unaligned": frozenset({"kv"})}, False),
    ({"strides": {"kv": (0, 512, 1)}}, True), ({"strides": {"k_pe": (64 * 70, -64, 1)}}, False),
    ({"strides": {"wkv_b": (528 * 256, 528, 1)}}, True),
))  # fmt: skip
def test_which_latent_attention_has_the_kernel_for_hopper(changes: dict[str, Any], hopper: bool):
    """Calls are aligned, of its dims, with strides and extents that tensor maps can have."""
    dims = {"batch": 2, "heads": 2, "seqlen_q": 40, "seqlen_k": 70, "head_dim": 128, "head_dim_v": 128, "rope": 64,
            "latent": 512}  # fmt: skip
    others = {name: value for name, value in changes.items() if name not in dims}
    call = CallSpec(dims=dims | {n: v for n, v in changes.items() if n in dims}, dtypes={"T": "float16"}, **others)
    (launch,) = plan_call(index("sm_90"), op_planner(index("sm_90"), "mla_prefill"), call, 132).launches
    assert launch.variant.axis_values["HOPPER"] == hopper


DIMS = ((32, 32), (64, 64), (128, 128), (256, 256), (256, 128), (48, 48), (80, 80), (144, 144), (192, 112), (63, 63),
        (100, 127), (200, 200), (64, 512), (63, 511), (512, 512), (300, 511))  # fmt: skip
LATENT_DIMS = ((64, 64, 64, 256), (128, 128, 64, 256), (64, 64, 64, 512), (128, 128, 64, 512), (48, 32, 32, 200),
               (48, 32, 32, 400))  # fmt: skip


def calls() -> Iterator[Call]:
    for mode, dtype, lengths in itertools.product(
        ("batch", "varlen"), ("float16", "bfloat16"), ((33, 83), (100, 83), (600, 83))
    ):
        for dims in DIMS:
            for mask in ("0", "b", "b:30,4"):
                yield make_call(Case(mask, dims, lengths=lengths, mode=mode, dtype=dtype))
            yield make_call(Case("b", dims, lengths=lengths, mode=mode, dtype=dtype, schedule="dynamic"))
            features = "bias alibi softcap"
            yield make_call(Case("b:30,4", dims, features, lengths, mode=mode, dtype=dtype))
            yield make_call(Case("b", dims, features, lengths, mode=mode, dtype=dtype, v_rows=False))
        if mode == "batch":
            for latent, causal in itertools.product(LATENT_DIMS, (False, True)):
                yield latent_call(Latent(latent, lengths, causal=causal, dtype=dtype))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_variant(op_bundles: OpBundles):
    from tests.support.on_demand import key_of

    bundle = op_bundles.with_vectors("attention")
    seen: set[tuple[Any, ...]] = set()
    for call in calls():
        needed = {key_of(variant) for variant in launched(bundle, call)}
        if needed - seen:
            check(bundle, call)
            seen |= needed
    assert seen == {key_of(variant) for variant in bundle.index.variants}
