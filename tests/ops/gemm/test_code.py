"""The code of matrix products: shipped configs for gfx942 compile to the expected instructions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.kernel_compiling import check_resources, compile_variant, instructions, loads_of, loops, variants

pytestmark = [pytest.mark.on("emulator"), pytest.mark.sampled(2)]

ROWS, COLUMNS = {"A_ROWS": True, "B_ROWS": True}, {"A_ROWS": True, "B_ROWS": False}
HALF = {"T": "float16", "EPILOGUE": "none"}
EIGHT = {"E": "bfloat16", "EPILOGUE": "bias", "B_COLUMNS": True}
LARGE: list[tuple[str, str, dict[str, Any]]] = [
    *(("matmul", "persistent", {"T": dtype, "EPILOGUE": "none"} | layout) for layout in (ROWS, COLUMNS)
      for dtype in ("float16", "bfloat16")),
    ("integer_matmul", "wide", {"T": "int8", "EPILOGUE": "none"} | COLUMNS),
    ("matmul", "persistent", HALF | COLUMNS | {"EPILOGUE": "any"}),
    *(("scaled_matmul", config, EIGHT | {"T": "float8_e4m3fnuz"}) for config in ("wide", "middle", "short")),
    *(("grouped_matmul", config, {"T": "float16", "E": "float16", "B_ROWS": False}) for config in ("wide", "middle")),
    *(("grouped_scaled_matmul", config, {"T": "float8_e4m3fnuz", "E": "bfloat16", "B_COLUMNS": True})
      for config in ("wide", "short")),
    *(("int8_linear", config, {}) for config in ("wide", "middle", "short")),
]  # fmt: skip


def chosen(op: str, kernel: str, config: str, point: dict[str, Any]) -> Any:
    """Return the shipped gfx942 variant of a kernel with this config and these values of axes."""
    found = variants("gfx942", "gemm", op, aligned=True, kernel=kernel, config=config, **point)
    assert len({variant.key for variant in found}) == 1, f"{len(found)} variants of {op}"
    return found[0]


@pytest.mark.parametrize(("op", "config", "point"), LARGE, ids=str)
def test_loops_load_wide_multiply_and_do_not_spill(op: str, config: str, point: dict[str, Any]):
    variant = chosen(op, "grouped_matmul" if op.startswith("grouped") else "matmul", config, point)
    settings: dict[str, Any] = dict(variant.job.constants) | dict(variant.job.options)
    assert settings["matrix_instr_nonkdim"] == 16
    compiled = compile_variant(variant)
    check_resources(compiled)

    body = min(loops(compiled, "v_mfma"), key=len)
    block_m, block_n, block_k = (settings[f"BLOCK_{dim}"] for dim in "MNK")
    size = 1 if "8" in point.get("T", "int8") else 2
    once = (block_m + block_n) * block_k * size // (16 * 64 * settings["num_warps"])
    loads = loads_of(body)
    assert set(loads) == {"buffer_load_dwordx4"} and len(loads) % once == 0  # more than once if it is unrolled
    reads = {name for name in body if name.startswith("ds_read")}
    assert reads and reads <= {"ds_read_b128", "ds_read_b64", "ds_read2_b64", "ds_read2st64_b64"}
    assert all("_16x16x" in name for name in body if name.startswith("v_mfma"))
    assert not any(name.startswith(("v_cndmask", "scratch")) for name in body), "a mask, or a spill"


@pytest.mark.sampled(0)
@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
@pytest.mark.parametrize("kind", ("int8", "float8_e4m3fnuz"))
@pytest.mark.parametrize("config", ("middle", "wide", "groups64", "groups32"))
def test_codes_are_less_zeros_by_words(config: str, kind: str, dtype: str):
    """Nothing is done byte by byte, except what float8 needs."""
    compiled = compile_variant(chosen("linear_int4_a8", "packed_matmul", config, {"Q": kind, "E": dtype}))
    check_resources(compiled)
    body = min(loops(compiled, "v_mfma"), key=len)
    assert not [name for name in body if "u16" in name or name.startswith(("v_bfe_u32", "scratch"))]
    assert ("v_perm_b32" if kind == "int8" else "v_cvt_pk_fp8_f32") in body
    assert "ubyte" not in "".join(name for name in body if name.startswith("v_cvt"))


@pytest.mark.parametrize(("op", "kernel", "config", "point", "converted"), (
    ("matmul", "multiply_reduce", "one", {"T": "float16"}, None),
    ("matmul", "multiply_reduce", "few", {"T": "float16"}, None),
    *(("linear_int4", "packed_row", "base", {"T": dtype, "CODES": codes}, converted)
      for dtype in ("float16", "bfloat16") for codes, converted in (("offset", 0), ("zeros", 4))),
), ids=str)  # fmt: skip
def test_rows_without_matrix_units_do_not_move_between_lanes(
    op: str, kernel: str, config: str, point: dict[str, Any], converted: int | None
):
    """Weights come 16 bytes at a time, and no loop has LDS, barriers or cross-lane moves; few codes are converted."""
    compiled = compile_variant(chosen(op, kernel, config, point))
    check_resources(compiled)
    names = instructions(compiled)
    assert {"global_load_dwordx4", "buffer_load_dwordx4"} & set(names)
    moves = [
        name for body in loops(compiled) for name in body if name.startswith(("ds_", "s_barrier")) or "dpp" in name
    ]
    assert loops(compiled) and not moves
    assert converted is None or sum(name.startswith("v_cvt_f32_ubyte") for name in names) <= converted


@pytest.mark.parametrize("a_rows", (False, True))
@pytest.mark.parametrize("b_rows", (False, True))
def test_columns_load_wide_too(a_rows: bool, b_rows: bool):
    point = HALF | {"A_ROWS": a_rows, "B_ROWS": b_rows}
    compiled = compile_variant(chosen("matmul", "matmul", "persistent", point))
    assert set(loads_of(min(loops(compiled, "v_mfma"), key=len))) == {"buffer_load_dwordx4"}
