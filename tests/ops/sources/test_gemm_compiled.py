"""The matrix product's code objects: on gfx942 the pinned configs compile to the instructions they should."""

from pathlib import Path

import pytest
import yaml
from triton.compiler import CompiledKernel

from tests.ops.sources.kernel_compiling import compile_kernel, instructions, load, loops, resource

ROOT = Path(__file__).parents[3]
MATMUL = load(ROOT / "kernels/gemm/matmul.py").matmul
OPTIONS = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim")
ROWS = load(ROOT / "kernels/gemm/rows.py").multiply_reduce
PACKED_ROW = load(ROOT / "kernels/gemm/packed.py").packed_row
OUTPUT = {"i8": "i32", "fp8e4b8": "fp16"}
FOLDED = ("stride_a_batch", "stride_b_batch", "stride_e_batch", "bias", "d", "stride_d_batch", "stride_d_m",
          "stride_d_n", "scale_a", "stride_scale_a_m", "scale_b", "stride_scale_b_n", "beta")  # fmt: skip
"""Parameters of what the plain product has not."""


def pinned(op: str, name: str) -> dict:
    """A config of a gfx942 tuning file, over that of the manifest."""
    base = yaml.safe_load((ROOT / "manifests/gemm.yaml").read_text())["ops"][op]["launches"]
    launch = next(launch for launch in base if launch["kernel"].endswith(":matmul"))
    entries = yaml.safe_load((ROOT / f"manifests/tuning/{op}.yaml").read_text())["tuning"]
    tuned = next(entry for entry in entries if "gfx942" in entry["arch"])["launches"]["matmul"]
    found = [config for config in (*launch["configs"], *tuned) if config["name"] == name]
    merged = {key: value for config in found for key, value in flat(config).items()}
    assert merged.keys() > {"BLOCK_M", "num_warps"}, f"{op} has no config {name}"
    return merged


def flat(config: dict) -> dict:
    """What a config sets, blocks and options side by side."""
    return {**config.get("blocks", {}), **config.get("options", {})}


def compile_matmul(
    arch: str, config: dict, dtype: str, b_rows: bool = False, aligned: bool = True, a_rows: bool = True
):
    types = {"a": f"*{dtype}", "b": f"*{dtype}", "e": f"*{OUTPUT.get(dtype, dtype)}"}
    defaults = {param.name: param.default for param in MATMUL.params if param.name in FOLDED}
    constexprs = {key: value for key, value in config.items() if key not in OPTIONS} | defaults
    constexprs |= {"alpha": 1, "activation": 0, "PRECISION": "ieee", "NUM_XCDS": 8, "stride_e_n": 1,
                   "WHOLE_M": aligned and not a_rows, "PERSISTENT": config.get("PERSISTENT", False),
                   "DESCRIPTORS": False, "B_COLUMNS": not b_rows, "SPECIALISED": False}  # fmt: skip
    constexprs |= {"stride_b_n" if b_rows else "stride_b_k": 1, "stride_a_k" if a_rows else "stride_a_m": 1}
    options = {key: value for key, value in config.items() if key in OPTIONS}
    return compile_kernel(MATMUL, arch, types, constexprs, options, aligned)


def hot_loop(compiled: CompiledKernel) -> list[str]:
    """The innermost loop that multiplies."""
    return min((body for body in loops(compiled) if any(name.startswith("v_mfma") for name in body)), key=len)


LARGE = [("matmul", name, dtype, b_rows) for name in ("huge", "wide", "persistent") for dtype in ("fp16", "bf16")
         for b_rows in (False, True)]  # fmt: skip
LARGE += [("integer_matmul", name, "i8", False) for name in ("huge", "wide")]
LARGE += [("batched_matmul", "wide", "fp16", True), ("scaled_matmul", "wide", "fp8e4b8", False),
          ("int8_linear", "wide", "i8", False)]  # fmt: skip


@pytest.mark.parametrize(("op", "name", "dtype", "b_rows"), LARGE)
def test_gfx942_loops_load_wide_multiply_and_do_not_spill(op: str, name: str, dtype: str, b_rows: bool):
    config = pinned(op, name)
    assert config["matrix_instr_nonkdim"] == 16
    compiled = compile_matmul("gfx942", config, dtype, b_rows)
    for field in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size"):
        assert resource(compiled, field) == 0, field
    assert compiled.metadata.shared <= 65536

    body = hot_loop(compiled)
    loads = [name for name in body if name.startswith(("buffer_load", "global_load", "flat_load"))]
    size = 1 if "8" in dtype else 2
    nbytes = (config["BLOCK_M"] + config["BLOCK_N"]) * config["BLOCK_K"] * size
    once = nbytes // (16 * 64 * config["num_warps"])
    assert set(loads) == {"buffer_load_dwordx4"} and len(loads) % once == 0  # more than once if it is unrolled
    reads = {name for name in body if name.startswith("ds_read")}
    assert reads and reads <= {"ds_read_b128", "ds_read_b64", "ds_read2_b64", "ds_read2st64_b64"}
    products = [name for name in body if name.startswith("v_mfma")]
    assert products and all("_16x16x" in name for name in products)
    assert not any(name.startswith(("v_cndmask", "scratch")) for name in body), "a mask, or a spill"


def configs_of(op: str, kernel: str) -> list[dict]:
    """The configs of a kernel in the manifest."""
    launches = yaml.safe_load((ROOT / "manifests/gemm.yaml").read_text())["ops"][op]["launches"]
    base = next(launch for launch in launches if launch["kernel"].endswith(f":{kernel}"))["configs"]
    return [flat(config) for config in base]


@pytest.mark.parametrize("config", configs_of("matmul", "multiply_reduce"), ids=str)
def test_rows_without_matrix_units_do_not_move_between_lanes(config: dict):
    constexprs = {key: value for key, value in config.items() if key not in OPTIONS}
    constexprs |= {"bias": None, "alpha": 1, "activation": 0, "stride_e_n": 1}
    types = {"a": "*fp16", "b": "*fp16", "e": "*fp16"}
    options = {key: value for key, value in config.items() if key in OPTIONS}
    check_stream(compile_kernel(ROWS, "gfx942", types, constexprs, options, True))


@pytest.mark.parametrize("config", configs_of("linear_int4", "packed_row"), ids=str)
@pytest.mark.parametrize("dtype", ("fp16", "bf16"))
def test_rows_of_packed_weights_do_not_move_between_lanes(dtype: str, config: dict):
    constexprs = {key: value for key, value in config.items() if key not in OPTIONS}
    constexprs |= {"zeros": None, "stride_zeros_groups": 0, "codebook": None, "bias": None}
    types = {"x": f"*{dtype}", "w": "*u8", "scales": f"*{dtype}", "e": f"*{dtype}"}
    options = {key: value for key, value in config.items() if key in OPTIONS}
    compiled = compile_kernel(PACKED_ROW, "gfx942", types, constexprs, options, True)
    check_stream(compiled)
    assert not any(name.startswith("v_cvt_f32_ubyte") for name in instructions(compiled)), "codes are converted"


def check_stream(compiled: CompiledKernel) -> None:
    """Weights come 16 bytes at a time, and no loop has LDS, barriers or cross-lane moves."""
    assert resource(compiled, "vgpr_spill_count") == 0 and resource(compiled, "private_segment_fixed_size") == 0
    names = instructions(compiled)
    assert {"global_load_dwordx4", "buffer_load_dwordx4"} & set(names)
    moves = [
        name for body in loops(compiled) for name in body if name.startswith(("ds_", "s_barrier")) or "dpp" in name
    ]
    assert loops(compiled) and not moves


@pytest.mark.parametrize("a_rows", (False, True))
@pytest.mark.parametrize("b_rows", (False, True))
def test_columns_load_wide_too(a_rows: bool, b_rows: bool):
    compiled = compile_matmul("gfx942", pinned("matmul", "middle"), "fp16", b_rows, a_rows=a_rows)
    names = instructions(compiled)
    assert "buffer_load_dwordx4" in names
    body = hot_loop(compiled)
    assert {name for name in body if name.startswith("buffer_load")} == {"buffer_load_dwordx4"}


@pytest.mark.parametrize("a_rows", (False, True))
def test_general_variant_never_narrows_an_offset(a_rows: bool):
    ttir = compile_matmul("gfx942", pinned("matmul", "general"), "fp16", aligned=False, a_rows=a_rows).asm["ttir"]
    assert "i64 to i32" not in ttir
    uses = [line for line in ttir.splitlines() if "%stride_" in line and "tt.func" not in line]
    assert uses and all("i64" in line and "i32" not in line for line in uses)
