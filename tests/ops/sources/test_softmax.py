"""Row softmax: its arithmetic on the CPU against float64, planted faults, and its code on each arch."""

from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from kernels.rows.reference import softmax, softmax_same_dtype
from kernels.tolerance import assert_close
from tests.ops.sources.kernel_compiling import compile_variant, instructions, resource, variants
from tests.ops.sources.kernel_interpreting import NULL, assert_noticed, launch, matrix, planted, poisoned

SOURCE = Path(__file__).parents[3] / "kernels/rows/softmax.py"
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
    null: bool = False  # a mask that the code allows for is absent


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
    "no mask": Case(4, 333, 64, null=True),
    "no mask, one pass": Case(5, 50, 64, null=True),
    "mostly -inf": Case(8, 333, 64, infinite=0.9),
    "mostly -inf, one pass": Case(8, 60, 64, infinite=0.9),
    "persistent": Case(9, 60, 64, persistent=True),
    "persistent, masked": Case(9, 60, 64, masked=0.5, persistent=True),
}

LONG = """\
        inside = columns < cols
        scores = _scores(tl.load(source + columns, mask=inside, other=0.0), mask, row, columns, inside, scale, HAS_MASK)
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
    "stride of x for out": ("target = out.ptr + row * out.stride_rows", "target = out.ptr + row * x.stride_rows"),
    "packed out, one pass": ("tl.store(out.ptr + row * out.stride_rows", "tl.store(out.ptr + row * cols"),
    "a next row left out": ("(following < rows)", "(following < rows - 1)"),
    "the first row again": ("values = next_values", "pass"),
    "scale left out": ("to(tl.float32) * scale", "to(tl.float32)"),
    "mask left out": ("& tl.load(mask.ptr + row * mask.stride_rows + columns, mask=there, other=1)", ""),
    "first row's mask for all": ("mask.ptr + row * mask.stride_rows", "mask.ptr + 0 * row"),
    "an absent mask hides all": ("mask=there, other=1", "mask=there, other=0"),
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
    for dtype, aligned in (("float16", True), ("bfloat16", False), ("float32", False)):
        compile_softmax(arch, dtype, one_pass, aligned)


@pytest.mark.parametrize("one_pass", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gfx942_moves_16_bytes_a_lane(dtype: str, one_pass: bool):
    compiled = compile_softmax("gfx942", dtype, one_pass, aligned=True)
    memory = [name for name in instructions(compiled) if name.startswith(("buffer_", "global_", "flat_"))]
    assert {name for name in memory if "load" in name} == {"buffer_load_dwordx4"}
    assert {name for name in memory if "store" in name} == {"buffer_store_dwordx4"}
    assert resource(compiled, "vgpr_spill_count") == 0


@pytest.mark.parametrize("one_pass", [False, True])
def test_general_variant_never_narrows_an_offset(one_pass: bool):
    ttir = compile_softmax("gfx942", "float16", one_pass, aligned=False).asm["ttir"]
    assert "i64 to i32" not in ttir
    products = [line for line in ttir.splitlines() if "arith.muli" in line and "i64" in line]
    assert len(products) == (3 if one_pass else 4)  # of x, out and the mask, which two loops load


def compile_softmax(arch: str, dtype: str, one_pass: bool, aligned: bool):
    """A shipped variant without a mask, or, in the general specialisation, with or without."""
    block = (8192 if aligned else 4096) if one_pass else 32768 if aligned else 4096
    point = {"T": dtype, "BLOCK": block, "ONE_PASS": one_pass, "HAS_MASK": not aligned}
    (variant,) = variants(arch, "rows", "softmax", aligned=aligned, **point)
    return compile_variant(variant.job)


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
        run(interpreter, source, x, case.block, mask, case.scale, case.persistent, case.null),
        exact, same, 1e-6 * exact.max(),
    )  # fmt: skip


def run(
    interpreter: Executor, source: Path, x: np.ndarray, block: int, mask: np.ndarray | None = None, scale: float = 1.0,
    persistent: bool = False, null: bool = False,
) -> np.ndarray:  # fmt: skip
    """The result, after checking that nothing beside it was written."""
    tensors = {"x": poisoned(x, padding=3), "out": poisoned(np.full_like(x, np.nan), padding=7)}
    rows, cols = x.shape
    arguments = {"cols": cols, "scale": scale, "HAS_MASK": mask is not None or null}
    if mask is not None:
        with np.errstate(invalid="ignore"):  # NaN becomes some integer
            arguments |= matrix("mask", poisoned(mask.astype(np.int8), padding=5))
    elif null:
        arguments |= matrix("mask", replace(NULL, storage=np.empty(0, np.int8)))
    for name, tensor in tensors.items():
        arguments |= matrix(name, tensor)
    if cols <= block:
        arguments |= {"rows": rows, "BLOCK": block, "ROWS": 2, "PERSISTENT": persistent}
        grid = (2,) if persistent else (-(-rows // 2),)
        after = interpreter.submit(launch, source, "softmax_rows", grid, arguments).result()
    else:
        arguments["STEP"] = block
        after = interpreter.submit(launch, source, "softmax_long_rows", (rows,), arguments).result()
    for name in tensors:
        assert np.isnan(after[f"{name}.ptr"].surroundings().astype(np.float32)).all(), f"written beside {name}"
    return after["out.ptr"].view
