"""Rows of a block without an assignment, treated in ways that no config of gfx942 uses."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="the emulator needs the extra `emulator`")
pytest.importorskip("triton", reason="building bundles needs the extra `build`")

from aot.tune.candidates import SCALAR
from aot_runtime import Bundle
from tests.ops.moe.checking import check_moe, made
from tests.support.candidates import candidates_bundle
from tests.support.dtypes import BF16, INT32

pytestmark = [pytest.mark.on("emulator"), pytest.mark.slow]

SPACE = """\
op: moe
groups:
  - {name: few, launch: gate_up, candidates: [{blocks: {PADDING: masked}}]}
  - {name: few, launch: down, candidates: [{blocks: {PADDING: masked}}]}
  - {name: some, launch: gate_up, candidates: [{blocks: {PADDING: halved}}]}
  - {name: some, launch: down, candidates: [{blocks: {PADDING: halved}}]}
"""


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return candidates_bundle(tmp_path_factory, "moe", "moe", SPACE, "op=moe")


@pytest.mark.parametrize("candidate", (1, 2))
@pytest.mark.parametrize("hidden", (72, 33))
def test_masked(candidates: Bundle, candidate: int, hidden: int):
    given = made(np.random.default_rng(candidate), 11, 5, 2, hidden, 24, BF16)
    check_moe(candidates, **given, how={SCALAR: candidate})


@pytest.mark.parametrize("candidate", (3, 4))
def test_halved(candidates: Bundle, candidate: int):
    """Some blocks of 64 have half as many assignments or fewer, and one has one more."""
    given = made(np.random.default_rng(candidate), 60, 5, 3, 32, 16, BF16)
    given["chosen"] = np.repeat(np.arange(5), (32, 33, 96, 1, 18)).astype(INT32).reshape(60, 3)
    check_moe(candidates, **given, how={SCALAR: candidate})
