"""The attention kernel's code objects: it compiles for every arch, and on gfx942 to the instructions it should."""

from pathlib import Path

import pytest
from kernel_compiling import compile_kernel, instructions, load, loops, resource

FORWARD = load(Path(__file__).parents[2] / "kernels/attention/forward.py").attention_forward
GFX942 = {"num_warps": 4, "num_stages": 1, "waves_per_eu": 2}
DENSE = GFX942 | {"llvm_fn_attrs": "amdgpu-sched-strategy=max-ilp"}  # else 128 x 64 x 128 spills at two waves
BLOCKS = {  # arch: BLOCK_M, BLOCK_N, options at head_dim 128
    "gfx90a": (128, 64, DENSE),
    "gfx942": (128, 64, DENSE),
    "gfx950": (128, 64, DENSE),
    "gfx1100": (64, 16, {"num_warps": 8, "num_stages": 1}),
    "gfx1201": (64, 32, {"num_warps": 4, "num_stages": 1}),
    "sm_80": (128, 64, {"num_warps": 8, "num_stages": 2}),
    "sm_90": (128, 64, {"num_warps": 8, "num_stages": 3}),
}
MATRIX_INSTRUCTION = {"gfx9": "v_mfma", "gfx1": "v_wmma"}


def compile_forward(arch, head_dim, block_m, block_n, options, *, dtype="fp16", causal=False, lse=False, padded=False,
                    aligned=True):  # fmt: skip
    types = dict.fromkeys(("q", "k", "v", "out"), f"*{dtype}") | {"lse": "*fp32", "scale": "fp32"}
    constexprs = {"HEAD_DIM": head_dim, "PADDED": padded, "CAUSAL": causal, "RETURN_LSE": lse, "BLOCK_M": block_m,
                  "BLOCK_N": block_n, "NUM_XCDS": 8 if arch in ("gfx942", "gfx950") else 1,
                  "HAS_BF16_CVT": arch in ("gfx950", "sm_80", "sm_90")}  # fmt: skip
    if not lse:
        constexprs |= {"lse": None, "stride_lse_batch": 0, "stride_lse_heads": 0}
    return compile_kernel(FORWARD, arch, types, constexprs, options, aligned)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("arch", BLOCKS)
def test_compiles(arch, causal):
    compiled = compile_forward(arch, 128, *BLOCKS[arch], causal=causal, lse=causal)
    if arch.startswith("gfx"):
        assert any(name.startswith(MATRIX_INSTRUCTION[arch[:4]]) for name in instructions(compiled))
        assert resource(compiled, "vgpr_spill_count") == 0
        assert compiled.metadata.shared <= 65536
    else:
        assert ("wgmma.mma_async" if arch == "sm_90" else "mma.sync") in compiled.asm["ptx"]
        assert "cp.async" in compiled.asm["ptx"]
        assert compiled.metadata.shared <= 163 * 1024


@pytest.mark.parametrize(("causal", "lse"), [(False, False), (True, True)])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_gfx942_loops_load_wide_multiply_and_do_not_spill(dtype, causal, lse):
    compiled = compile_forward("gfx942", 128, *BLOCKS["gfx942"], dtype=dtype, causal=causal, lse=lse)
    assert resource(compiled, "vgpr_spill_count") == 0
    assert resource(compiled, "sgpr_spill_count") == 0
    assert resource(compiled, "private_segment_fixed_size") == 0
    assert resource(compiled, "vgpr_count") <= 256, "fewer than two waves a SIMD"
    assert compiled.metadata.shared <= 65536

    inner = loops(compiled)
    assert len(inner) == 2, "one loop for the blocks that are wholly visible, one for the others"
    for body in inner:
        loads = [name for name in body if name.startswith(("buffer_load", "global_load", "flat_load"))]
        assert loads == ["buffer_load_dwordx4"] * 8  # K and V: 2 x 64 x 128 x 2 bytes by 256 lanes of 16 bytes
        assert sum(name.startswith("v_mfma_f32_32x32x8") for name in body) == 64
        assert not any(name.startswith("scratch") for name in body)
    masks = [sum(name.startswith("v_cndmask") for name in body) for body in inner]
    assert masks[0] == 0 and masks[1] > 0, "the first loop needs no mask"


def test_general_variant_never_narrows_an_offset():
    compiled = compile_forward("gfx942", 128, *BLOCKS["gfx942"], causal=True, lse=True, padded=True, aligned=False)
    ttir = compiled.asm["ttir"]
    assert "i64 to i32" not in ttir
    products = [line for line in ttir.splitlines() if "arith.muli" in line and "%stride_" in line]
    assert products and all(": i64" in line for line in products)


@pytest.mark.parametrize("arch", BLOCKS)
def test_general_padded_variant_compiles(arch):
    _, _, options = BLOCKS[arch]
    compile_forward(arch, 64, 32, 32, options | {"num_warps": 4}, causal=True, lse=True, padded=True, aligned=False)


@pytest.mark.slow
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
@pytest.mark.parametrize("arch", BLOCKS)
def test_every_variant_compiles(arch, head_dim, dtype, causal, padded, aligned):
    blocks = (64, 32) if head_dim < 256 else (32, 16)
    options = {"num_warps": 4, "num_stages": 2 if arch.startswith("sm_") else 1}
    variant = {"dtype": dtype, "causal": causal, "lse": causal, "padded": padded, "aligned": aligned}
    compile_forward(arch, head_dim, *blocks, options, **variant)
