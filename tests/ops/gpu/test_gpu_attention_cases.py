"""Every two features of the attention ops together on a real GPU, and each by itself on longer sequences.

The first need a bundle of their own: `python -m tests.ops.attention.building --arch sm_90 -o dist`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aot_runtime import Bundle, Device, open_bundle
from tests.ops.attention.cases import EDGES, Case, make_call, pairwise
from tests.ops.attention.checking import check

pytestmark = pytest.mark.gpu

LONG = (
    *(Case(mask, dims, lengths=lengths) for mask in ("0", "b", "t", "b:300,20", "t:100,-1", "g:-50,300")
      for dims in ((64, 64), (128, 128), (96, 96)) for lengths in ((700, 1000), (1000, 300))),
    *(Case(mask, dims, lengths=(700, 1000), mode="varlen", layout="bshd", dtype="bfloat16", heads=(4, 2))
      for mask in ("0", "b", "b:200,0") for dims in ((64, 64), (128, 128), (80, 80))),
    *(Case(mask, dims, score, (500, 800), heads=(4, 1)) for mask in ("0", "b")
      for dims in ((64, 64), (128, 128), (256, 256)) for score in ("bias", "bias of keys", "alibi", "softcap")),
    *(Case("b", dims, score, (500, 800), mode="varlen") for dims in ((64, 64), (128, 128))
      for score in ("alibi", "softcap")),
    *(Case("b", dims, lengths=(500, 800), dtype=dtype, v_rows=False) for dims in ((64, 64), (128, 128))
      for dtype in ("float16", "bfloat16")),
    *(Case(mask, (192, 128), lengths=(500, 800), dtype="bfloat16") for mask in ("0", "b", "b:100,0")),
    *(Case(mask, dims, lengths=(1000, 1200), heads=(16, 4), dtype=dtype, mode=mode, schedule=schedule)
      for mask in ("0", "b") for dims, dtype in (((64, 64), "float16"), ((128, 128), "bfloat16"))
      for mode in ("batch", "varlen") for schedule in ("persistent", "dynamic")),
)  # fmt: skip


@pytest.fixture(scope="session")
def combinations(device: Device) -> Bundle:
    folder = Path(os.environ.get("AOTBUILD_TEST_BUNDLES", "dist")) / f"attention_cases-{device.arch}"
    if not folder.is_dir():
        command = f"python -m tests.ops.attention.building --arch {device.arch} -o {folder.parent}"
        pytest.skip(f"{folder} is not there: {command}")
    return open_bundle(folder, device)


@pytest.mark.parametrize("case", (*pairwise(), *EDGES), ids=str)
def test_combinations(combinations: Bundle, case: Case):
    check(combinations, make_call(case))


@pytest.mark.parametrize("case", LONG, ids=str)
def test_long_sequences(attention: Bundle, case: Case):
    check(attention, make_call(case))
