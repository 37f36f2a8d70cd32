"""Row softmax: its arithmetic on the CPU against float64, planted faults, and its code on each arch."""

from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from kernels.rows.reference import softmax, softmax_same_dtype
from kernels.tolerance import assert_close
from tests.ops.sources.kernel_compiling import compile_kernel, instructions, load, resource
from tests.ops.sources.kernel_interpreting import assert_noticed, launch, planted, poisoned

SOURCE = Path(__file__).parents[3] / "kernels/rows/softmax.py"
MODULE = load(SOURCE)
ARCHS = ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "sm_80", "sm_90"]


@dataclass(frozen=True)
class Case:
    rows: int
    cols: int
    block: int
    dtype: type = np.float32
    magnitude: float = 1.0
    offset: float = 0.0
    infinite: float = 0.0  # share of -inf
    scale: float = 1.0
    masked: float = 0.0  # share of columns that a mask hides
    persistent: bool = False


CASES = {
    "one pass": Case(5, 64, 64),
    "one pass, ragged": Case(5, 37, 64),
    "one column": Case(3, 1, 16),
    "one column, two passes": Case(3, 17, 16),
    "two passes": Case(4, 256, 64),
    "two passes, ragged": Case(4, 333, 64),
    "large": Case(4, 333, 64, magnitude=30.0),
    "beyond exp's range": Case(4, 333, 64, magnitude=30.0, offset=500.0),
    "beyond exp's range, one pass": Case(4, 50, 64, magnitude=30.0, offset=-500.0),
    "float16": Case(4, 333, 64, dtype=np.float16, magnitude=4.0),
    "bfloat16": Case(4, 333, 64, dtype=ml_dtypes.bfloat16, magnitude=4.0),
    "bfloat16, one pass": Case(4, 60, 64, dtype=ml_dtypes.bfloat16, magnitude=4.0),
    "scaled": Case(4, 333, 64, scale=-0.3),
    "masked": Case(4, 333, 64, masked=0.5),
    "masked, one pass": Case(5, 50, 64, masked=0.5),
    "mostly -inf": Case(8, 333, 64, infinite=0.9),
    "mostly -inf, one pass": Case(8, 60, 64, infinite=0.9),
    "persistent": Case(9, 60, 64, persistent=True),
    "persistent, masked": Case(9, 60, 64, masked=0.5, persistent=True),
}

LONG = """\
        inside = columns < cols
        scores = _scores(tl.load(x + columns, mask=inside, other=0.0), mask, columns, inside, scale)
"""
FAULTS = {
    "sum not rescaled": ("lane_sum * _exp(lane_max - origin)", "lane_sum"),
    "lanes not rescaled": ("lane_sum * _exp(lane_max - row_max)", "lane_sum"),
    "no origin in a lane of -inf": ('tl.where(new_max == float("-inf"), 0.0, new_max)', "new_max"),
    "maximum not subtracted": ("_exp(scores - tl.max(scores, 1)[:, None])", "_exp(scores)"),
    "padding counted": ('tl.where(inside, values, float("-inf"))', "values"),
    "one column too many": ("    inside = (row < rows) & (columns < cols)",
                            "    inside = (row < rows) & (columns <= cols)"),
    "one column too many read": (LONG + "        new_max", LONG.replace("< cols", "<= cols") + "        new_max"),
    "one column too many written": (LONG + "        p = ", LONG.replace("< cols", "<= cols") + "        p = "),
    "a row left out": ("    inside = (row < rows)", "    inside = (row < rows - 1)"),
    "stride of x for out": ("out += row * stride_out_rows", "out += row * stride_x_rows"),
    "packed out, one pass": ("out + row * stride_out_rows", "out + row * cols"),
    "a next row left out": ("(following < rows)", "(following < rows - 1)"),
    "the first row again": ("values = next_values", "pass"),
    "scale left out": ("to(tl.float32) * scale", "to(tl.float32)"),
    "mask left out": ("inside = inside & tl.load(mask + columns, mask=inside, other=0)", "pass"),
    "first row's mask for all": ("mask += row * stride_mask_rows\n    scores", "mask += 0 * row\n    scores"),
    "base 2": ("x * LOG2_E", "x"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_matches_reference(interpreter: Executor, name: str):
    check(interpreter, SOURCE, CASES[name])


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_noticed(interpreter: Executor, fault: str, tmp_path: Path):
    mutant = planted(SOURCE, *FAULTS[fault], tmp_path / "softmax.py")
    assert_noticed(partial(check, interpreter, mutant), CASES.values())


@pytest.mark.parametrize("block", [64, 16])
@pytest.mark.parametrize("special", [[-np.inf] * 40, [np.inf], [np.nan]])
def test_special_rows_are_nan_and_leave_the_others_alone(interpreter: Executor, block: int, special: list[float]):
    x = np.zeros((3, 40), np.float32)
    x[1, : len(special)] = special
    out = run(interpreter, SOURCE, x, block)
    np.testing.assert_array_equal(np.isnan(out).all(1), [False, True, False])
    np.testing.assert_allclose(out[[0, 2]], 1 / 40, rtol=1e-6)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("one_pass", [False, True])
def test_compiles(arch: str, one_pass: bool):
    for dtype, aligned in (("fp16", True), ("bf16", False), ("fp32", False)):
        compile_softmax(arch, dtype, 4096, one_pass, aligned)


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_gfx942_moves_16_bytes_a_lane(dtype: str, one_pass: bool):
    compiled = compile_softmax("gfx942", dtype, 8192, one_pass, aligned=True)
    memory = [name for name in instructions(compiled) if name.startswith(("buffer_", "global_", "flat_"))]
    assert {name for name in memory if "load" in name} == {"buffer_load_dwordx4"}
    assert {name for name in memory if "store" in name} == {"buffer_store_dwordx4"}
    assert resource(compiled, "vgpr_spill_count") == 0


@pytest.mark.parametrize("one_pass", [False, True])
def test_general_variant_never_narrows_an_offset(one_pass: bool):
    ttir = compile_softmax("gfx942", "fp16", 1024, one_pass, aligned=False).asm["ttir"]
    assert "i64 to i32" not in ttir
    products = [line for line in ttir.splitlines() if "arith.muli" in line and "i64" in line]
    assert len(products) == 2


def compile_softmax(arch: str, dtype: str, block: int, one_pass: bool, aligned: bool):
    types = dict.fromkeys(("x", "out"), f"*{dtype}") | {"scale": "fp32"}
    kernel = MODULE.softmax_rows if one_pass else MODULE.softmax_long_rows
    constexprs = ({"BLOCK": block, "ROWS": 1, "PERSISTENT": False} if one_pass else {"STEP": block}) | {
        "mask": None,
        "stride_mask_rows": 0,
    }
    return compile_kernel(kernel, arch, types, constexprs, {"num_warps": 8}, aligned)


def check(interpreter: Executor, source: Path, case: Case) -> None:
    rng = np.random.default_rng(0)
    x = case.magnitude * rng.standard_normal((case.rows, case.cols)) + case.offset
    x[rng.random(x.shape) < case.infinite] = -np.inf
    x[:, case.cols // 2] = case.offset  # no row of nothing but -inf
    x = x.astype(case.dtype)
    mask = None
    if case.masked:
        mask = rng.random(x.shape) >= case.masked
        mask[:, case.cols // 2] = True
    exact, same = softmax(x, mask, case.scale), softmax_same_dtype(x, mask, case.scale)
    assert_close(
        run(interpreter, source, x, case.block, mask, case.scale, case.persistent), exact, same, 1e-6 * exact.max()
    )


def run(
    interpreter: Executor, source: Path, x: np.ndarray, block: int, mask: np.ndarray | None = None, scale: float = 1.0,
    persistent: bool = False,
) -> np.ndarray:  # fmt: skip
    """The result, after checking that nothing beside it was written."""
    tensors = {"x": poisoned(x, padding=3), "out": poisoned(np.full_like(x, np.nan), padding=7)}
    rows, cols = x.shape
    arguments = {
        **tensors, "cols": cols, "scale": scale, "stride_x_rows": tensors["x"].strides[0],
        "stride_out_rows": tensors["out"].strides[0],
    }  # fmt: skip
    if mask is not None:
        with np.errstate(invalid="ignore"):  # NaN becomes some integer
            arguments["mask"] = poisoned(mask.astype(np.int8), padding=5)
        arguments["stride_mask_rows"] = arguments["mask"].strides[0]
    if cols <= block:
        arguments |= {"rows": rows, "BLOCK": block, "ROWS": 2, "PERSISTENT": persistent}
        grid = (2,) if persistent else (-(-rows // 2),)
        after = interpreter.submit(launch, source, "softmax_rows", grid, arguments).result()
    else:
        arguments["STEP"] = block
        after = interpreter.submit(launch, source, "softmax_long_rows", (rows,), arguments).result()
    for name in tensors:
        assert np.isnan(after[name].surroundings().astype(np.float32)).all(), f"written beside {name}"
    return after["out"].view
