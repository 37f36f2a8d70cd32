"""Persistent programs: every tile is done once, whoever does it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aot.targets import parse_arch
from aot_runtime import Bundle
from aot_runtime.contract.layout import make_layout, packed_strides
from tests.ops.attention.building import ROOT, plan
from tests.ops.attention.cases import SCHEDULES, Case, make_call
from tests.ops.attention.checking import check


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

    def point(heads: int = 80, seqlen: int = 1024, head_dim: int = 64, alibi: bool = False, **scalars: Any) -> Any:
        shapes = dict.fromkeys("qkv", (2, heads, seqlen, head_dim))
        layouts = {
            name: make_layout(("host", 0), "float16", shape, packed_strides(shape), True)
            for name, shape in shapes.items()
        }
        if alibi:
            layouts["alibi_slopes"] = make_layout(("host", 0), "float32", (1, heads), (heads, 1), True)
        decision = planners["flash_attention"].decide(layouts, {"causal": True} | scalars, ("host", 0), 304, "gfx942")
        return {**decision.launches[0].variant.axis_values, "dynamic": decision.names["dynamic"]}

    for dynamic in (point(), point(schedule="dynamic", seqlen=20)):
        assert dynamic["PERSISTENT"] and dynamic["dynamic"]
    static = point(schedule="persistent")
    assert static["PERSISTENT"] and not static["dynamic"]
    for changes in (
        {"causal": False}, {"causal": False, "schedule": "dynamic"}, {"window_left": 40}, {"heads": 2},
        {"schedule": "tiles"}, {"seqlen": 300}, {"seqlen": 10000},
        {"head_dim": 40, "schedule": "dynamic"}, {"alibi": True, "schedule": "persistent"},
    ):  # fmt: skip
        assert not point(**changes)["PERSISTENT"], changes
