"""Decoding on Hopper: which calls its kernel takes, how keys are divided, and what only its loads could get wrong."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray
from aot_runtime.caches import quantise_int4
from aot_runtime.call.callspec import CallSpec, plan_call
from aot_runtime.call.decision import Decision
from aot_runtime.call.planner import op_planner
from aot_runtime.contract.records import Index
from tests.ops.decode.cases import check, normal, paged
from tests.support.dtypes import BF16, FP16
from tests.support.kernel_compiling import planned

CUS = 132
DIMS = {"batch": 4, "heads": 8, "heads_kv": 1, "head_dim": 128}
CALLS = {
    "flash_decode": CallSpec(dims=DIMS | {"seqlen_q": 1, "seqlen_k": 4096}, dtypes={"T": "float16", "C": "float16"}),
    "flash_decode_int4": CallSpec(
        dims=DIMS | {"seqlen_q": 1, "seqlen_k": 4096, "groups": 1}, dtypes={"T": "bfloat16"}
    ),
    "paged_attention": CallSpec(
        dims=DIMS | {"tokens": 4, "blocks": 1024, "block_size": 16, "blocks_per_sequence": 256},
        dtypes={"T": "float16", "C": "float16"},
    ),
    "paged_attention_int4": CallSpec(
        dims=DIMS | {"tokens": 4, "blocks": 1024, "block_size": 16, "blocks_per_sequence": 256, "groups": 1},
        dtypes={"T": "float16"},
    ),
}  # fmt: skip
"""One of each op that the kernel takes."""


@cache
def index() -> Index:
    from tests.support.on_demand import index_of

    return index_of(planned("sm_90", "decode"))


def decide(op: str, **changes: Any) -> Decision:
    """What the call of an op does with other fields, and other dims."""
    dims = CALLS[op].dims | changes.pop("dims", {})
    return plan_call(index(), op_planner(index(), op), replace(CALLS[op], dims=dims, **changes), CUS)


def taken(decision: Decision) -> bool:
    """Whether the kernel for Hopper takes a call."""
    return decision.launches[0].variant.axis_values["HOPPER"]


@pytest.mark.slow
@pytest.mark.on("emulator")
@pytest.mark.parametrize("op", CALLS)
def test_who_takes_a_call(op: str):
    size = "block_size" if op.startswith("paged") else "seqlen_k"
    others: list[dict[str, Any]] = [{"unaligned": frozenset("k")}, {"dims": {"head_dim": 96, "groups": 1}}]
    others += [{"dims": {"head_dim": 256}}]
    if size == "block_size":
        others += [{"dims": {"block_size": 17}}, {"dims": {"block_size": 8}}]
    else:
        others += [{"strides": {"v": (1 << 40, 64, 1 << 30, 1)}}]
    if op.endswith("int4"):
        others += [{"dims": {"groups": 2}}, {"dims": {"head_dim": 64}}]
    else:
        others += [{"dtypes": {"T": "float16", "C": "int8"}, "given": frozenset({"k_scale", "v_scale"})}]
    assert taken(decide(op))
    for changes in others:
        changes["dims"] = {name: x for name, x in changes.get("dims", {}).items() if name in CALLS[op].dims}
        assert not taken(decide(op, **changes)), changes


@pytest.mark.slow
@pytest.mark.on("emulator")
def test_parts_fill_two_programs_a_multiprocessor_evenly():
    """66 parts for each of four key heads would be 7.8 tiles of 128 keys each, of which the last has 0."""
    decision = decide("flash_decode", dims={"seqlen_k": 32768})
    assert [launch.grid for launch in decision.launches] == [(64, 1, 4), (1, 8, 4)]


def at_odd_halves(bundle: Bundle, host: np.ndarray) -> DeviceArray:
    """`host` on the device, float16, at an address that is no multiple of 4."""
    flat = bundle.device.array(np.concatenate([np.zeros(1, FP16), host.ravel()]))
    return flat[1:].reshape(*host.shape)


@pytest.mark.on("gpu")
@pytest.mark.parametrize("groups, head_dim", ((1, 128), (2, 64), (8, 128)))
def test_pairs_need_no_alignment(decode: Bundle, groups: int, head_dim: int):
    rng = np.random.default_rng(groups)
    k, k_scale, v, v_scale = (x for _ in "kv" for x in quantise_int4(normal(rng, 2, 2, 300, head_dim), groups))
    inputs = {"q": normal(rng, 2, 8, 1, head_dim), "k": k, "v": v, "k_scale": k_scale, "v_scale": v_scale}
    inputs["seqlens_k"] = np.array([33, 300], np.int32)
    check(decode, "flash_decode_int4", inputs, {"k_scale": at_odd_halves, "v_scale": at_odd_halves}, num_splits=2)


@pytest.mark.on("gpu")
@pytest.mark.parametrize("scale", (1e-30, 1e30, 0.0))
def test_queries_of_any_magnitude_meet_4_bits(decode: Bundle, scale: float):
    """bfloat16 queries become float16 there, each row in units of its own."""
    rng = np.random.default_rng(1)
    k, k_scale, v, v_scale = (x for _ in "kv" for x in quantise_int4(normal(rng, 1, 1, 200, 128), 1))
    q = (rng.standard_normal((1, 8, 1, 128)) * scale).astype(BF16)
    inputs = {"q": q, "k": k, "v": v, "k_scale": k_scale, "v_scale": v_scale, "seqlens_k": np.array([200], np.int32)}
    check(decode, "flash_decode_int4", inputs, scale=0.1 / scale if scale else 1.0)


@pytest.mark.on("gpu")
@pytest.mark.parametrize("heads", ((8, 1), (12, 1), (40, 1), (6, 3)), ids=str)
@pytest.mark.parametrize("block_size", (16, 48, 64))
def test_pieces_of_blocks(decode: Bundle, block_size: int, heads: tuple[int, int]):
    """Tiles of keys span blocks, and sequences end anywhere within one; the same bits each time."""
    case = paged([(1, keys) for keys in (1, 15, 16, 17, 47, 64, 65, 127, 128, 129, 700)], block_size, heads, 128)
    for _ in range(2):
        check(decode, "paged_attention", vars(case), num_splits=3, window=300, **case.longest)
