"""Every two features of the attention ops together, from gfx942 code objects on the emulator in strict mode."""

from __future__ import annotations

import itertools

import pytest

from aot.targets import parse_arch
from aot_runtime import Bundle
from tests.ops.attention.building import ROOT, needed_by, plan
from tests.ops.attention.cases import AXES, EDGES, Case, make_call, pairwise, valid
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


@pytest.mark.parametrize("arch", ("gfx942", "gfx1100", "sm_90"))
def test_every_combination_is_built(arch: str):
    """There is a variant for each of them: `needed_by` raises where there is none."""
    _, planners = plan(ROOT / "manifests/attention.yaml", parse_arch(arch))
    axes = ("mask", "head_dims", "score", "mode", "v_rows", "return_lse")
    for values in itertools.product(*(AXES[axis] for axis in axes), ("auto", "persistent")):
        case = Case(**dict(zip((*axes, "schedule"), values, strict=True)), lengths=(3, 16))
        if valid(case):
            call = make_call(case)
            assert len(needed_by(call, planners[call.op], arch)) == 1
