"""The page on coverage is what the data, the rules and the contracts give; the data are complete."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.peers.coverage import PAGE, count, page
from tests.peers.grids import Function, read_suites
from tests.peers.rules import RULES, Contracts, Needs, Rule, Verdict, contracts, verdict


@pytest.fixture(scope="module")
def suites() -> dict[str, list[Function]]:
    return read_suites()


@pytest.fixture(scope="module")
def ops() -> Contracts:
    return contracts()


def test_page_is_what_the_command_writes(suites: dict[str, list[Function]], ops: Contracts):
    assert PAGE.read_text() == page(suites, ops), "run `python -m tests.peers`"


def test_every_request_has_a_rule(suites: dict[str, list[Function]]):
    requests = {name for functions in suites.values() for item in functions for name in (*item.asks, *item.counted)}
    assert requests == RULES.keys()


def test_every_plain_call_has_an_op(suites: dict[str, list[Function]], ops: Contracts):
    wrong = [
        (item.file, item.name) for functions in suites.values() for item in functions
        if (() in item.classes() and not item.op) or (item.op and item.op not in ops)
    ]  # fmt: skip
    assert not wrong


NEEDS = {
    "an op": (Needs("softmax"), Needs("soft_max")),
    "an argument": (Needs("softmax", "scale"), Needs("softmax", "bias")),
    "a value": (Needs("moe_route", "scoring", value="sigmoid"), Needs("moe_route", "scoring", value="relu")),
    "a dtype of a variable": (Needs("rotary", "x", "bfloat16"), Needs("rotary", "x", "int8")),
    "a dtype alone": (Needs("softmax", "mask", "bool"), Needs("softmax", "scale", "float32")),
    "a rank": (Needs("flash_attention", "alibi_slopes", rank=2), Needs("flash_attention", "alibi_slopes", rank=3)),
    "an extent": (Needs("flash_attention", axis="HEAD_DIM", extent=256), Needs("flash_attention", axis="M", extent=1)),
}


@pytest.mark.parametrize("met, missing", NEEDS.values(), ids=NEEDS)
def test_needs(ops: Contracts, met: Needs, missing: Needs):
    assert met.met(ops) and not missing.met(ops)


def test_a_rule_changes_what_is_counted(suites: dict[str, list[Function]], ops: Contracts, monkeypatch):
    """A rule that asks for an argument of another op moves its calls from one column to another."""
    request = "feed-forward"
    before = count(suites, ops)
    assert request in before[Verdict.DETOUR]
    monkeypatch.setitem(RULES, request, Rule(Needs("scaled_matmul", "scale_a")))
    after = count(suites, ops)
    assert request not in after[Verdict.DETOUR]
    assert page(suites, ops) != PAGE.read_text()


def test_the_hardest_request_decides(ops: Contracts, monkeypatch):
    monkeypatch.setitem(RULES, "hard", Rule())
    monkeypatch.setitem(RULES, "detour", Rule(detour="so"))
    monkeypatch.setitem(RULES, "easy", Rule(Needs("softmax")))
    assert verdict("softmax", (), ops) == (Verdict.DIRECT, "")
    assert verdict("softmax", ("easy", "detour"), ops) == (Verdict.DETOUR, "detour")
    assert verdict("softmax", ("detour", "hard", "easy"), ops) == (Verdict.NOT, "hard")
    assert verdict("no_such_op", (), ops) == (Verdict.NOT, "")


def test_classes_of_a_function(suites: dict[str, list[Function]]):
    """Each combination is in one class; of a grid whose cells are counted here by hand, in the right one."""
    assert all(item.classes().total() == item.count for functions in suites.values() for item in functions)
    (function,) = (
        item for item in suites["flash-attention 2"]
        if (item.file, item.name) == ("tests/test_flash_attn_triton_amd.py", "test_flash_attn_kvcache")
    )  # fmt: skip
    # 3 kinds of heads, 2 counts of splits, 2 lengths of new keys, 2 kinds of rotation and 6 head dims; 1 fraction is
    # rotated without new keys, and 3 with them. 11 pairs of lengths, of which 8 have several queries.
    each = 3 * 2 * 2 * 2 * 6 * (1 + 3)
    slopes, not_causal = "cache: several ALiBi slopes", "cache: not causal"
    assert function.classes() == Counter({
        (): each * 2 * (11 + 3), (not_causal,): each * 2 * 8, (slopes,): each * 2 * (11 + 3),
        ("contiguous cache: ALiBi, not causal", slopes, not_causal): each * 8,
        ("paged cache: ALiBi, not causal", slopes, not_causal): each * 8,
    })  # fmt: skip
    with pytest.raises(ValueError, match="is not a multiple of"):
        replace(function, count=function.count + 1).classes()
