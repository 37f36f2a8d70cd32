"""Code objects of manifests/decode.yaml: every arch gets some, and gfx942 the instructions it should."""

from __future__ import annotations

import re
from typing import Any

import pytest

from aot.compile.project import project
from tests.ops.sources.kernel_compiling import (
    check_resources,
    compile_variant,
    instructions,
    loads_of,
    loops,
    planned,
    resource,
    variants,
)

MORE_ARCHS = ("gfx90a", "gfx1201", "sm_80")
NARROW = {"global_load_dword", "global_load_ushort", "buffer_load_dword", "buffer_load_ushort"}
"""Loads of tables, and of scales."""


def cases() -> list[tuple[str, dict[str, Any], int]]:
    """(op, a point's values, wide loads of a lane in the loop): K and V of a tile of 64 keys by 256 lanes."""
    half, byte = {"C": "float16"}, {"C": "int8"}
    return [
        ("flash_decode", half, 8), ("flash_decode", byte, 4), ("flash_decode", {"C": "float8_e4m3fnuz"}, 4),
        ("flash_decode", half | {"HEAD_DIM": 256, "config": "wide"}, 8), ("paged_attention", byte, 4),
        ("paged_attention", half | {"config": "base"}, 8),
        ("paged_attention", half | {"config": "base", "WHOLE_BLOCKS": False}, 8),
        ("paged_attention", half | {"config": "chunk"}, 8), ("flex_decode_document", {}, 8),
        ("flex_decode_softcap", {}, 8), ("mla_decode", {"LATENT": 512}, 9),
    ]  # fmt: skip


def chosen(op: str, point: dict[str, Any], **more: Any) -> Any:
    """The compiled variant of an op for aligned arguments, of a head dim of 128 unless the point says otherwise."""
    common: dict[str, Any] = {"T": "float16", "aligned": True}
    if op != "mla_decode":
        common["HEAD_DIM"] = 128
    if op in ("flash_decode", "paged_attention") or op.startswith("flex"):
        common["PADDED"] = False
    if "paged" in op or op == "mla_decode":
        common["WHOLE_BLOCKS"] = True
    return compile_variant(variants("gfx942", "decode", op, **{**common, **point, **more})[0].job)


def multiplying(compiled: Any) -> list[list[str]]:
    """The loops over keys: one for each thing that LLVM decides before them, such as whether there is a soft-cap."""
    found = [body for body in loops(compiled) if any(name.startswith("v_mfma") for name in body)]
    assert found
    return found


def bytes_to_lds(body: list[str]) -> int:
    """What a lane writes: `ds_write2st64_b32` is 2 times 4 bytes."""
    writes = [re.match(r"ds_write(2?)\w*_b(\d+)$", name) for name in body if name.startswith("ds_write")]
    return sum((2 if match[1] else 1) * int(match[2]) // 8 for match in writes)


@pytest.mark.parametrize(("op", "point", "wide"), cases(), ids=str)
def test_gfx942_loops_load_wide_and_do_not_spill(op: str, point: dict[str, Any], wide: int):
    compiled = chosen(op, point)
    check_resources(compiled)
    assert resource(compiled, "vgpr_count") <= 256, "fewer than two waves a SIMD"
    for body in multiplying(compiled):
        loads = loads_of(body)
        assert sum(name.endswith("dwordx4") for name in loads) == wide
        assert {name for name in loads if not name.endswith("dwordx4")} <= NARROW
        assert not any(name.startswith(("scratch", "v_readlane", "v_writelane")) for name in body)


@pytest.mark.parametrize(
    "op, point, registers, length",
    (
        ("flash_decode", {"C": "float16", "HEAD_DIM": 64}, 128, 300),
        ("flash_decode", {"C": "float16"}, 168, 395),
        ("paged_attention", {"C": "float16", "HEAD_DIM": 64, "config": "base"}, 96, 350),
        ("paged_attention", {"C": "float16", "config": "base"}, 128, 455),
        ("paged_attention", {"C": "bfloat16", "T": "bfloat16", "config": "base"}, 128, 470),
        ("paged_attention_int4", {"GROUPS": 4}, 168, 590),
        ("flex_decode_causal", {}, 168, 475),
        ("mla_decode", {"LATENT": 512}, 256, 525),
    ),
    ids=str,
)
def test_gfx942_loops_stay_short(op: str, point: dict[str, Any], registers: int, length: int):
    """registers: the most that leave room for as many waves; length: instructions of the longest loop over keys."""
    compiled = chosen(op, point)
    check_resources(compiled)
    assert resource(compiled, "vgpr_count") <= registers
    assert max(map(len, multiplying(compiled))) <= length


def test_kernels_have_at_most_30_parameters():
    for manifest in ("decode", "llama"):
        jobs = {(v.job.source, v.job.function): v.job for v in planned("gfx942", manifest).variants}
        for (source, function), job in jobs.items():
            if source.startswith("kernels/decode"):
                with project(job.root).active() as modules:
                    assert len(modules.load(source, function).arg_names) <= 30, function


@pytest.mark.parametrize("op, more", (("flash_decode", {}), ("paged_attention", {"WHOLE_BLOCKS": False})))
def test_gfx942_loads_wide_where_the_head_dim_is_padded(op: str, more: dict[str, Any]):
    compiled = chosen(op, {"C": "float16", "PADDED": True, **more})
    check_resources(compiled)
    loads = loads_of(instructions(compiled))
    assert sum(name.endswith("dwordx4") for name in loads) >= 8
    assert not any(name.endswith(("ushort", "short_d16", "short_d16_hi")) for name in loads)


@pytest.mark.parametrize("op", ("flash_decode_int4", "paged_attention_int4"))
@pytest.mark.parametrize("groups", (1, 8))
def test_gfx942_unpacks_4_bits_with_one_trip_through_lds(op: str, groups: int):
    """Each tile goes there once, as one of 16 bits a number does; a second trip of one would be half as much again."""
    packed, plain = chosen(op, {"GROUPS": groups}), chosen("flash_decode", {"C": "float16"})
    check_resources(packed)
    most = max(map(bytes_to_lds, multiplying(plain)))
    for body in multiplying(packed):
        wide = sum(name.endswith("dwordx4") for name in loads_of(body))
        assert wide == 2, "K and V: 2 x 64 x 64 bytes by 256 lanes of 16 bytes"
        assert bytes_to_lds(body) < 1.5 * most


@pytest.mark.parametrize(
    "arch", ("gfx950", "gfx1100", "sm_90", *(pytest.param(arch, marks=pytest.mark.slow) for arch in MORE_ARCHS))
)
def test_compiles(arch: str):
    found = variants(arch, "decode", "paged_attention", T="bfloat16", HEAD_DIM=128, config="base", aligned=True)
    compiled = compile_variant(next(variant for variant in found if variant.spec.launch == 0).job)
    if arch.startswith("gfx"):
        check_resources(compiled)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_gfx942_variant_spills():
    """Vector registers nowhere; scalar ones of single elements' addresses only, and few."""
    for op in planned("gfx942", "decode").ops:
        for variant in variants("gfx942", "decode", op.name):
            compiled = compile_variant(variant.job)
            try:
                check_resources(compiled, scalar=variant.spec.aligned)
                assert resource(compiled, "sgpr_spill_count") <= 48
            except AssertionError as error:
                raise AssertionError(variant.spec.label) from error


def test_general_variant_never_narrows_an_offset():
    for op in ("flash_decode", "paged_attention", "paged_attention_int4", "mla_decode", "flex_decode_document"):
        ttir = compile_variant(variants("gfx942", "decode", op, aligned=False)[0].job).asm["ttir"]
        assert "i64 to i32" not in ttir
        products = [line for line in ttir.splitlines() if "arith.muli" in line and ".stride_" in line]
        assert products and all(": i64" in line for line in products)
