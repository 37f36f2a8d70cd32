"""Bundles of captured kernels: from a program's launches to what their gfx942 code computes from numpy and C."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.capture.bundle import manifest_of
from aot.capture.kernel_files import KernelFiles, UnsupportedError
from aot_capture.records import Aggregate, Autotune, Capture, append, read_capture
from aot_runtime import ArgumentError, Bundle, NoVariantError, open_bundle
from tests.docs.scripts import ROOT
from tests.support.c_interface.calling import ARGUMENT, NO_VARIANT, PlannedInC, tensor
from tests.support.emulation.bundling import strict_device
from tests.support.session_builds import build_here, session_cache

PROGRAM = Path(__file__).parent / "program"
X = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
PLAIN: dict[str, Any] = {"alpha": 2.0, "BLOCK": 128, "F": "none"}


@pytest.fixture(scope="module")
def capture_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captured")
    shutil.copytree(PROGRAM, folder, dirs_exist_ok=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON", "AOT_"))}
    path = os.pathsep.join(map(str, (ROOT, ROOT / "runtime")))
    command = [sys.executable, "-m", "aot", "capture", "-o", "ops.jsonl", "--arch", "gfx942", "--", sys.executable]
    result = subprocess.run(
        [*command, "serve.py"],
        cwd=folder, capture_output=True, text=True,
        env={**clean, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(folder / "cache")},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    _note_timings(folder / "ops.jsonl")
    return folder / "ops.jsonl"


def _note_timings(path: Path) -> None:
    """Add the results of an autotuner, which needs a GPU for them: blocks of 64 win for all keys but one."""
    kernel = next(kernel for kernel in read_capture(path).kernels if kernel.name == "fill")
    configs = [
        [{"kwargs": {"dict": [["BLOCK", block]]}, "num_warps": warps, "num_stages": 3}, [1.0], f"BLOCK: {block}", False]
        for block, warps in ((32, 1), (64, 2))
    ]
    for n, best in ((640, 1), (100, 0), (960, 1)):
        key = {"tuple": [n, "torch.float32"]}
        append(str(path), Autotune(kernel.function, "fill", key, configs[best][2], configs, 0.1, False))


@pytest.fixture(scope="module")
def folder(capture_file: Path) -> Path:
    """The folder of the bundle."""
    made = manifest_of(capture_file, capture_file.parent / "kernels")
    assert made.left_out == ()
    output = capture_file.parent / "dist"
    result = build_here([str(made.path), "--arch", "gfx942", "-o", str(output), "--cache-dir", str(session_cache())])
    assert result.exit_code == 0, result.output
    return output / "ops-gfx942"


@pytest.fixture(scope="module")
def ops(folder: Path) -> Bundle:
    return open_bundle(folder, device=strict_device())


def test_an_op_has_the_arguments_of_the_kernel(ops: Bundle):
    assert ops.ops == ("add", "negate", "fill", "pair_sum")
    add = next(op for op in ops.index.ops if op.name == "add")
    assert [item.name for item in add.tensors] == ["x", "bias", "out"] and all(item.pointer for item in add.tensors)
    assert [item.role for item in add.tensors] == ["input", "input", "inout"]
    assert {item.name: item.type for item in add.scalars} == {
        "n": "i32", "stride": "i64", "alpha": "fp32", "BLOCK": "i32", "F": "choice",
    }  # fmt: skip
    assert "of any shape" in str(ops.add.__doc__) and "not checked" in str(ops.add.__doc__)


def test_numbers_from_numpy(ops: Bundle):
    out = np.zeros((16, 64), np.float32)
    assert ops.add(X, out=out, n=1024, stride=1, **PLAIN) is None
    np.testing.assert_array_equal(out.ravel(), X[:1024] * 2 * 3)
    half = X.astype(np.float16)
    result = np.zeros(1024, np.float16)
    ops.add(half, bias=X, out=result, n=1024, stride=3, alpha=0.5, BLOCK=128, F="relu")
    expected = np.maximum(half[:3072:3].astype(np.float32) * 0.5 * 3 + X[:1024], 0).astype(np.float16)
    np.testing.assert_array_equal(result, expected)
    ops.pair_sum(half, out, pair_1=3, stride=16, BLOCK=64, grid_x=1)
    np.testing.assert_array_equal(out[0], half[:64].astype(np.float32) + 3)


def test_the_most_specialised_variant_that_is_right(ops: Bundle):
    out = np.zeros(1024, np.float32)

    def variant(**call: Any) -> dict[str, str]:
        layouts = {name: ops.device.array(value).layout for name, value in {"x": X, "out": out}.items()}
        decision = ops.add.__func__.decide({**layouts, "bias": None}, {**PLAIN, **call})
        (launch,) = decision.launches
        assert launch.grid == (-(-call["n"] // 128), 1, 1)
        return {arg.name: arg.type for arg in launch.variant.kernargs} | {"config": launch.tried[-1].config.when}

    aligned, ragged = variant(n=512, stride=1), variant(n=500, stride=1)
    assert "n % 16 == 0" in aligned["config"] and "n % 16" not in ragged["config"]
    assert "stride" not in aligned  # a stride of 1 is compiled in
    with pytest.raises(NoVariantError, match=r"v\d needs stride == 1; given: stride=2") as refused:
        variant(n=500, stride=2)
    assert "v" in str(refused.value)


def test_calls_that_were_not_captured_are_refused(ops: Bundle):
    out = np.zeros(1024, np.float32)
    for wrong in ({"BLOCK": 256}, {"F": "relu"}, {"stride": 2}):
        with pytest.raises(NoVariantError):
            ops.add(X, out=out, **{"n": 1024, "stride": 1, **PLAIN, **wrong})
    odd = ops.device.array(X)[1:]
    with pytest.raises(NoVariantError, match=r"needs is_aligned\(x\)"):
        ops.add(odd, ops.device.array(out), n=1000, stride=1, **PLAIN)
    with pytest.raises(NoVariantError, match="v3 needs T == 'float32'; given: T=float16"):
        ops.add(X.astype(np.float16), out.astype(np.float16), n=1000, stride=1, **PLAIN)
    with pytest.raises(ArgumentError, match="'x' is float64; allowed"):
        ops.add(X.astype(np.float64), out, n=1000, stride=1, **PLAIN)
    with pytest.raises(ArgumentError, match="'x' has gaps or repeated elements"):
        ops.add(X[::2], out, n=1000, stride=1, **PLAIN)
    out.flags.writeable = False
    with pytest.raises(ArgumentError, match="'out' is written to, but is read-only"):
        ops.add(X, out, n=1000, stride=1, **PLAIN)


def test_pointers_may_overlap_on_a_device(ops: Bundle):
    both = ops.device.array(X)
    ops.add(both[:2048], both[1024:], n=1024, stride=1, **PLAIN)
    np.testing.assert_array_equal(both.numpy()[1024:2048], X[:1024] * 2 * 3)


def test_a_heuristic_is_computed_and_guards_its_variant(ops: Bundle):
    values = X.copy()
    ops.negate(values, n=512, BLOCK=256, grid_x=2)
    np.testing.assert_array_equal(values, np.concatenate([X[:512] * -2, X[512:]]))
    with pytest.raises(NoVariantError, match="n % BLOCK == 0"):
        ops.negate(values, n=208, BLOCK=256, grid_x=1)


def test_an_autotuner_chooses_by_its_key_and_the_grid_follows(ops: Bundle):
    def config(n: int) -> tuple[int, int]:
        layout = ops.device.array(X).layout
        (launch,) = ops.fill.__func__.decide({"out": layout}, {"n": n, "value": 1.5}).launches
        return launch.grid[0], launch.variant.num_warps

    assert config(640) == config(640) == (10, 2)
    assert config(100) == (4, 1)
    assert config(128) == (2, 2)  # not captured: the config that won most often
    out = np.zeros(4096, np.float32)
    ops.fill(out, n=100, value=1.5)
    assert (out[:100] == 1.5).all() and not out[100:].any()


def test_the_same_plans_in_c(ops: Bundle, tmp_path: Path):
    planned = PlannedInC(ops.index, tmp_path)
    ptr = {name: tensor(1 << 20, "float32", (4, 5), (10, 1)) for name in ("x", "out")}
    call = {"n": 1000, "stride": 1, **PLAIN}
    layouts = {name: ops.device.array(np.zeros((4, 5), np.float32)).layout for name in ptr}
    (expected,) = ops.add.__func__.decide({**layouts, "bias": None}, call).launches
    found = planned.plan("add", ptr, call, 304, 8)
    assert expected.variant.symbol in str(found) and str(list(expected.grid)) in str(found)
    assert planned.plan("add", ptr, {**call, "stride": 2}, 304, 8)[0] == NO_VARIANT
    odd = {**ptr, "x": tensor((1 << 20) + 4, "float32", (4,), (1,))}
    far = {**ptr, "x": tensor(1 << 20, "float32", (1 << 30,), (1,))}
    backwards = {**ptr, "x": tensor(1 << 20, "float32", (8,), (-1,))}
    for tensors in (odd, far, backwards):
        assert planned.plan("add", tensors, call, 304, 8)[0] == NO_VARIANT
    assert planned.plan("add", {**ptr, "x": tensor(0, "float32", (4,), (1,))}, call, 304, 8)[0] == ARGUMENT
    assert planned.plan("add", {**ptr, "x": tensor(1 << 20, "float64", (4,), (1,))}, call, 304, 8)[0] == ARGUMENT
    same = {"x": ptr["x"], "out": ptr["x"]}
    assert expected.variant.symbol in str(planned.plan("add", same, call, 304, 8))


def test_files_have_the_functions_as_they_were(capture_file: Path, folder: Path):
    text = (capture_file.parent / "kernels/captured_main.py").read_text()
    assert "def add(x, bias, out, n, stride, alpha" in text and "from captured_helpers import relu" not in text
    assert "def relu" in (capture_file.parent / "kernels/captured_helpers.py").read_text()


def test_what_cannot_be_an_op_is_named(capture_file: Path, tmp_path: Path):
    capture = read_capture(capture_file)
    fill = next(kernel for kernel in capture.kernels if kernel.name == "fill")
    function = capture.functions[fill.function]
    path = str(tmp_path / "k.jsonl")
    append(path, capture.installations[0])
    append(path, replace(function, source=None, raw_source=None, source_sha256="0"))
    append(path, fill)
    made = manifest_of(path, tmp_path / "out")
    assert made.left_out == ("fill: the source of 'fill' was not recorded (--no-source)",)


@pytest.mark.parametrize(
    ("kernel", "function", "reason"),
    [
        ({"signature": {"out": "tensordesc<fp16[64, 64]>"}}, {}, "parameter 'out' of 'fill' is tensordesc<fp16"),
        ({}, {"refers": {"Pair": {"aggregate": "m:Pair:0"}}}, "'fill' reads 'Pair': a value of kind 'aggregate'"),
        ({}, {"type": "marked"}, "'fill' is Python code that kernels call as a builtin of Triton"),
    ],
)
def test_kernels_that_bundles_do_not_support_are_named(
    kernel: dict[str, Any], function: dict[str, Any], reason: str, capture_file: Path, tmp_path: Path
):
    capture = read_capture(capture_file)
    fill = next(kernel for kernel in capture.kernels if kernel.name == "fill")
    path = str(tmp_path / "k.jsonl")
    append(path, capture.installations[0])
    append(path, Aggregate("m:Pair:0", "m", "Pair", {}, {}, {}))
    append(path, replace(capture.functions[fill.function], **function))
    append(path, replace(fill, **{name: {**fill.signature, **value} for name, value in kernel.items()}))
    (left_out,) = manifest_of(path, tmp_path / "out").left_out
    assert left_out.startswith(f"fill: {reason}")


@pytest.mark.parametrize(
    "value",
    [
        {"import": ["os", "system"]},
        {"import": ["builtins", "eval"]},
        {"import": ["triton", "x; import os"]},
        {"module": "os"},
        {"module": "triton; import os"},
        {"enum": ["m", "E", "A", 1, "IntEnum; import os"]},
        {"dataclass": ["os", "stat_result", {}, {}]},
        {"constexpr": {"import": ["subprocess", "run"]}},
        {"unheard": 1},
    ],
)
def test_values_of_a_hostile_capture_are_refused(capture_file: Path, value: Any):
    capture = read_capture(capture_file)
    (function,) = (item for item in capture.functions.values() if item.name == "halve")
    hostile = replace(function, refers={"name": value})
    files = KernelFiles(Capture("k", functions={function.id: hostile}))
    with pytest.raises(UnsupportedError):
        files.place(function.id)
    assert "import os" not in str(files.texts())


def test_random_calls_of_pointers_are_refused(capture_file: Path, folder: Path):
    result = build_here(["check", str(capture_file.parent / "kernels/manifest.yaml"), "--quiet"])
    assert result.exit_code == 1
    assert "op 'add' takes pointers (x, bias, out): no manifest says how far it reads" in result.output
