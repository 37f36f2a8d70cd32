"""The code of the decoding kernels: the expected instructions on gfx942, and builds for other targets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.kernel_compiling import check_resources, compile_variant, loads_of, loops, resource, variants

pytestmark = [pytest.mark.on("emulator"), pytest.mark.sampled(1)]

NARROW = {"global_load_dword", "global_load_ushort", "buffer_load_dword", "buffer_load_ushort"}
"""Loads of tables, and of scales."""
HALF, BYTE, BASE = {"C": "float16"}, {"C": "int8"}, {"C": "float16", "config": "base"}
LONG = 10**6
"""Instructions of a loop whose length is not held to anything."""

# What is chosen, the wide loads of a lane in a loop over keys, of K and V for a tile of 64 keys by 256 lanes, registers
# that leave room for as many waves, and the instructions of the longest loop.
LOOPS: tuple[tuple[str, dict[str, Any], int, int, int], ...] = (
    ("flash_decode", HALF | {"HEAD_DIM": 64}, 4, 128, 300), ("flash_decode", HALF, 8, 168, 395),
    ("flash_decode", BYTE, 4, 256, LONG), ("flash_decode", {"C": "float8_e4m3fnuz"}, 4, 256, LONG),
    ("flash_decode", HALF | {"HEAD_DIM": 256, "config": "wide"}, 8, 256, LONG), ("paged_attention", BYTE, 4, 256, LONG),
    ("paged_attention", BASE | {"HEAD_DIM": 64}, 4, 96, 350), ("paged_attention", BASE, 8, 128, 455),
    ("paged_attention", BASE | {"WHOLE_BLOCKS": False}, 8, 256, LONG),
    ("paged_attention", BASE | {"C": "bfloat16", "T": "bfloat16"}, 8, 128, 470),
    ("paged_attention", HALF | {"config": "chunk"}, 8, 256, LONG), ("paged_attention_int4", {"GROUPS": 4}, 2, 168, 590),
    ("flex_decode_document", {}, 8, 256, LONG), ("flex_decode_softcap", {}, 8, 256, LONG),
    ("flash_decode", HALF | {"PADDED": True}, 8, 256, LONG),
    ("paged_attention", HALF | {"PADDED": True, "WHOLE_BLOCKS": False}, 8, 256, LONG),
    ("mla_decode", {"LATENT": 512, "PADDED": True, "WHOLE_BLOCKS": False}, 9, 256, LONG),
    ("paged_attention_pieces", BASE, 8, 256, 1100), ("paged_attention_pieces", {"C": "float8_e4m3fnuz"}, 4, 256, LONG),
    ("flex_decode_causal", {}, 8, 168, 475), ("mla_decode", {"LATENT": 512}, 9, 256, 525),
)  # fmt: skip


def chosen(op: str, point: dict[str, Any]) -> Any:
    """Return the compiled variant of an op for aligned arguments, of head dim 128 unless the point says otherwise."""
    common: dict[str, Any] = {"T": "float16", "aligned": True}
    if op != "mla_decode":
        common["HEAD_DIM"] = 128
    if op in ("flash_decode", "paged_attention") or op.startswith("flex"):
        common["PADDED"] = False
    if op in ("paged_attention", "paged_attention_int4", "mla_decode"):
        common["WHOLE_BLOCKS"] = True
    return compile_variant(variants("gfx942", "decode", op, **common | point)[0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("op", "point", "wide", "registers", "length"), LOOPS, ids=str)
def test_gfx942_loops_load_wide_and_are_short(op: str, point: dict[str, Any], wide: int, registers: int, length: int):
    compiled = chosen(op, point)
    check_resources(compiled)
    assert resource(compiled, "vgpr_count") <= registers
    # One loop for each thing that LLVM decides before them, such as whether there is a soft-cap.
    found = loops(compiled, "v_mfma")
    assert found and max(map(len, found)) <= length
    for body in found:
        loads = loads_of(body)
        assert sum(name.endswith("dwordx4") for name in loads) == wide
        assert {name for name in loads if not name.endswith("dwordx4")} <= NARROW
        assert not any(name.startswith(("scratch", "v_readlane", "v_writelane")) for name in body)


def bytes_to_lds(body: list[str]) -> int:
    """Count the bytes that a lane writes: `ds_write2st64_b32` is 2 times 4 bytes."""
    writes = [re.match(r"ds_write(2?)\w*_b(\d+)$", name) for name in body if name.startswith("ds_write")]
    return sum((2 if match[1] else 1) * int(match[2]) // 8 for match in writes)


@pytest.mark.parametrize("op", ("flash_decode_int4", "paged_attention_int4"))
@pytest.mark.parametrize("groups", (1, 8))
def test_gfx942_unpacks_4_bits_with_one_trip_through_lds(op: str, groups: int):
    """Each tile goes there once, as 16-bit numbers; a second trip of one would cost half as much again."""
    compiled, plain = chosen(op, {"GROUPS": groups}), chosen("flash_decode", HALF)
    most = max(map(bytes_to_lds, loops(plain, "v_mfma")))
    for body in loops(compiled, "v_mfma"):
        wide = sum(name.endswith("dwordx4") for name in loads_of(body))
        assert wide == 2, "K and V: 2 x 64 x 64 bytes by 256 lanes of 16 bytes"
        assert bytes_to_lds(body) < 1.5 * most


@pytest.mark.parametrize("arch", ("gfx1100", "gfx90a", "gfx950", "gfx1201", "sm_80", "sm_90"))
def test_compiles(arch: str):
    point = {"T": "bfloat16", "HEAD_DIM": 128, "config": "base", "aligned": True, "kernel": "decode_split"}
    compiled = compile_variant(variants(arch, "decode", "paged_attention", **point)[0])
    if arch.startswith("gfx"):
        check_resources(compiled)
