"""Variants that calls of decoding get: rare features are built by default."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from aot_bundle.callspec import CallSpec, plan_call
from aot_runtime import Bundle
from aot_runtime.call.planner import op_planner
from aot_runtime.contract.names import Scope
from aot_runtime.contract.records import Index, Op
from tests.ops.decode.cases import check_paged, paged
from tests.support.plans import planned

pytestmark = pytest.mark.on("emulator")

EXTENTS = {
    "head_dim": (64, 128, 256, 48, 96, 40), "groups": (1, 2, 4, 8), "block_size": (64, 16), "heads": (64,),
    "row_dim": (320, 576, 176, 72), "seqlen_k": (300,), "blocks_per_sequence": (9,), "leads": (41,), "angles": (8,),
    "latent": (512, 256), "rope": (64,), "words": (64,),
}  # fmt: skip
"""Extents of dims; others are 2."""
SCALARS = {"num_splits": ("1", "2"), "max_seqlen_q": ("40",), "width": ("7",)}
SCALES = frozenset({"k_scale", "v_scale", "scale", "cache_scale"})
"""Optional tensors that come with caches of 8 bits."""
CACHES = {"": frozenset(), **dict.fromkeys(("int8", "float8_e4m3fnuz", "float8_e5m2fnuz"), SCALES)}
"""Other dtypes of caches than that of the queries, and the tensors that come with them."""


def calls(op: Op) -> Iterator[CallSpec]:
    """Draw combinations of dtypes, extents, optional tensors, parts and alignments that the contract allows."""
    ranges = {dim: EXTENTS.get(dim, (2,)) for dim in Scope.of(op).dims}
    if "groups" in ranges:
        ranges["head_dim"] = (64, 256, 96, 80)
    ranges |= {scalar.name: SCALARS[scalar.name] for scalar in op.scalars if scalar.name in SCALARS}
    optional = {tensor.name for tensor in op.tensors if tensor.optional}
    required = {scalar.name: "1" for scalar in op.scalars if not scalar.default and scalar.name not in ranges}
    queries = op.tensors[0].name
    for dtype, (cache, scales), unaligned in product(("float16", "bfloat16"), CACHES.items(), ((), (queries,))):
        dtypes = {name: kind for name, kind in (("T", dtype), ("C", cache or dtype)) if name in op.dtypes}
        if "F" in op.dtypes:
            dtypes = {"Q": cache or dtype, "F": "float8_e4m3fnuz", "O": dtype if cache else "float8_e4m3fnuz"}
            dtypes = {name: kind for name, kind in dtypes.items() if name in op.dtypes}
        if any(dtypes[name] not in op.dtypes[name] for name in dtypes):
            continue
        for values in product(*ranges.values()):
            extents = dict(zip(ranges, values, strict=True))
            if "head_dim_v" in extents:
                extents["head_dim_v"] = extents["head_dim"]
            if "pack" in extents:
                extents["pack"] = 16 if cache else 8
                if extents["head_dim"] % extents["pack"]:
                    continue
            scalars = {name: extents.pop(name) for name in SCALARS if name in extents} | required
            for rest in ({}, optional - SCALES):
                given = frozenset({*rest, *(scales & optional if "C" in op.dtypes else ())})
                yield CallSpec(
                    dims=extents, dtypes=dtypes, given=given, scalars=scalars, unaligned=frozenset(unaligned)
                )


def has_code_of_its_own(op: Op, call: CallSpec) -> bool:
    """Tell whether packed arguments at multiples of 16 bytes have variants that rely on that."""
    head_dim, groups = call.dims.get("head_dim", call.dims.get("row_dim", 0)), call.dims.get("groups", 0)
    writes, e5m2 = op.name.startswith("append"), call.dtypes.get("C") == "float8_e5m2fnuz"
    if e5m2 and (writes or op.name == "paged_attention_rotated"):
        return False
    if op.name == "paged_attention_masked" and "cos" in call.given:
        return False
    if groups and not writes:
        return head_dim % 32 == 0 and head_dim % (8 * groups) == 0
    if groups or e5m2:
        return head_dim in (64, 128, 256)
    halves = call.dtypes.get("C", call.dtypes.get("T")) in ("float16", "bfloat16")
    return head_dim % (8 if halves and "head_dim" in call.dims else 16) == 0


def test_every_call_has_code_of_its_alignment(decode: Bundle):
    """Code for aligned calls does not load single elements."""
    for op in decode.index.ops:
        planner, count = op_planner(decode.index, op.name), 0
        for call in calls(op):
            decision = plan_call(decode.index, planner, call, 304)
            aligned = not call.unaligned and has_code_of_its_own(op, call)
            assert [launch.variant.aligned for launch in decision.launches] == [aligned] * len(decision.launches), call
            in_parts = "num_splits" in call.scalars and (call.scalars["num_splits"] == "2" or not aligned)
            assert any(size for _, size, _ in decision.workspaces) == in_parts
            count += 1
        assert count >= 24, op.name


def test_large_caches_take_the_aligned_code(decode: Bundle):
    """For caches of 40 GB the code has 16-byte loads and 64-bit strides."""
    dims = {"blocks": 600_000, "block_size": 64, "heads_kv": 8, "head_dim": 64, "head_dim_v": 64, "tokens": 4,
            "heads": 16, "batch": 4, "blocks_per_sequence": 99}  # fmt: skip
    call = CallSpec(dims=dims, dtypes={"T": "float16", "C": "float16"}, scalars={"return_lse": "true"})
    decision = plan_call(decode.index, op_planner(decode.index, "paged_attention"), call, 304)
    variant = decision.launches[0].variant
    assert variant.aligned and not decision.misaligned
    types = {item.name: item.type for item in variant.kernargs}
    assert types["k.stride_batch"] == "i64" and types["q.stride_heads"] == "i32"


@functools.cache
def latent_for_hopper() -> Index:
    plan = planned("sm_90", "decode", "op=mla_decode")
    from tests.support.on_demand import index_of

    return index_of(plan)


@pytest.mark.parametrize(("changes", "hopper"), (
    ({}, True), ({"block_size": 8192, "blocks": 600_000, "blocks_per_sequence": 4}, True),
    ({"block_size": 16, "blocks_per_sequence": 1600}, True), ({"block_size": 72}, False), ({"row_dim": 320}, False),
    ({"row_dim": 560, "scalars": {"scale": "1", "rope": "48"}}, False), ({"unaligned": frozenset({"q"})}, False),
    ({"unaligned": frozenset({"cache"})}, False), ({"strides": {"cache": (0, 576, 1)}}, True),
    ({"strides": {"cache": (64 * 576, -576, 1)}}, False), ({"strides": {"cache": (64 * 640, 640, 1)}}, True),
))  # fmt: skip
def test_which_latent_vectors_have_the_kernel_for_hopper(changes: dict[str, Any], hopper: bool):
    """It serves aligned vectors of its dims, in blocks of whole tiles, with strides that tensor maps can have."""
    index = latent_for_hopper()
    dims = {"tokens": 2, "heads": 16, "row_dim": 576, "blocks": 9, "block_size": 64, "batch": 2,
            "blocks_per_sequence": 400}  # fmt: skip
    others = {"scalars": {"scale": "1"}} | {name: value for name, value in changes.items() if name not in dims}
    call = CallSpec(
        dims=dims | {n: v for n, v in changes.items() if n in dims}, dtypes={"T": "float16", "C": "float16"}, **others
    )
    decision = plan_call(index, op_planner(index, "mla_decode"), call, 132)
    assert decision.launches[0].variant.axis_values["HOPPER"] == hopper
    if hopper:
        assert decision.launches[0].grid == (66, 2, 1), "a program for each of 132 multiprocessors"


def test_aligned_code_loads_16_bytes_at_a_time(decode: Bundle):
    check_paged(decode, paged([(1, 100)], 64), num_splits=1)
    mnemonics = decode.device.driver.last.summary.mnemonics
    loads = {name: count for name, count in mnemonics.items() if name.startswith("global_load")}
    assert loads["global_load_dwordx4"] > 8 and not loads.keys() & {"global_load_ushort", "global_load_short_d16"}
