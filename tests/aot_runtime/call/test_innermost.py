"""Tensors of which any of several dims may be the innermost: from the manifest to the numbers, on the emulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from aot_runtime import ArgumentError, Bundle, open_bundle

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def copy(x, out, m, k, stride_x_m, stride_x_k, stride_out_m, stride_out_k, BLOCK: tl.constexpr, SHIFT: tl.constexpr = 0,
         bias=None):
    rows, columns = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    inside = (rows < m) & (columns < k)
    value = tl.load(x + rows * stride_x_m + columns * stride_x_k, mask=inside) + SHIFT
    if bias is not None:
        value += 100
    tl.store(out + rows * stride_out_m + columns * stride_out_k, value, mask=inside)
"""
MANIFEST = """
bundle: copies
ops:
  copy:
    reference: reference.py:copy
    tensors:
      x: {shape: [m, k], dtype: float32, innermost: [k, m]}
      out: {shape: [m, k], dtype: float32, role: output, innermost: [m, k]}
    dims: {m: {max: 64}, k: {max: 64}}
    constexprs:
      X_ROWS: {values: [false, true], pick: "innermost(x, k)"}
      OUT_COLUMNS: {values: [false, true], pick: "innermost(out, m)"}
    launches:
      - kernel: copy.py:copy
        grid: [1]
        configs: [{blocks: {BLOCK: 64}}]
    selftest:
      - {name: rows, call: {m: 5, k: 7}}
      - {name: columns, call: {m: 5, k: 7}, innermost: {x: m}}
      - {name: by_position, call: {m: 64, k: 64}, innermost: {x: 0}}
"""
REFERENCE = """
def copy(x):
    return x.astype("float64")


def copy_same_dtype(x):
    return x
"""


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from aot.cli import main

    folder: Path = tmp_path_factory.mktemp("copies")
    (folder / "copy.py").write_text(KERNEL)
    (folder / "m.yaml").write_text(MANIFEST)
    (folder / "reference.py").write_text(REFERENCE)
    result = CliRunner().invoke(
        main, ["--arch", "gfx942", str(folder / "m.yaml"), "-o", str(folder), "--cache-dir", str(folder / "cache")]
    )
    assert result.exit_code == 0, result.output
    return open_bundle(folder / "copies-gfx942", device="emulator")


def test_selftest_cases_say_which(copies: Bundle):
    report = copies.selftest()
    assert report.passed
    assert [result.launches[0].axis_values["X_ROWS"] for result in report.results] == [True, False, False]
    assert [result.launches[0].aligned for result in report.results] == [False, False, True]


@pytest.mark.parametrize("out_rows", (False, True))
@pytest.mark.parametrize("x_rows", (False, True))
@pytest.mark.parametrize("shape", ((48, 32), (33, 21), (1, 32), (48, 1), (1, 1)), ids=str)
def test_either_layout(copies: Bundle, shape: tuple[int, int], x_rows: bool, out_rows: bool):
    x = np.asarray(np.random.default_rng(0).standard_normal(shape), np.float32, order="C" if x_rows else "F")
    out = copies.device.array(np.asarray(np.full(shape, np.nan), np.float32, order="C" if out_rows else "F"))
    copies.copy(x, out=out)
    assert np.array_equal(out.numpy(), x)


def test_a_numpy_array_keeps_its_layout_and_a_new_one_takes_the_first(copies: Bundle):
    x = np.arange(48 * 32, dtype=np.float32).reshape(48, 32)
    for given, strides in ((x, "[32, 1]"), (np.asfortranarray(x), "[1, 48]")):
        assert f"x    float32[48, 32] strides {strides}" in copies.explain("copy", given)
    device = copies.device.array(x)
    assert copies.copy(device).strides == (4, 4 * 48)
    assert copies.copy(device.transpose(1, 0)).strides == (4, 4 * 32)


def test_neither_is_refused(copies: Bundle):
    x = copies.device.array(np.zeros((48, 64), np.float32))[:, ::2]
    with pytest.raises(ArgumentError, match=r"'x' has strides \[64, 2\]; that of dim 1 \(k\) or 0 \(m\) must be 1"):
        copies.copy(x)
