"""Row softmax: its arithmetic on the CPU against float64, planted faults, and its code on each arch."""

from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from kernel_compiling import compile_kernel, instructions, load, resource
from kernel_interpreting import launch, poisoned

from kernels.rows.reference import softmax, softmax_same_dtype
from kernels.tolerance import assert_close

SOURCE = Path(__file__).parents[2] / "kernels/rows/softmax.py"
SOFTMAX = load(SOURCE).softmax_rows
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
    "mostly -inf": Case(8, 333, 64, infinite=0.9),
    "mostly -inf, one pass": Case(8, 60, 64, infinite=0.9),
}

FAULTS = {
    "sum not rescaled": ("lane_sum * _exp(lane_max - origin)", "lane_sum"),
    "lanes not rescaled": ("lane_sum * _exp(lane_max - row_max)", "lane_sum"),
    "no origin in a lane of -inf": ('tl.where(new_max == float("-inf"), 0.0, new_max)', "new_max"),
    "maximum not subtracted": ("_exp(values - tl.max(values, 0))", "_exp(values)"),
    "padding counted": ('mask=columns < cols, other=float("-inf")', "mask=columns < cols, other=0.0"),
    "padding counted, one pass": ('mask=block < cols, other=float("-inf")', "mask=block < cols, other=0.0"),
    "one column too many read": ("mask=columns < cols, other=float", "mask=columns <= cols, other=float"),
    "one column too many written": ("element_ty), mask=columns < cols", "element_ty), mask=columns <= cols"),
    "stride of x for out": ("out += row * stride_out_rows", "out += row * stride_x_rows"),
    "base 2": ("x * LOG2_E", "x"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_matches_reference(interpreter: Executor, name: str):
    check(interpreter, SOURCE, CASES[name])


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_noticed(interpreter: Executor, fault: str, tmp_path: Path):
    right, wrong = FAULTS[fault]
    text = SOURCE.read_text()
    assert text.count(right) == 1, f"the kernel changed: {right!r} occurs {text.count(right)} times"
    mutant = tmp_path / "softmax.py"
    mutant.write_text(text.replace(right, wrong))
    for case in CASES.values():
        try:
            check(interpreter, mutant, case)
        except AssertionError:
            return
    pytest.fail(f"no case noticed: {fault}")


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


def test_general_variant_never_narrows_an_offset():
    ttir = compile_softmax("gfx942", "fp16", 1024, one_pass=False, aligned=False).asm["ttir"]
    assert "i64 to i32" not in ttir
    products = [line for line in ttir.splitlines() if "arith.muli" in line and "%stride_" in line]
    assert len(products) == 2 and all(": i64" in line for line in products)


def compile_softmax(arch: str, dtype: str, block: int, one_pass: bool, aligned: bool):
    types = dict.fromkeys(("x", "out"), f"*{dtype}")
    constexprs = {"BLOCK": block, "ONE_PASS": one_pass}
    return compile_kernel(SOFTMAX, arch, types, constexprs, {"num_warps": 8}, aligned)


def check(interpreter: Executor, source: Path, case: Case) -> None:
    rng = np.random.default_rng(0)
    x = case.magnitude * rng.standard_normal((case.rows, case.cols)) + case.offset
    x[rng.random(x.shape) < case.infinite] = -np.inf
    x[:, case.cols // 2] = case.offset  # no row of nothing but -inf
    x = x.astype(case.dtype)
    exact = softmax(x)
    assert_close(run(interpreter, source, x, case.block), exact, softmax_same_dtype(x), 1e-6 * exact.max())


def run(interpreter: Executor, source: Path, x: np.ndarray, block: int) -> np.ndarray:
    """The result, after checking that nothing beside it was written."""
    tensors = {"x": poisoned(x, padding=3), "out": poisoned(np.full_like(x, np.nan), padding=7)}
    rows, cols = x.shape
    arguments = {
        **tensors, "rows": rows, "cols": cols, "stride_x_rows": tensors["x"].strides[0],
        "stride_out_rows": tensors["out"].strides[0], "BLOCK": block, "ONE_PASS": cols <= block,
    }  # fmt: skip
    after = interpreter.submit(launch, source, "softmax_rows", (rows,), arguments).result()
    for name, tensor in after.items():
        assert np.isnan(tensor.surroundings().astype(np.float32)).all(), f"written beside {name}"
    return after["out"].view
