"""Chunks of prompts over caches in blocks on Hopper: which calls its kernel takes, and that it is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle
from tests.ops.decode.cases import check_paged, packed, paged
from tests.ops.decode.test_hopper import decide
from tests.support.dtypes import BF16, FP16

CHUNKS = [(100, 150), (70, 70), (1, 200), (129, 129), (0, 30), (90, 40), (300, 1000), (128, 0), (192, 4097)]
"""(queries, keys) of sequences: tiles of queries and of keys that are whole and that are not, and queries that see no
key."""


@pytest.mark.slow
@pytest.mark.on("emulator")
def test_who_takes_a_call():
    wide, prompt = {"tokens": 2048, "heads": 32, "heads_kv": 8}, {"max_seqlen_q": "512"}

    def taken(dims: dict[str, int] | None = None, scalars: dict[str, str] | None = None, **changes: Any) -> bool:
        decision = decide("paged_attention", dims=wide | (dims or {}), scalars=prompt | (scalars or {}), **changes)
        return decision.launches[0].variant.axis_values["PROMPT"]

    assert taken()
    assert taken({"head_dim": 64, "block_size": 48})
    for dims in ({"head_dim": 96}, {"head_dim": 256}, {"block_size": 24}):
        assert not taken(dims), dims
    for scalars in ({"max_seqlen_q": "64"}, {"num_splits": "2"}, {"window": "100"}, {"softcap": "1"}):
        assert not taken(scalars=scalars), scalars
    assert not taken(given=frozenset({"alibi_slopes"}))
    assert not taken(unaligned=frozenset("v"))
    assert not taken(strides={"k": (16 * 1024, 1024, -128, 1)})


@pytest.mark.on("gpu")
@pytest.mark.parametrize("scale", (0.1, -0.3, 0.0))
@pytest.mark.parametrize(
    "block_size, dtype, head_dim, heads",
    ((16, FP16, 128, (8, 1)), (48, BF16, 128, (6, 3)), (64, BF16, 128, (2, 2)), (192, FP16, 64, (5, 1)),
     (16, FP16, 64, (4, 2))),
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
