"""The matrix product's code objects: on gfx942 the shipped configs compile to the instructions they should."""

import re
from functools import cache

import pytest
from triton.compiler import CompiledKernel

from aot.plan.bundles import PlannedVariant
from tests.ops.sources.kernel_compiling import (
    check_resources,
    compile_variant,
    config_of,
    instructions,
    loads_of,
    loops,
    planned,
    variants,
)

ROWS = {"A_ROWS": True, "B_ROWS": True}
COLUMNS = {"A_ROWS": True, "B_ROWS": False}


def find(op: str, kernel: str, config: str, aligned: bool = True, **point: object) -> PlannedVariant:
    """The shipped gfx942 variant of a kernel with this config and these values of axes."""
    found = [v for v in variants("gfx942", "gemm", op, aligned=aligned, config=config, **point)
             if v.job.function == kernel]  # fmt: skip
    assert len({variant.key for variant in found}) == 1, f"{len(found)} variants of {op}"
    return found[0]


@cache
def compiled(op: str, kernel: str, config: str, aligned: bool = True, **point: object) -> CompiledKernel:
    return compile_variant(find(op, kernel, config, aligned, **point).job)


def setting(variant: PlannedVariant, name: str) -> int:
    """A constexpr or an option of a variant's config."""
    return (dict(variant.job.constants) | dict(variant.job.options))[name]


def hot_loop(code: CompiledKernel) -> list[str]:
    """The innermost loop that multiplies."""
    return min((body for body in loops(code) if any(name.startswith("v_mfma") for name in body)), key=len)


LARGE = [("matmul", name, {"T": dtype, "EPILOGUE": "none", **layout}) for name in ("huge", "wide", "persistent")
         for dtype in ("float16", "bfloat16") for layout in (COLUMNS, ROWS)]  # fmt: skip
LARGE += [("matmul", name, {"T": "float16", "EPILOGUE": "bias", **COLUMNS}) for name in ("huge", "wide")]
LARGE += [("integer_matmul", name, {"T": "int8", "EPILOGUE": "none", **COLUMNS}) for name in ("huge", "wide")]
LARGE += [
    ("matmul", "wide", {"T": "float16", "EPILOGUE": "any", **COLUMNS}),
    ("batched_matmul", "wide", {"T": "float16", "EPILOGUE": "none", **ROWS}),
    ("scaled_matmul", "wide", {"T": "float8_e4m3fnuz", "E": "float16", "EPILOGUE": "bias", "B_COLUMNS": True}),
    ("int8_linear", "wide", {}),
]


@pytest.mark.parametrize(("op", "name", "point"), LARGE, ids=str)
def test_gfx942_loops_load_wide_multiply_and_do_not_spill(op: str, name: str, point: dict):
    variant = find(op, "matmul", name, **point)
    assert setting(variant, "matrix_instr_nonkdim") == 16
    code = compiled(op, "matmul", name, **point)
    check_resources(code)

    body = hot_loop(code)
    block_m, block_n, block_k = (setting(variant, f"BLOCK_{dim}") for dim in "MNK")
    size = 1 if "8" in point.get("T", "int8") else 2
    once = (block_m + block_n) * block_k * size // (16 * 64 * setting(variant, "num_warps"))
    loads = loads_of(body)
    assert set(loads) == {"buffer_load_dwordx4"} and len(loads) % once == 0  # more than once if it is unrolled
    reads = {name for name in body if name.startswith("ds_read")}
    assert reads and reads <= {"ds_read_b128", "ds_read_b64", "ds_read2_b64", "ds_read2st64_b64"}
    products = [name for name in body if name.startswith("v_mfma")]
    assert products and all("_16x16x" in name for name in products)
    assert not any(name.startswith(("v_cndmask", "scratch")) for name in body), "a mask, or a spill"


@pytest.mark.parametrize("config", ("one", "few"))
def test_rows_without_matrix_units_do_not_move_between_lanes(config: str):
    check_stream(compiled("matmul", "multiply_reduce", config, T="float16"))


@pytest.mark.parametrize("codes", ("offset", "zeros"))
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_rows_of_packed_weights_do_not_move_between_lanes(dtype: str, codes: str):
    code = compiled("linear_int4", "packed_row", "base", T=dtype, CODES=codes)
    check_stream(code)
    converted = sum(name.startswith("v_cvt_f32_ubyte") for name in instructions(code))
    assert converted <= (4 if codes == "zeros" else 0), "codes are converted"


def check_stream(code: CompiledKernel) -> None:
    """Weights come 16 bytes at a time, and no loop has LDS, barriers or cross-lane moves."""
    check_resources(code)
    assert {"global_load_dwordx4", "buffer_load_dwordx4"} & set(instructions(code))
    moves = [name for body in loops(code) for name in body if name.startswith(("ds_", "s_barrier")) or "dpp" in name]
    assert loops(code) and not moves


@pytest.mark.parametrize("a_rows", (False, True))
@pytest.mark.parametrize("b_rows", (False, True))
def test_columns_load_wide_too(a_rows: bool, b_rows: bool):
    layout = {"A_ROWS": a_rows, "B_ROWS": b_rows}
    code = compiled("matmul", "matmul", "middle", T="float16", EPILOGUE="none", **layout)
    assert set(loads_of(hot_loop(code))) == {"buffer_load_dwordx4"}


@pytest.mark.parametrize("a_rows", (False, True))
def test_general_variant_never_narrows_an_offset(a_rows: bool):
    ttir = compiled("matmul", "matmul", "general", False, T="float16", A_ROWS=a_rows, B_ROWS=False).asm["ttir"]
    assert "i64 to i32" not in ttir
    head, *body = ttir[ttir.index("tt.func") :].splitlines()
    strides = set(re.findall(r"(%[\w.]+): i64", head))  # the other integers are extents, i32
    uses = [line for line in body if strides & set(re.findall(r"%[\w.]+", line))]
    assert len(strides) == 5 and uses and all("i64" in line and "i32" not in line for line in uses)


def test_every_op_has_few_kernel_parameters():
    """At most 30: tensors, factors and epilogues come as one each."""
    for manifest in ("gemm", "rows"):
        for variant in planned("gfx942", manifest).variants:
            parameters = {name.partition(".")[0] for name, _ in variant.job.signature}
            assert len(parameters) <= 30, f"{variant.job.function}, {config_of(planned('gfx942', manifest), variant)}"
