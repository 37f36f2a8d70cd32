"""Functions as constexprs, outputs without an axis, offsets: from the manifest to the numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from aot_runtime import ArgumentError, Bundle, open_bundle
from aot_runtime.contract import records
from aot_runtime.contract.validate import structure_faults

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def apply(x, starts, out, largest, rows, cols, stride_x_rows, stride_out_rows, FUNCTION: tl.constexpr,
          BLOCK: tl.constexpr, a_0=None, a_1=None, OPERANDS: tl.constexpr = 0):
    first, last = tl.load(starts + tl.program_id(0)), tl.load(starts + tl.program_id(0) + 1)
    first, last = tl.maximum(first, 0), tl.minimum(last, rows)
    columns = tl.arange(0, BLOCK)
    for row in range(first, last):
        value = tl.load(x + row * stride_x_rows + columns, mask=columns < cols, other=0.0)
        value = FUNCTION(value, columns, *(a_0, a_1)[:OPERANDS])
        tl.store(out + row * stride_out_rows + columns, value, mask=columns < cols)
        if largest.to(tl.int64) != 0:
            tl.store(largest + row, tl.max(tl.where(columns < cols, value, float("-inf")), 0))
"""
FUNCTIONS = """
import triton
import triton.language as tl

TWO = tl.constexpr(2.0)


@triton.jit
def twice(value, column):
    return value * TWO


@triton.jit
def weighted(value, column, weights, shift):
    return value * tl.load(weights + column, mask=column < 5, other=0.0) + shift


def plain(value, column):
    return value
"""
OP = """
  {name}:
    tuning: apply
    tensors:
      x: {{shape: [rows, cols], dtype: float32}}
      starts: {{shape: [parts + 1], dtype: int32, align: false, offsets: {{into: rows, longest: longest}}}}
      {tensors}
      out: {{shape: [rows, cols], dtype: float32, role: output}}
      largest: {{shape: [rows], dtype: float32, role: output, when: return_largest, nullable: true}}
    scalars:
      longest: {{type: i32, default: rows}}
      shift: {{type: fp32, default: 0}}
      return_largest: {{type: flag, default: false}}
    dims: {{cols: {{max: 32}}}}
    constexprs:
      BLOCK: {{values: [16, 32], pick: smallest >= cols}}
    launches:
      - kernel: apply.py:apply
        grid: [parts]
        bind: {{{bind}}}
"""
TUNING = """\
tuning:
  - arch: [gfx942]
    modelled: {by: registers}
    launches: {apply: [{name: config0, options: {num_warps: 2}}]}
"""
MANIFEST = "bundle: applied\nops:\n" + "".join(
    OP.format(name=name, tensors=tensors, bind=bind)
    for name, tensors, bind in (
        ("twice", "", "FUNCTION: functions.py:twice"),
        ("weighted", "weights: {shape: [cols], dtype: float32}",
         "FUNCTION: functions.py:weighted, OPERANDS: 2, a_0: weights, a_1: shift"),
    )
)  # fmt: skip


def write(folder: Path, manifest: str = MANIFEST, functions: str = FUNCTIONS) -> Path:
    (folder / "tuning").mkdir(parents=True, exist_ok=True)
    (folder / "apply.py").write_text(KERNEL)
    (folder / "functions.py").write_text(functions)
    (folder / "applied.yaml").write_text(manifest)
    (folder / "tuning/apply.yaml").write_text(TUNING)
    return folder / "applied.yaml"


def build(manifest: Path, *options: str) -> Result:
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from aot.cli import main

    folder = manifest.parent
    places = ["-o", str(folder / "dist"), "--cache-dir", str(folder / "cache"), "--jobs", "1"]
    return CliRunner().invoke(main, ["--arch", "gfx942", str(manifest), *places, *options])


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("applied")
    result = build(write(folder))
    assert result.exit_code == 0, result.output
    return open_bundle(folder / "dist/applied-gfx942", device="emulator")


X = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
STARTS = np.array([0, 2, 2, 6], np.int32)


def test_functions_are_inlined(applied: Bundle):
    np.testing.assert_array_equal(applied.twice(X, STARTS), X * 2)
    weights = np.arange(5, dtype=np.float32)
    np.testing.assert_allclose(applied.weighted(X, STARTS, weights, shift=3), X * weights + 3, rtol=1e-6)


def test_an_output_that_is_absent_is_a_null_pointer(applied: Bundle):
    """One variant serves both: it looks at the address."""
    before = applied.twice(X, STARTS)
    result = applied.twice(X, STARTS, return_largest=True)
    np.testing.assert_array_equal(result.out, before)
    np.testing.assert_array_equal(result.largest, before.max(1))
    points = {tuple(variant.axis_values.items()) for variant in applied.index.variants if variant.op == "twice"}
    assert points == {(("BLOCK", 16),), (("BLOCK", 32),)}


def test_a_shared_tuning_file(applied: Bundle):
    assert all(variant.num_warps == 2 for variant in applied.index.variants)


@pytest.mark.parametrize(("starts", "message"), (
    ([0, 4, 2, 6], "'starts' decreases at 2, from 4 to 2"), ([-1, 2, 2, 6], "'starts' begins with -1"),
    ([0, 2, 2, 7], "'starts' ends with 7, but rows is 6"), ([0, 1, 5, 6], "length of 4, but longest is 3"),
))  # fmt: skip
def test_offsets_are_checked_where_the_host_has_them(applied: Bundle, starts: list[int], message: str):
    offsets = np.array(starts, np.int32)
    options = {"longest": 3} if "longest" in message else {}
    with pytest.raises(ArgumentError, match=message):
        applied.twice(X, offsets, **options)
    for _ in range(2):  # the second call has a plan
        with pytest.raises(ArgumentError, match=message):
            applied.twice(applied.device.array(X), offsets, **options)
    applied.twice(X, applied.device.array(offsets), **options)


@pytest.mark.parametrize(("right", "wrong", "message"), (
    ("functions.py:twice", "functions.py:thrice", "functions.py has no function 'thrice'"),
    ("functions.py:twice", "function.py:twice", "file function.py is not in"),
    ("functions.py:twice", "functions.py:plain", "'plain' in functions.py is a function, not a @triton.jit function"),
    ("bind: {FUNCTION: functions.py:twice}", "bind: {FUNCTION: functions.py:twice, rows: functions.py:twice}",
     "'functions.py:twice' is a function, but 'rows' is no constexpr"),
))  # fmt: skip
def test_faults_of_functions(tmp_path: Path, right: str, wrong: str, message: str):
    result = build(write(tmp_path, MANIFEST.replace(right, wrong)), "--dry-run")
    assert result.exit_code == 2 and message in result.output and "applied.yaml:" in result.output, result.output


def test_another_function_is_another_variant(tmp_path: Path):
    """What a function is, and what it names, is in the key of the cache."""
    assert "8 compiled, 0 from the cache" in build(write(tmp_path)).output
    assert "0 compiled, 8 from the cache" in build(write(tmp_path)).output
    for change in (("TWO = tl.constexpr(2.0)", "TWO = tl.constexpr(3.0)"), ("value * TWO", "value + TWO")):
        assert "4 compiled, 4 from the cache" in build(write(tmp_path, functions=FUNCTIONS.replace(*change))).output


@pytest.mark.parametrize(("offsets", "message"), (
    (records.Offsets("row"), "'row' is no dim of a required input, which offsets go into; did you mean 'rows'?"),
    (records.Offsets("parts"), "'parts' is no dim of a required input"),
    (records.Offsets("rows", "longst"), "'longst' is no integer scalar"),
    (records.Offsets("rows", "shift"), "'shift' is no integer scalar"),
))  # fmt: skip
def test_offsets_that_make_no_sense(applied: Bundle, offsets: records.Offsets, message: str):
    """Whoever wrote the bundle: a reader checks it."""
    import msgspec

    op = next(op for op in applied.index.ops if op.name == "twice")
    tensors = [msgspec.structs.replace(t, offsets=offsets) if t.name == "starts" else t for t in op.tensors]
    (fault,) = structure_faults(msgspec.structs.replace(op, tensors=tuple(tensors)))
    assert fault.path[:3] == ("tensors", "starts", "offsets") and message in fault.text
    tensors = [msgspec.structs.replace(t, offsets=records.Offsets("rows")) if t.name == "x" else t for t in op.tensors]
    (fault,) = structure_faults(msgspec.structs.replace(op, tensors=tuple(tensors)))
    assert str(fault) == "tensors.x.offsets: offsets are an input of one dim, of dtype int32 or int64"
