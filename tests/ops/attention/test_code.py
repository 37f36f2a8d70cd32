"""The code of the attention kernels: the expected instructions on gfx942, and matrix instructions on NVIDIA."""

from __future__ import annotations

from typing import Any

import pytest

from aot_runtime.bundle.codeobject import read_code_object
from tests.support.kernel_compiling import check_resources, compile_variant, loads_of, loops, resource, variants

pytestmark = [pytest.mark.on("emulator"), pytest.mark.sampled(1)]

NO_MASK = {"BOUND_LEFT": False, "BOUND_RIGHT": False}
CAUSAL = {"BOUND_LEFT": False, "BOUND_RIGHT": True}
WINDOW = {"BOUND_LEFT": True, "BOUND_RIGHT": True}
PLAIN: dict[str, Any] = {"PLAIN": True, "PADDED": False, "aligned": True}


# Of a loop over whole blocks: its config, most registers, products, 16-byte loads, and most instructions.
LOOPS = (
    (64, NO_MASK, "small", 184, 32, 4, 276), (64, CAUSAL, "small", 188, 32, 4, 276),
    (128, NO_MASK, "base", 251, 64, 8, 402), (128, CAUSAL, "base", 254, 64, 8, 402),
    (256, NO_MASK, "plain_wide", 188, 8, 4, 182), (256, CAUSAL, "plain_wide", 188, 8, 4, 182),
)  # fmt: skip


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize(("head_dim", "mask", "config", "registers", "products", "loads", "length"), LOOPS)
def test_gfx942_loops_are_short(
    dtype: str,
    head_dim: int,
    mask: dict[str, bool],
    config: str,
    registers: int,
    products: int,
    loads: int,
    length: int,
):
    point = {"HEAD_DIM": head_dim, "HEAD_DIM_V": head_dim, "T": dtype, "config": config} | PLAIN | mask
    (variant,) = variants("gfx942", "attention", "flash_attention", **point)
    compiled = compile_variant(variant)
    check_resources(compiled)
    assert resource(compiled, "vgpr_count") <= registers
    whole, edges = loops(compiled)
    for body in (whole, edges):
        assert loads_of(body) == ["buffer_load_dwordx4"] * loads
        assert sum(name.startswith("v_mfma_f32_32x32x8") for name in body) == products
        assert not any(name.startswith("scratch") for name in body)
    assert len(whole) <= length
    masks = [sum(name.startswith("v_cndmask") for name in body) for body in (whole, edges)]
    assert masks[0] == 0 < masks[1], "the blocks that are wholly visible need no mask"


FEATURES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("", {"PLAIN": True, "CDNA3": False} | WINDOW, "f32_32x32x8"), ("", {"HEAD_DIM": 256, "HEAD_DIM_V": 128}, "f32"),
    ("", {"PLAIN": False, "V_ROWS": True}, "f32"), ("", {"PLAIN": False, "V_ROWS": False}, "f32"),
    ("", {"T": "float32"}, "f32_16x16x4_f32"),
    ("_varlen", {"PLAIN": True} | CAUSAL, "f32_32x32x8"), ("_varlen", {"PLAIN": False, "V_ROWS": True}, "f32"),
    ("_int8", {"INT8_P": False, "V_ROWS": True, "BOUND_RIGHT": False}, "i32_32x32x16_i8"),
    ("_int8", {"INT8_P": True, "V_ROWS": False, "FEATURES": False}, "i32_32x32x16_i8"),
    ("_int8", {"INT8_P": True, "V_ROWS": True, "FEATURES": True}, "i32_32x32x16_i8"),
    ("_int8_kv", {"V_ROWS": True, "BOUND_RIGHT": False}, "f32_32x32x8"),
    ("_int8_kv", {"V_ROWS": True, "FEATURES": True}, "f32_16x16x16_bf16"),
    ("_fp8", {"V_ROWS": True, "BOUND_RIGHT": False}, "f32_32x32x16_fp8_fp8"),
    ("_fp8", {"V_ROWS": False, "FEATURES": False}, "f32_32x32x16_fp8_fp8"),
    ("_fp8", {"V_ROWS": False, "FEATURES": True, "F": "float8_e5m2fnuz"}, "f32_16x16x32_bf8_fp8"),
    ("_fp8_varlen", {"V_ROWS": True, "FEATURES": True, "F": "float8_e4m3fnuz"}, "f32_32x32x16_fp8_fp8"),
)  # fmt: skip


@pytest.mark.parametrize(("op", "point", "product"), FEATURES, ids=str)
def test_gfx942_features_load_wide_and_do_not_spill(op: str, point: dict[str, Any], product: str):
    """Checked are the loops over whole blocks in the last config that serves the point, the one for long sequences."""
    manifest = "attention_quantised" if "8" in op else "attention"
    wanted = {"HEAD_DIM": 128, "aligned": True, "T" if op in ("", "_varlen", "_int8_kv") else "O": "bfloat16"} | point
    compiled = compile_variant(variants("gfx942", manifest, f"flash_attention{op}", **wanted)[-1])
    check_resources(compiled)
    products = loops(compiled, "v_mfma")
    bias = {"buffer_load_ushort"} if point.get("FEATURES") and point.get("INT8_P") else set()  # masked in every block
    for body in products[::2] if point.get("INT8_P") else products[:1]:
        assert {"buffer_load_dwordx4"} <= set(loads_of(body)) <= {"buffer_load_dwordx4"} | bias
        assert any(name.startswith(f"v_mfma_{product}") for name in body)
        assert not any(name.startswith("scratch") for name in body)


@pytest.mark.slow
@pytest.mark.parametrize("latent", (256, 512))
def test_gfx942_latent_attention_loads_wide_and_does_not_spill(latent: int):
    point = {"LATENT": latent, "HEAD_DIM": 128, "T": "bfloat16", "CAUSAL": True, "PADDED": False}
    compiled = compile_variant(variants("gfx942", "attention", "mla_prefill", **point)[-1])
    check_resources(compiled)
    _, whole_blocks, *_ = loops(compiled, "v_mfma")
    loads = loads_of(whole_blocks)
    narrower = 0 if latent == 256 else 1  # of 16 keys at a time, the rotated part is 8 bytes a lane
    assert loads.count("buffer_load_dwordx4") == len(loads) - narrower >= 4
    assert loads.count("buffer_load_dwordx2") == narrower


@pytest.mark.parametrize(("arch", "point", "product", "copy", "shared_kib"), (
    ("sm_80", {}, "mma.sync", "cp.async.cg", 163), ("sm_90", {"HOPPER": False}, "wgmma.mma_async", "cp.async.cg", 163),
    pytest.param("sm_90", {"HOPPER": True}, "wgmma.mma_async", "cp.async.bulk.tensor", 227, marks=pytest.mark.slow),
))  # fmt: skip
def test_compiles_for_nvidia(arch: str, point: dict[str, Any], product: str, copy: str, shared_kib: int):
    point = {"HEAD_DIM": 128, "T": "float16", "PERSISTENT": False, "SPLIT": False} | PLAIN | CAUSAL | point
    compiled = compile_variant(variants(arch, "attention", "flash_attention", **point)[-1])
    assert product in compiled.asm["ptx"] and copy in compiled.asm["ptx"]
    assert compiled.metadata.shared <= shared_kib * 1024


@pytest.mark.slow
@pytest.mark.parametrize(("manifest", "op", "point", "scratch"), (
    ("attention", "mla_prefill", {"CAUSAL": True}, 0), ("decode", "mla_decode", {"WHOLE_BLOCKS": True}, 0),
    ("decode", "mla_decode", {"WHOLE_BLOCKS": False}, 24),  # of the warp that loads
))  # fmt: skip
def test_latent_attention_on_hopper_does_not_spill(manifest: str, op: str, point: dict[str, bool], scratch: int):
    """The warps that multiply use no local memory, while nearly all shared memory of a multiprocessor is taken."""
    found = variants("sm_90", manifest, op, HOPPER=True, T="bfloat16", **point)
    (variant,) = (variant for variant in found if variant.job.function.endswith("_hopper"))
    compiled = compile_variant(variant)
    (metadata,) = read_code_object(compiled.asm["cubin"]).kernels
    assert metadata.scratch_bytes <= scratch and 210 * 1024 < compiled.metadata.shared <= 227 * 1024


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", (64, 128))
@pytest.mark.parametrize("mask", (NO_MASK, CAUSAL), ids=("all", "causal"))
def test_plain_attention_on_hopper_does_not_spill(head_dim: int, mask: dict[str, bool]):
    point = PLAIN | mask | {"HEAD_DIM": head_dim, "T": "bfloat16"}
    (variant,) = variants("sm_90", "attention", "flash_attention", HOPPER=True, **point)
    (metadata,) = read_code_object(compile_variant(variant).asm["cubin"]).kernels
    assert metadata.scratch_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("arch", ("gfx1100", "sm_90"))
def test_modified_scores_compile(arch: str):
    for variant in variants(arch, "attention_mods", HEAD_DIM=64, T="bfloat16", aligned=True):
        compile_variant(variant)
