"""Memory traffic, counted by the emulator."""

from __future__ import annotations

import pytest

from aot_runtime import Bundle

pytest.importorskip("tinygrad", reason="the emulator needs the extra `emulator`")

from tests.support.emulation.traffic import profiled

pytestmark = pytest.mark.on("emulator")


@pytest.mark.parametrize(
    "op, values, wanted",
    (
        ("copy", "", {"global_load", "global_store"}),
        ("read", "", {"global_load"}),
        ("write", "value=3", {"global_store"}),
    ),
)
def test_whole_blocks_move_16_bytes_a_lane(memory: Bundle, op: str, values: str, wanted: set[str]):
    accesses = profiled(memory, op, values, n=65536)["accesses"]
    moved = {kind: counts for kind, counts in accesses.items() if counts["bytes"] >= 4 * 65536}
    assert moved.keys() == wanted
    assert all(counts["bytes"] == 4 * 65536 == 16 * counts["lanes"] for counts in moved.values())
