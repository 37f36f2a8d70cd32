"""Every two features of the attention ops together, from gfx942 code objects on the emulator in strict mode."""

from __future__ import annotations

import pytest

from aot_runtime import Bundle
from tests.ops.attention.cases import EDGES, Case, make_call, pairwise
from tests.ops.attention.checking import check


@pytest.mark.parametrize("case", (*pairwise(), *EDGES), ids=str)
def test_matches_the_reference(bundle: Bundle, case: Case):
    check(bundle, make_call(case))


def test_cases_have_every_pair():
    cases = pairwise()
    for pair in ({"mask": "t:7,3", "v_rows": False}, {"score": "bias", "head_dims": (96, 24)},
                 {"mode": "varlen", "score": "softcap"}, {"dtype": "bfloat16", "mask": "g:12,-4"}):  # fmt: skip
        assert any(all(getattr(case, axis) == value for axis, value in pair.items()) for case in cases), pair
    assert not any(case.mode == "varlen" and case.score.startswith("bias") for case in cases)
