"""Persistent programs: every tile is done once, whoever does it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from attention.building import ROOT, needed_by, plan
from attention.cases import SCHEDULES, Case, make_call
from attention.checking import check

from aot.targets import parse_arch
from aot_runtime import Bundle


@pytest.mark.parametrize("case", SCHEDULES, ids=lambda case: f"{case.schedule} {case.mode} {case.lengths}")
def test_matches_the_reference(bundle: Bundle, case: Case):
    check(bundle, make_call(case))


def test_the_counter_is_zeroed_for_each_call(bundle: Bundle):
    """Two calls on one stream share the memory of the counter; the first leaves it past all tiles."""
    call = make_call(replace(SCHEDULES[-1], lengths=(20, 30)))
    check(bundle, call)
    check(bundle, call)


def test_what_is_chosen():
    """By itself for causal masks of moderate lengths and more tiles than programs; on demand where it is compiled."""
    _, planners = plan(ROOT / "manifests/attention.yaml", parse_arch("gfx942"))

    def point(**changes: Any) -> dict[str, Any]:
        call = make_call(replace(Case("b", (64, 64), lengths=(1024, 1024), heads=(80, 80)), **changes))
        (key,) = needed_by(call, planners[call.op], "gfx942")
        return dict(key[4:])

    assert point()["DYNAMIC"] and point(schedule="dynamic", mask="0", lengths=(20, 20))["DYNAMIC"]
    static = point(schedule="persistent")
    assert static["PERSISTENT"] and not static["DYNAMIC"]
    for changes in (
        {"mask": "0"}, {"mask": "b:40,0"}, {"heads": (2, 2)}, {"schedule": "tiles"}, {"lengths": (300, 300)},
        {"head_dims": (40, 40), "schedule": "dynamic"}, {"score": "alibi", "schedule": "persistent"},
    ):  # fmt: skip
        assert not point(**changes)["PERSISTENT"], changes
