"""Decoding: the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from aot_emulator import EmulatorDriver

from aot_runtime import Bundle
from aot_runtime.call.callspec import CallSpec, plan_call
from aot_runtime.call.planner import op_planner
from aot_runtime.contract.names import Scope
from aot_runtime.contract.records import Op
from tests.ops.decode.cases import BundleFor, paged, run_paged
from tests.ops.decode.decode_suite import *  # noqa: F403 -- its tests
from tests.support.emulation.bundling import built, on_demand

pytestmark = pytest.mark.sampled(5)


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return on_demand(tmp_path_factory, "decode")


@pytest.fixture(scope="module")
def looking(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return on_demand(tmp_path_factory, "decode", "op=paged_attention|flex_decode,T=float16", check_contents=True)


@pytest.fixture(scope="module")
def decode_for(decode: Bundle) -> BundleFor:
    return lambda dtype: decode


@pytest.fixture(scope="module")
def with_vectors(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return built(tmp_path_factory, "decode", "T=float16,C=float16,HEAD_DIM=64,GROUPS=4,LATENT=256")


def test_selftest(with_vectors: Bundle):
    report = with_vectors.selftest()
    assert report.passed, [result for result in report.results if not result.passed]
    assert {result.op for result in report.results} == set(with_vectors.ops)


def test_aligned_code_loads_16_bytes_at_a_time(decode: Bundle):
    run_paged(decode, paged([(1, 100)], 64, head_dim=64), num_splits=1)
    driver = decode.device.driver
    assert isinstance(driver, EmulatorDriver)
    loads = {name: count for name, count in driver.last.summary.mnemonics.items() if name.startswith("global_load")}
    assert loads["global_load_dwordx4"] > 8 and not loads.keys() & {"global_load_ushort", "global_load_short_d16"}


# What is built

EXTENTS = {
    "head_dim": (64, 128, 256, 48, 96, 40), "groups": (1, 2, 4, 8), "block_size": (64, 16), "latent": (256, 512),
    "heads": (64,), "seqlen_k": (300,), "blocks_per_sequence": (9,), "leads": (41,), "pairs": (8,),
}  # fmt: skip
"""Of dims; others are 2."""
SCALARS = {"num_splits": ("1", "2"), "max_seqlen_q": ("40",), "width": ("7",)}
CACHES = {"": (), "int8": ("k_scale", "v_scale"), "float8_e4m3fnuz": ("k_scale", "v_scale")}
"""Other dtypes of caches than that of the queries, and the tensors that come with them."""


def calls(op: Op) -> Iterator[CallSpec]:
    """Combinations of dtypes, extents, optional tensors, parts and alignments that the contract allows."""
    ranges = {dim: EXTENTS.get(dim, (2,)) for dim in Scope.of(op).dims}
    if "groups" in ranges:
        ranges["head_dim"] = (64, 128, 256)
    ranges |= {scalar.name: SCALARS[scalar.name] for scalar in op.scalars if scalar.name in SCALARS}
    optional = {tensor.name for tensor in op.tensors if tensor.optional}
    required = {scalar.name: "1" for scalar in op.scalars if not scalar.default and scalar.name not in ranges}
    queries = op.tensors[0].name
    for dtype, (cache, scales), unaligned in product(("float16", "bfloat16"), CACHES.items(), ((), (queries,))):
        dtypes = {"T": dtype} | ({"C": cache or dtype} if "C" in op.dtypes else {})
        if dtypes.get("C", "") not in (*op.dtypes.get("C", ()), ""):
            continue
        for values in product(*ranges.values()):
            extents = dict(zip(ranges, values, strict=True))
            scalars = {name: extents.pop(name) for name in SCALARS if name in extents} | required
            for rest in ({}, optional - {"k_scale", "v_scale"}):
                given = frozenset({*rest, *(set(scales) & optional)})
                yield CallSpec(
                    dims=extents, dtypes=dtypes, given=given, scalars=scalars, unaligned=frozenset(unaligned)
                )


def test_every_call_has_code_of_its_alignment(decode: Bundle):
    """What few calls ask for is built by default, and what is aligned does not load single elements."""
    for op in decode.index.ops:
        planner, count = op_planner(decode.index, op.name), 0
        for call in calls(op):
            decision = plan_call(decode.index, planner, call, 304)
            aligned = not call.unaligned and call.dims.get("head_dim", 0) % 16 == 0
            assert [launch.variant.aligned for launch in decision.launches] == [aligned] * len(decision.launches), call
            in_parts = "num_splits" in call.scalars and (call.scalars["num_splits"] == "2" or not aligned)
            assert any(size for _, size, _ in decision.workspaces) == in_parts
            count += 1
        assert count >= 24, op.name
