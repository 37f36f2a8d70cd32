"""Decoding on Hopper: calls that use its kernel, division of keys, and faults that only its loads could have."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from aot_bundle.callspec import CallSpec, plan_call
from aot_runtime import Bundle, DeviceArray
from aot_runtime.call.choosing import Decision
from aot_runtime.call.planner import op_planner
from aot_runtime.contract.records import Index
from kernels.decode.reference import quantise_int4
from tests.ops.decode.cases import PER_TOKEN, check, check_paged, normal, packed, paged, scales
from tests.support.dtypes import BF16, FP16, eight_bits
from tests.support.plans import planned

CUS = 132
DIMS = {"batch": 4, "heads": 8, "heads_kv": 1, "head_dim": 128}
CALLS = {
    "flash_decode": CallSpec(dims=DIMS | {"seqlen_q": 1, "seqlen_k": 4096}, dtypes={"T": "float16", "C": "float16"}),
    "flash_decode_int4": CallSpec(
        dims=DIMS | {"seqlen_q": 1, "seqlen_k": 4096, "groups": 1}, dtypes={"T": "bfloat16"}
    ),
    "flash_decode of bytes": CallSpec(
        dims=DIMS | {"seqlen_q": 1, "seqlen_k": 4096}, dtypes={"T": "bfloat16", "C": "int8"},
        given=frozenset({"k_scale", "v_scale"}),
    ),
    "paged_attention": CallSpec(
        dims=DIMS | {"tokens": 4, "blocks": 1024, "block_size": 16, "blocks_per_sequence": 256},
        dtypes={"T": "float16", "C": "float16"},
    ),
    "paged_attention of bytes": CallSpec(
        dims=DIMS | {"tokens": 4, "blocks": 1024, "block_size": 16, "blocks_per_sequence": 256},
        dtypes={"T": "float16", "C": "float8_e4m3fn"}, given=frozenset({"k_scale", "v_scale"}),
    ),
    "paged_attention_int4": CallSpec(
        dims=DIMS | {"tokens": 4, "blocks": 1024, "block_size": 16, "blocks_per_sequence": 256, "groups": 1},
        dtypes={"T": "float16"},
    ),
}  # fmt: skip
"""Calls of each op that the kernel takes, by its name and what else tells them apart."""


@cache
def index() -> Index:
    from tests.support.on_demand import index_of

    return index_of(planned("sm_90", "decode"))


def decide(call: str, **changes: Any) -> Decision:
    """Plan one of CALLS with other fields and other dims."""
    dims = CALLS[call].dims | changes.pop("dims", {})
    if not call.endswith("int4"):
        dims = {"head_dim_v": dims["head_dim"]} | dims
    return plan_call(index(), op_planner(index(), call.split()[0]), replace(CALLS[call], dims=dims, **changes), CUS)


def taken(decision: Decision) -> bool:
    """Tell whether the kernel for Hopper serves a call."""
    return decision.launches[0].variant.axis_values["HOPPER"]


@pytest.mark.slow
@pytest.mark.on("emulator")
@pytest.mark.parametrize("call", CALLS)
def test_who_takes_a_call(call: str):
    size = "block_size" if call.startswith("paged") else "seqlen_k"
    others: list[dict[str, Any]] = [{"unaligned": frozenset("k")}, {"dims": {"head_dim": 256}}]
    if size == "block_size":
        others += [{"dims": {"block_size": 17}}, {"dims": {"block_size": 8}}]
    else:
        others += [{"strides": {"v": (1 << 40, 64, 1 << 30, 1)}}]
    if call.endswith("int4"):
        others += [{"dims": {"groups": 2}}, {"dims": {"head_dim": 64}}, {"dims": {"head_dim": 96}}]
    else:
        assert taken(decide(call, dims={"head_dim": 96})) and taken(decide(call, dims={"head_dim": 48}))
        others += [{"dims": {"head_dim": 92}}]
    if call == "flash_decode of bytes":
        others += [{"strides": {"k_scale": (1, 1, 1 << 29)}}]
    # Masks other than causal ones, unless there is but one query.
    several = {"scalars": {"causal": "false", "max_seqlen_q": "2"}} if size == "block_size" else {
        "scalars": {"causal": "false"}, "dims": {"seqlen_q": 2}
    }  # fmt: skip
    others += [several, {"scalars": {"attention_chunk": "64"}}, {"given": CALLS[call].given | {"first_keys"}}]
    assert taken(decide(call)) and taken(decide(call, scalars={"causal": "false"}))
    for changes in others:
        changes["dims"] = {name: x for name, x in changes.get("dims", {}).items() if name in CALLS[call].dims}
        assert not taken(decide(call, **changes)), changes


@pytest.mark.slow
@pytest.mark.on("emulator")
def test_parts_fill_two_programs_a_multiprocessor_evenly():
    """66 parts for each of four key heads would make 7.8 tiles of 128 keys each, and leave the last part empty."""
    decision = decide("flash_decode", dims={"seqlen_k": 32768})
    assert [launch.grid for launch in decision.launches] == [(64, 1, 4), (1, 8, 4)]


def at_odd_halves(bundle: Bundle, host: np.ndarray) -> DeviceArray:
    """Put `host`, float16, on the device at an address that is no multiple of 4."""
    flat = bundle.device.array(np.concatenate([np.zeros(1, FP16), host.ravel()]))
    return flat[1:].reshape(*host.shape)


@pytest.mark.on("gpu")
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_pairs_need_no_alignment(decode: Bundle, dtype: np.dtype):
    rng = np.random.default_rng(1)
    k, k_scale, v, v_scale = (x for _ in "kv" for x in quantise_int4(normal(rng, 2, 2, 300, 128), 1))
    inputs = {"q": normal(rng, 2, 8, 1, 128, dtype=dtype), "k": k, "v": v, "k_scale": k_scale, "v_scale": v_scale}
    inputs["seqlens_k"] = np.array([33, 300], np.int32)
    check(decode, "flash_decode_int4", inputs, {"k_scale": at_odd_halves, "v_scale": at_odd_halves}, num_splits=2)


@pytest.mark.on("gpu")
@pytest.mark.parametrize("scale", (1e-30, 1e30, 0.0))
def test_queries_of_any_magnitude_meet_4_bits(decode: Bundle, scale: float):
    """bfloat16 queries are converted to float16 there, with a factor for each row."""
    rng = np.random.default_rng(1)
    k, k_scale, v, v_scale = (x for _ in "kv" for x in quantise_int4(normal(rng, 1, 1, 200, 128), 1))
    q = (rng.standard_normal((1, 8, 1, 128)) * scale).astype(BF16)
    inputs = {"q": q, "k": k, "v": v, "k_scale": k_scale, "v_scale": v_scale, "seqlens_k": np.array([200], np.int32)}
    check(decode, "flash_decode_int4", inputs, scale=0.1 / scale if scale else 1.0)


LENGTHS = [(1, keys) for keys in (1, 15, 16, 17, 47, 64, 65, 127, 128, 129, 700)]
"""Tiles of keys span blocks, and sequences end anywhere within one."""


@pytest.mark.on("gpu")
@pytest.mark.parametrize("heads", ((8, 1), (12, 1), (40, 1), (6, 3)), ids=str)
@pytest.mark.parametrize("block_size", (16, 48, 64))
def test_pieces_of_blocks(decode: Bundle, block_size: int, heads: tuple[int, int]):
    """Repeated calls give the same bits."""
    case = paged(LENGTHS, block_size, heads, 128)
    for _ in range(2):
        check(decode, "paged_attention", vars(case), num_splits=3, window_left=300, **case.longest)


@pytest.mark.on("gpu")
@pytest.mark.parametrize("per_token", PER_TOKEN)
@pytest.mark.parametrize("cache", ("int8", "e4m3", "e5m2"))
@pytest.mark.parametrize(
    "dtype, head_dim, heads, block_size", ((FP16, 128, (8, 1), 16), (BF16, 128, (24, 2), 48), (BF16, 64, (6, 3), 16)),
    ids=str,
)  # fmt: skip
def test_pieces_of_blocks_of_8_bits(
    decode: Bundle, cache: str, dtype: np.dtype, head_dim: int, heads: tuple[int, int], block_size: int,
    per_token: tuple[bool, bool],
):  # fmt: skip
    case = paged(LENGTHS, block_size, heads, head_dim, dtype, eight_bits(decode, cache))
    shapes = [case.k.shape[:3] if each else (1, 1, heads[1]) for each in per_token]
    check_paged(decode, case, num_splits=3, window_left=300, **scales(np.random.default_rng(0), *shapes))


@pytest.mark.on("gpu")
@pytest.mark.parametrize("head_dim", (16, 80, 96, 112))
@pytest.mark.parametrize("cache", ("fp16", "bf16", "int8", "e4m3"))
@pytest.mark.parametrize("heads, block_size", (((8, 1), 16), ((24, 2), 48)), ids=str)
def test_padded_head_dims(decode: Bundle, cache: str, head_dim: int, heads: tuple[int, int], block_size: int):
    """Another row, or NaN, follows each row in memory."""
    is_wide = cache in ("fp16", "bf16")
    dtype = {"fp16": FP16, "bf16": BF16}.get(cache, FP16)
    case = paged(LENGTHS, block_size, heads, head_dim, dtype, dtype if is_wide else eight_bits(decode, cache))
    factors = {} if is_wide else scales(np.random.default_rng(0), *(2 * [case.k.shape[:3]]))
    check_paged(decode, case, num_splits=3, window_left=300, **factors)


@pytest.mark.on("gpu")
@pytest.mark.parametrize("head_dim, head_dim_v", ((80, 80), (96, 40), (72, 128), (128, 64)), ids=str)
@pytest.mark.parametrize("splits", (1, 5))
def test_padded_head_dims_of_contiguous_caches(decode: Bundle, head_dim: int, head_dim_v: int, splits: int):
    rng = np.random.default_rng(1)
    k, v = (normal(rng, 2, 2, 700, columns, dtype=BF16) for columns in (head_dim, head_dim_v))
    inputs = {
        "q": normal(rng, 2, 8, 3, head_dim, dtype=BF16),
        "k": k,
        "v": v,
        "seqlens_k": np.array([33, 700], np.int32),
    }
    check(decode, "flash_decode", inputs, out_width=head_dim_v, num_splits=splits)


@pytest.mark.on("gpu")
@pytest.mark.parametrize("size", (1e-3, 1.0, 1e3, 6.5e4))
@pytest.mark.parametrize("dtype, heads, block_size", ((FP16, (8, 1), 16), (BF16, (24, 2), 48)), ids=str)
def test_pieces_of_blocks_of_4_bits(
    decode: Bundle, dtype: np.dtype, heads: tuple[int, int], block_size: int, size: float
):
    """Values of any size: factors multiply the probabilities, not the values."""
    case = paged(LENGTHS, block_size, heads, 128, dtype)
    arrays = vars(case) | {}
    for name, pairs in (("k", "k_scale"), ("v", "v_scale")):
        known = np.clip(np.nan_to_num(arrays[name].astype(np.float32)), -1, 1) * (size if name == "v" else 1)
        arrays[name], arrays[pairs] = quantise_int4(known, 1)
        arrays[pairs][np.isnan(vars(case)[name][..., 0].astype(np.float32))] = np.nan
    check(decode, "paged_attention_int4", arrays, dict.fromkeys("kv", packed), num_splits=3, window_left=300)


# Chunks of prompts

CHUNKS = [(100, 150), (70, 70), (1, 200), (129, 129), (0, 30), (90, 40), (300, 1000), (128, 0), (192, 4097)]
"""(queries, keys) of sequences: tiles of queries and of keys that are whole and that are not, and queries that see no
key."""


@pytest.mark.slow
@pytest.mark.on("emulator")
def test_who_takes_chunks_of_prompts():
    wide, prompt = {"tokens": 2048, "heads": 32, "heads_kv": 8}, {"max_seqlen_q": "512"}

    def taken(dims: dict[str, int] | None = None, scalars: dict[str, str] | None = None, **changes: Any) -> bool:
        decision = decide("paged_attention", dims=wide | (dims or {}), scalars=prompt | (scalars or {}), **changes)
        return decision.launches[0].variant.axis_values["PROMPT"]

    assert taken()
    assert taken({"head_dim": 64, "block_size": 48})
    assert taken({"head_dim": 96})
    for dims in ({"head_dim": 92}, {"head_dim": 256}, {"block_size": 24}):
        assert not taken(dims), dims
    for scalars in ({"max_seqlen_q": "64"}, {"num_splits": "2"}, {"window_left": "100"}, {"softcap": "1"},
                    {"causal": "false"}, {"attention_chunk": "64"}):  # fmt: skip
        assert not taken(scalars=scalars), scalars
    assert not taken(given=frozenset({"alibi_slopes"})) and not taken(given=frozenset({"first_keys"}))
    assert not taken(unaligned=frozenset("v"))
    assert not taken(strides={"k": (16 * 1024, 1024, -128, 1)})


@pytest.mark.on("gpu")
@pytest.mark.parametrize("scale", (0.1, -0.3, 0.0))
@pytest.mark.parametrize(
    "block_size, dtype, head_dim, heads",
    ((16, FP16, 128, (8, 1)), (48, BF16, 128, (6, 3)), (64, BF16, 128, (2, 2)), (192, FP16, 64, (5, 1)),
     (16, FP16, 64, (4, 2)), (16, FP16, 96, (4, 2)), (64, BF16, 80, (5, 1))),
    ids=str,
)  # fmt: skip
def test_chunks(
    decode: Bundle, block_size: int, dtype: np.dtype, head_dim: int, heads: tuple[int, int], scale: float
):  # fmt: skip
    check_paged(decode, paged(CHUNKS, block_size, heads, head_dim, dtype), num_splits=1, scale=scale)


@pytest.mark.on("gpu")
def test_chunks_give_the_same_bits_each_time(decode: Bundle):
    case = paged([(300, 3000), (129, 1001), (512, 512)] * 4, 16, (8, 2), 128)
    arrays = {name: packed(decode, x) for name, x in vars(case).items()}
    first, *others = (decode.paged_attention(**arrays, **case.longest, num_splits=1) for _ in range(10))
    assert all(np.array_equal(first.numpy(), other.numpy()) for other in others)
