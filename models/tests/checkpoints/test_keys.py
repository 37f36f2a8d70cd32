"""Keys of a JSON object, checked against a table of allowed values."""

from __future__ import annotations

import pytest

from aot_models.checkpoints.keys import (
    Table,
    an_object,
    flag,
    harmless,
    held,
    known,
    listed,
    number,
    one_or_listed,
    only,
    or_null,
    text,
    whole,
)
from aot_models.checkpoints.values import CheckpointError, Values

TABLE: Table = {
    "size": whole(most=100),
    "eps": number(0, 1),
    "tied": flag(False),
    "kind": only("silu", "gelu"),
    "causal": only(True),
    "window": or_null(whole(most=9), 7),
    "end": or_null(one_or_listed(whole(0), 3)),
    "names": listed(text(), 2, []),
    "rope": or_null(an_object()),
    **harmless("use_cache dropout"),
}
WHOLE = {"size": 3, "eps": 1e-5}


def test_values_and_defaults():
    found = held(Values({**WHOLE, "use_cache": ["any"], "window": None, "end": [1, 2]}), TABLE).found
    assert found == {**WHOLE, "tied": False, "kind": "silu", "causal": True, "window": None, "end": [1, 2],
                     "names": [], "rope": None}  # fmt: skip
    assert held(Values(WHOLE), TABLE)["window"] == 7


@pytest.mark.parametrize(
    ("key", "value"),
    (
        ("size", 0), ("size", 101), ("size", 3.0), ("size", True), ("size", "3"), ("size", [3]), ("size", 10**400),
        ("eps", 0), ("eps", -1e-6), ("eps", float("nan")), ("eps", float("inf")), ("eps", "x"), ("eps", 10**400),
        ("tied", "false"), ("tied", 0), ("tied", None), ("kind", "relu"), ("kind", ["silu"]), ("kind", {}),
        ("causal", False), ("causal", 1), ("window", 0), ("end", 0.5), ("end", [1, "x"]), ("end", [1, 2, 3, 4]),
        ("names", ["a", 1]), ("names", "a"), ("names", ["a"] * 3), ("rope", True), ("rope", []),
    ),
)  # fmt: skip
def test_values_that_a_key_may_not_have(key: str, value: object):
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{key}"):
        held(Values({**WHOLE, key: value}), TABLE)


def test_all_faults_are_named():
    with pytest.raises(CheckpointError) as caught:
        held(Values({"size": -1, "tied": "yes", "kind": "re\x1blu"}), TABLE)
    assert str(caught.value) == (
        "config.json: size -1 is not supported; supported: 1 to 100; there is no 'eps'; tied yes is not supported; "
        "supported: true, false; kind 're\\x1blu' is not supported; supported: silu, gelu"
    )


def test_keys_that_are_not_known():
    given = Values({**WHOLE, "attn_scale": 2.0, "a\nb": 1})
    with pytest.raises(CheckpointError, match=r"the key ''a\\nb'' is not known.*; the key 'attn_scale' is not known"):
        held(given, TABLE)
    assert known(given, TABLE)["size"] == 3
    with pytest.raises(CheckpointError, match="and 900 more"):
        held(Values({**WHOLE, **{f"k{number}": 1 for number in range(1000)}}), TABLE)
