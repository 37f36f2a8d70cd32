"""Norms: planted faults in their source are noticed by comparison with the references."""

from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from kernels.rows import reference
from kernels.tolerance import assert_close
from tests.ops.sources.kernel_interpreting import NULL, assert_noticed, launch, matrix, planted, poisoned

SOURCE = Path(__file__).parents[3] / "kernels/rows/norm.py"
BLOCK = 64


@dataclass(frozen=True)
class Case:
    cols: int
    subtract_mean: bool = False
    fused: bool = False
    persistent: bool = False
    quantised: bool = False
    zero_centred: bool = False
    dtype: type = np.float32
    null: bool = False  # a bias and a residual that the code allows for are absent


CASES = {
    "rms": Case(50),
    "layer": Case(50, True),
    "layer, zero-centred": Case(50, True, zero_centred=True),
    "fused": Case(50, True, fused=True, dtype=ml_dtypes.bfloat16),
    "persistent": Case(64, True, fused=True, persistent=True),
    "quantised": Case(50, True, quantised=True),
    "nothing added": Case(50, True, null=True),
    "nothing added, persistent": Case(64, persistent=True, null=True),
    "nothing added, long": Case(333, True, null=True),
    "long rms": Case(333, fused=True, dtype=np.float16),
    "long layer": Case(333, True),
    "long, fused": Case(333, True, fused=True),
    "long, quantised": Case(333, True, quantised=True, zero_centred=True),
}

FAULTS = {
    "one too many in the mean": ("(tl.sum(values, 1) / cols)", "(tl.sum(values, 1) / (cols + 1))"),
    "padding in the variance": ("tl.where(inside, values - (tl.sum(values, 1) / cols)[:, None], 0.0)",
                                "values - (tl.sum(values, 1) / cols)[:, None]"),
    "no eps": ("tl.sum(values * values, 1) / cols + eps", "tl.sum(values * values, 1) / cols"),
    "no eps in long rows": ("tl.sum(lane_squares, 0) / cols + eps", "tl.sum(lane_squares, 0) / cols"),
    "zero_centred left out": (" + zero_centred.to(tl.float32)", ""),
    "bias left out": ("tl.load(bias + columns, mask=inside & given(bias), other=0.0).to(tl.float32)", "0.0"),
    "sum not rounded": ("total = rounded.to(tl.float32)", "total += added.to(tl.float32)"),
    "sum not written": ("tl.store(residual.ptr + row * residual.stride_rows + columns, rounded, mask=there)", "pass"),
    "sum written in each pass": ("        if WRITE_BACK:\n", "        if True:\n"),
    "stride of x for the residual": (
        "residual.ptr + row * residual.stride_rows + columns, m", "residual.ptr + row * x.stride_rows + columns, m"
    ),
    "stride of x for out": (
        "out.ptr + row * out.stride_rows + columns, values.to(out.ptr.dtype.element_ty), mask=inside)\n\n\n",
        "out.ptr + row * x.stride_rows + columns, values.to(out.ptr.dtype.element_ty), mask=inside)\n\n\n",
    ),
    "lanes that have seen less counted as others": ("(cols - block + STEP - 1) // STEP", "(cols + STEP - 1) // STEP"),
    "lanes not joined": ("lane_squares += lane_count * (lane_mean - mean) * (lane_mean - mean)", "pass"),
    "Welford's second factor": ("delta * (values - lane_mean)", "delta * delta"),
    "padding in the lanes": ("tl.where(inside, values - lane_mean, 0.0)", "values - lane_mean"),
    "a row left out": ("(0) * ROWS, rows, step", "(0) * ROWS, rows - 1, step"),
    "a next row left out": ("(row + step < rows)", "(row + step < rows - 1)"),
    "the first row again": ("values, added = next_values, next_added", "pass"),
    "scale of one column": ("tl.where(inside, tl.abs(values), 0.0)", "tl.where(columns < 1, tl.abs(values), 0.0)"),
    "scale without sign": ("tl.where(inside, tl.abs((values - mean)", "tl.where(inside, ((values - mean)"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_matches_reference(interpreter: Executor, name: str):
    check(interpreter, SOURCE, CASES[name])


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_noticed(interpreter: Executor, fault: str, tmp_path: Path):
    mutant = planted(SOURCE, *FAULTS[fault], tmp_path / "norm.py")
    assert_noticed(partial(check, interpreter, mutant), CASES.values())


def check(interpreter: Executor, source: Path, case: Case) -> None:
    rng = np.random.default_rng(0)
    rows, eps = 5, 0.25
    x, added = ((3 + rng.standard_normal((rows, case.cols))).astype(case.dtype) for _ in range(2))
    x[:, 1] -= 12  # the largest magnitude is a negative number's
    weight, bias = (rng.standard_normal(case.cols).astype(case.dtype) for _ in range(2))
    weight[1] = 1.5
    out = np.zeros(x.shape, np.int8) if case.quantised else np.full_like(x, np.nan)
    tensors = {"x": poisoned(x, padding=3), "weight": poisoned(weight), "out": as_output(out)}
    options = {"eps": eps, "zero_centred": case.zero_centred}
    given = {"x": x, "weight": weight} | ({"out": out} if case.quantised else {})
    if case.null:
        tensors |= {"bias": NULL, "residual": NULL}
    elif case.subtract_mean:
        tensors["bias"] = poisoned(bias)
        given["bias"] = bias
    if case.fused:
        tensors["residual"] = poisoned(added, padding=5)
        given["residual"] = added
    if case.quantised:
        tensors["row_scales"] = poisoned(np.full(rows, np.nan, np.float32))
    after = run(interpreter, source, case, tensors, options)

    name = ("layer_norm" if case.subtract_mean else "rms_norm") + ("_quantised" if case.quantised else "")
    exact, same = (getattr(reference, f"{name}{suffix}")(**given, **options) for suffix in ("", "_same_dtype"))
    names = ["out", "row_scales"] if case.quantised else ["residual", "out"] if case.fused else ["out"]
    for result, wanted, like in zip(names, as_tuple(exact), as_tuple(same), strict=True):
        assert_close(after[result].view, wanted, like, 2e-6, result)
    if not case.quantised:
        assert np.isnan(after["out"].surroundings().astype(np.float32)).all(), "written beside out"


def as_output(out: np.ndarray):
    with np.errstate(invalid="ignore"):  # NaN becomes some int8
        return poisoned(out, padding=7)


def as_tuple(results: np.ndarray | tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return results if isinstance(results, tuple) else (results,)


def run(interpreter: Executor, source: Path, case: Case, tensors: dict, options: dict) -> dict:
    rows = tensors["x"].shape[0]
    arguments = options | {"cols": case.cols, "LARGEST": 127.0, "SUBTRACT_MEAN": case.subtract_mean}
    arguments |= {"HAS_RESIDUAL": "residual" in tensors}
    for name, tensor in tensors.items():
        arguments |= matrix(name, tensor) if name in ("x", "out", "residual") else {name: tensor}
    if case.cols > BLOCK:
        kernel, grid = "norm_long_rows", (rows,)
        arguments |= {"STEP": BLOCK}
    else:
        kernel, grid = "norm_rows", (2,) if case.persistent else (-(-rows // 2),)
        arguments |= {"rows": rows, "BLOCK": BLOCK, "ROWS": 2, "PERSISTENT": case.persistent}
    after = interpreter.submit(launch, source, kernel, grid, arguments).result()
    return {name.removesuffix(".ptr"): tensor for name, tensor in after.items()}
