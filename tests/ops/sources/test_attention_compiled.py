"""Code objects of manifests/attention.yaml: every arch gets some, and gfx942 the instructions it should."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from aot.compile.kernel_source import kernel_parameters, load_kernel
from aot.plan.bundles import PlannedVariant
from tests.ops.sources.kernel_compiling import (
    MANIFESTS,
    check_resources,
    compile_variant,
    instructions,
    loads_of,
    loops,
    planned,
    resource,
)
from tests.ops.sources.kernel_compiling import variants as planned_variants

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "sm_80", "sm_90")
MATRIX_INSTRUCTION = {"gfx9": "v_mfma", "gfx1": "v_wmma"}
PLAIN: dict[str, Any] = {"PLAIN": True, "PADDED": False, "aligned": True}
MASKS = {"no mask": {"BOUND_LEFT": False, "BOUND_RIGHT": False}, "causal": {"BOUND_LEFT": False, "BOUND_RIGHT": True},
         "window": {"BOUND_LEFT": True, "BOUND_RIGHT": True}}  # fmt: skip


def variants(
    arch: str, op: str = "flash_attention", manifest: str = "attention", **wanted: Any
) -> list[PlannedVariant]:
    return planned_variants(arch, manifest, op, **wanted)


def points() -> list[tuple[str, dict[str, Any]]]:
    """(op, a point's values) for each thing that a call may have besides a plain mask."""
    dense, varlen = "flash_attention", "flash_attention_varlen"
    return [
        (dense, {"PLAIN": True} | MASKS["window"]), (dense, {"HEAD_DIM": 256, "HEAD_DIM_V": 128}),
        (dense, {"PLAIN": False, "V_ROWS": True}), (dense, {"PLAIN": False, "V_ROWS": False}),
        (varlen, {"PLAIN": True} | MASKS["causal"]), (varlen, {"PLAIN": False, "V_ROWS": True}),
    ]  # fmt: skip


@pytest.mark.parametrize("mask", ("no mask", "causal"))
@pytest.mark.parametrize("arch", ARCHS)
def test_compiles(arch: str, mask: str):
    variant = variants(arch, HEAD_DIM=128, T="float16", PERSISTENT=False, **PLAIN, **MASKS[mask])[-1]
    compiled = compile_variant(variant.job)
    if arch.startswith("gfx"):
        assert any(name.startswith(MATRIX_INSTRUCTION[arch[:4]]) for name in instructions(compiled))
        assert resource(compiled, "vgpr_spill_count") == 0
        assert compiled.metadata.shared <= 65536
    else:
        assert ("wgmma.mma_async" if arch == "sm_90" else "mma.sync") in compiled.asm["ptx"]
        assert "cp.async" in compiled.asm["ptx"]
        assert compiled.metadata.shared <= 163 * 1024


@dataclass(frozen=True)
class Loop:
    """The loop over whole blocks of a config: its products, 16-byte loads and most instructions, and most registers."""

    config: str
    vgprs: int
    products: int
    loads: int
    instructions: int


# As with a parameter for each number of a tensor, before there were tuples.
LOOPS = {
    (64, "no mask"): Loop("small", 184, 32, 4, 274),
    (64, "causal"): Loop("small", 188, 32, 4, 274),
    (128, "no mask"): Loop("base", 246, 64, 8, 402),
    (128, "causal"): Loop("base", 250, 64, 8, 402),
}


@pytest.mark.parametrize(("head_dim", "mask"), LOOPS)
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_gfx942_loops_load_wide_multiply_and_do_not_spill(dtype: str, head_dim: int, mask: str):
    expected = LOOPS[head_dim, mask]
    (variant,) = variants("gfx942", HEAD_DIM=head_dim, T=dtype, config=expected.config, **PLAIN, **MASKS[mask])
    compiled = compile_variant(variant.job)
    check_resources(compiled)
    assert resource(compiled, "vgpr_count") <= expected.vgprs

    inner = loops(compiled)
    assert len(inner) == 2, "one loop for the blocks that are wholly visible, one for the others"
    for body in inner:
        assert loads_of(body) == ["buffer_load_dwordx4"] * expected.loads
        assert sum(name.startswith("v_mfma_f32_32x32x8") for name in body) == expected.products
        assert not any(name.startswith("scratch") for name in body)
    assert len(inner[0]) <= expected.instructions
    masks = [sum(name.startswith("v_cndmask") for name in body) for body in inner]
    assert masks[0] == 0 and masks[1] > 0, "the first loop needs no mask"


@pytest.mark.parametrize("name", ("forward:attention_forward", "quantised:attention_quantised", "mla:mla_prefill"))
def test_kernels_have_few_parameters(name: str):
    file, function = name.split(":")
    kernel = load_kernel(MANIFESTS.parent, f"kernels/attention/{file}.py", function)
    assert len(kernel_parameters(kernel)) <= 30


def test_variants_are_few():
    """On gfx942; what few calls ask for is no axis."""
    assert len(planned("gfx942", "attention").variants) <= 240
    for op in ("flash_attention", "flash_attention_varlen"):
        assert len(variants("gfx942", op, PLAIN=False)) <= 36


@pytest.mark.parametrize(("op", "point"), points(), ids=str)
def test_gfx942_features_load_wide_and_do_not_spill(op: str, point: dict[str, Any]):
    """The loop over whole blocks, of the last config that serves the point: that of long sequences."""
    variant = variants("gfx942", op, **({"HEAD_DIM": 128} | point), T="bfloat16", aligned=True)[-1]
    compiled = compile_variant(variant.job)
    check_resources(compiled)
    whole_blocks = next(body for body in loops(compiled) if any(name.startswith("v_mfma") for name in body))
    assert set(loads_of(whole_blocks)) == {"buffer_load_dwordx4"}
    assert not any(name.startswith("scratch") for name in whole_blocks)


QUANTISED = (
    ("flash_attention_int8", {"INT8_P": False, "V_ROWS": True}, "v_mfma_i32_32x32x16_i8"),
    ("flash_attention_int8", {"INT8_P": True, "V_ROWS": False}, "v_mfma_i32_32x32x16_i8"),
    ("flash_attention_int8_kv", {"V_ROWS": True}, "v_mfma_f32_32x32x8_f16"),
    ("flash_attention_fp8", {"V_ROWS": True}, "v_mfma_f32_32x32x16_fp8_fp8"),
    ("flash_attention_fp8", {"V_ROWS": False}, "v_mfma_f32_32x32x16_fp8_fp8"),
)  # fmt: skip


@pytest.mark.parametrize(("op", "point", "product"), QUANTISED, ids=str)
def test_gfx942_8_bit_tensors_load_wide_and_do_not_spill(op: str, point: dict[str, Any], product: str):
    dtype = {"T" if op.endswith("kv") else "O": "float16"}
    bounded = not point["V_ROWS"]
    chosen = variants(
        "gfx942", op, "attention_quantised", HEAD_DIM=128, BOUND_RIGHT=bounded, aligned=True, **dtype, **point
    )
    compiled = compile_variant(chosen[-1].job)
    check_resources(compiled)
    products = [body for body in loops(compiled) if any(name.startswith("v_mfma") for name in body)]
    for body in products[::2] if point.get("INT8_P") else products[:1]:  # those over whole blocks
        assert set(loads_of(body)) == {"buffer_load_dwordx4"}
        assert any(name.startswith(product) for name in body)


@pytest.mark.parametrize("latent", (256, 512))
def test_gfx942_latent_attention_loads_wide_and_does_not_spill(latent: int):
    variant = variants("gfx942", "mla_prefill", LATENT=latent, HEAD_DIM=128, T="bfloat16", CAUSAL=True, PADDED=False)[
        -1
    ]
    compiled = compile_variant(variant.job)
    check_resources(compiled)
    _, whole_blocks, *_ = (body for body in loops(compiled) if any(name.startswith("v_mfma") for name in body))
    loads = loads_of(whole_blocks)
    narrower = 0 if latent == 256 else 1  # of 16 keys at a time, the rotated part is 8 bytes a lane
    assert loads.count("buffer_load_dwordx4") == len(loads) - narrower >= 4
    assert loads.count("buffer_load_dwordx2") == narrower


@pytest.mark.slow
@pytest.mark.parametrize("op", ("flash_attention_int8", "flash_attention_int8_kv", "flash_attention_fp8"))
def test_no_gfx942_variant_of_8_bit_tensors_spills(op: str):
    check_variants(variants("gfx942", op, "attention_quantised"))


@pytest.mark.slow
@pytest.mark.parametrize("op", ("flash_attention", "flash_attention_varlen", "mla_prefill"))
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_no_gfx942_variant_spills(op: str, dtype: str):
    check_variants(variants("gfx942", op, T=dtype))


def check_variants(chosen: list[PlannedVariant]) -> None:
    for variant in chosen:
        try:
            check_resources(compile_variant(variant.job), scalar=variant.spec.aligned)
        except AssertionError as error:
            raise AssertionError(variant.spec.label) from error


def test_general_variant_never_narrows_an_offset():
    for op in ("flash_attention", "flash_attention_varlen"):
        variant = variants("gfx942", op, HEAD_DIM=128, aligned=False)[0]
        ttir = compile_variant(variant.job).asm["ttir"]
        assert "i64 to i32" not in ttir
        products = [line for line in ttir.splitlines() if "arith.muli" in line and ".stride_" in line]
        assert products and all(": i64" in line for line in products)


@pytest.mark.parametrize("arch", ARCHS)
def test_general_variant_compiles(arch: str):
    for op in ("flash_attention", "flash_attention_varlen"):
        compile_variant(variants(arch, op, HEAD_DIM=64, aligned=False)[0].job)


@pytest.mark.parametrize("arch", ("gfx1100", "sm_90"))
def test_mods_compile(arch: str):
    for op in planned(arch, "attention_mods").ops:
        compile_variant(variants(arch, op.name, "attention_mods", HEAD_DIM=64, T="bfloat16", aligned=True)[-1].job)
