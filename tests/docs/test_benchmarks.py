"""The benchmarks run to their end, and each of their ways computes what it should. Times are not looked at."""

from __future__ import annotations

import ast
import importlib
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kernels.rows import reference
from tests.docs.scripts import ROOT, build, run_script
from tests.support.dtypes import BF16
from tests.support.emulation.bundling import on_demand
from tests.support.hip_double.double import DoubleLibrary
from tests.support.op_bundles import OpBundles
from tests.support.session_builds import build_once

SUBCOMMANDS = {"gfx942": ("run",)}
BENCHMARKS = sorted(
    path for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in ("measure", "on_gpu", "kernargs")
)


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_help(path: Path, capsys: pytest.CaptureFixture[str]):
    assert ended(path, *SUBCOMMANDS.get(path.stem, ()), "--help") == 0
    assert "default:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "bundles"), [("launch", 1), ("coldstart", 1), ("attention", 1), ("emulator", 2), ("opening", 1)]
)
def test_without_a_bundle(name: str, bundles: int, tmp_path: Path):
    message = ended(ROOT / f"benchmarks/{name}.py", *[str(tmp_path / "nothing")] * bundles)
    assert isinstance(message, str) and message.startswith(f"{name}.py: ")


def ended(script: Path, *arguments: str) -> object:
    """What a script, run as `python script arguments…` does, ends with: a status, or a message for a status of 1."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(sys, "argv", [str(script), *arguments])
        patch.syspath_prepend(script.parent)
        runpy.run_path(str(script), run_name="__main__")
    return end.value.code


@pytest.mark.slow
def test_opening(rows_bundles: Path):
    bundles = [str(rows_bundles / f"rows-{arch}") for arch in ("gfx942", "sm_90")]
    command = [sys.executable, str(ROOT / "benchmarks/opening.py"), *bundles, "--runs", "1"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split("  ")[0] for line in output.splitlines()[-3:]]
    assert rows == ["folder", "archive", "several architectures"], output


@pytest.mark.slow
def test_build():
    pytest.importorskip("triton")
    manifest = str(ROOT / "tests/support/small/small.yaml")
    command = [sys.executable, str(ROOT / "benchmarks/build.py"), manifest, "--sample", "2", "-j", "2"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rates = [line.split() for line in output.splitlines() if line.startswith("small")]
    assert [row[1:4] for row in rates[:1]] == [["2", "of", "47"]]
    assert all(float(number) > 0 for row in rates for number in row[4:]) and len(rates) == 2


def test_launch(hip_double: DoubleLibrary, rows_bundle: Path):
    script = str(ROOT / "benchmarks/launch.py")
    output = hip_double.run(run_script, str(rows_bundle), script, str(rows_bundle), "--calls", "3", "--rounds", "2")
    named = [line.split("  ")[0] for line in output.splitlines()]
    for way in ("aot_runtime, out=", "aot_runtime, allocating", "driver.prepare(...).run", "raw ctypes loop"):
        assert way in named, output


@pytest.mark.slow
def test_launch_of_several(hip_double: DoubleLibrary, rows_bundle: Path, tmp_path_factory: pytest.TempPathFactory):
    wanted = "op=flash_decode,T=float16,C=float16,HEAD_DIM=128,PADDED=false"
    decode = build_once(tmp_path_factory, "manifests/decode.yaml", wanted) / "decode-gfx942"
    command = [str(rows_bundle), "--decode", str(decode), "--calls", "2", "--rounds", "1"]
    output = hip_double.run(run_emulated, str(ROOT / "benchmarks/launch.py"), *command)
    named = [line.split("  ")[0] for line in output.partition("two launches")[2].splitlines()]
    assert named[-3:] == ["aot_runtime, out=", "aot_runtime, allocating", "raw ctypes loop"], output


def run_emulated(script: str, *arguments: str) -> None:
    """Run a script over the double, with launches on the emulator."""
    from tests.support.emulated_launches import EmulatedLaunches

    launches = EmulatedLaunches(keep=False)  # it holds the callback
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
    del launches


def test_copies(hip_double: DoubleLibrary):
    """Over a device that does its work as late as it may."""
    script = str(ROOT / "benchmarks/copies.py")
    command = [script, "hip:0", "--sizes", "4KiB", "5MiB", "--rounds", "1"]
    source = f"import runpy, sys; sys.path[0], sys.argv = {str(ROOT / 'benchmarks')!r}, {command!r}\n"
    output = hip_double.run_text(
        f"{source}runpy.run_path({script!r}, run_name='__main__')", HIP_DOUBLE_DEFERS=1, HIP_DOUBLE_MEMORY=64 << 20
    )
    rows = [line.rsplit(maxsplit=4) for line in output.splitlines() if "aot_runtime" in line]
    directions = ("to device", "to numpy")
    assert [row[0].split(",")[0] for row in rows] == [f"{n} {way}" for n in ("4 KiB", "5 MiB") for way in directions]
    assert all(float(number) > 0 for row in rows for number in row[1:4])
    assert all((row[4] == "-") == ("to numpy" in row[0]) for row in rows)


@pytest.mark.slow
def test_attention(hip_double: DoubleLibrary, attention_bundle: Path):
    script, shapes = str(ROOT / "benchmarks/attention.py"), ("1x2x64x64", "1x2/1x64x64", "1x2x65x64c")
    output = hip_double.run(
        run_script, str(attention_bundle), script, str(attention_bundle), "--shapes", *shapes, "--rounds", "1"
    )
    rows = [line for line in output.splitlines() if line.startswith("1x2")]
    assert [row.split("  ")[0] for row in rows] == ["1x2x64x64", "1x2/1x64x64", "1x2x65x64 causal"]


@pytest.mark.slow
def test_attention_of_sequences():
    attention = benchmark("attention")
    shapes = [attention.Shape.parse(text) for text in ("2x1x20x64", "2x1x20x64v", "2x1x20x64csa")]
    bundle = on_demand("attention")
    *_, varlen, features = attention.report(bundle, shapes, "float16", rounds=1).splitlines()
    assert varlen.startswith("2x1x20x64 varlen  ") and features.startswith("2x1x20x64 causal soft-cap ALiBi  ")


@pytest.mark.slow
def test_emulator(attention_bundle: Path, tmp_path: Path):
    emulated = build(ROOT / "benchmarks/emulated/manifest.yaml", tmp_path)
    small = ("--size", "64", "--seqlen", "64", "--rounds", "1")
    command = [sys.executable, str(ROOT / "benchmarks/emulator.py"), str(attention_bundle), str(emulated), *small]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.rsplit(maxsplit=4) for line in output.splitlines() if line.startswith(("matmul", "attention"))]
    modes = ("lockstep", "serial", "strict", "profile")
    assert [row[0].split(", ")[1] for row in rows] == [*modes, *modes]
    assert len({row[1] for row in rows[:4]}) == len({row[1] for row in rows[4:]}) == 1  # instructions
    assert all(float(number) > 0 for row in rows for number in row[2:]) and "first launch" in output


def test_the_emulators_modes_are_compared():
    emulator = benchmark("emulator")
    calls = {"lockstep": lambda: np.zeros(3), "serial": lambda: np.ones(3)}
    with pytest.raises(emulator.WrongResultError, match="product: serial gives another result than lockstep"):
        emulator.check(emulator.Workload("product", {}, calls))


def test_rows(op_bundles: OpBundles):
    """What is measured is what the references compute."""
    rows, measured, rng = op_bundles.open("rows"), benchmark("rows"), np.random.default_rng(0)
    shapes = {"x": (2, 1024), "y": (2, 1024), "sum": (2, 1024), "weight": (1024,), "bias": (1024,)}
    given = {name: rng.standard_normal(shape).astype(BF16) for name, shape in shapes.items()}
    x, weight = given["x"], given["weight"]
    wanted = {
        "softmax": reference.softmax_same_dtype(x),
        "rms_norm": reference.rms_norm_same_dtype(x, weight, eps=measured.EPS),
        "layer_norm": reference.layer_norm_same_dtype(x, weight, given["bias"], eps=measured.EPS),
        "add_rms_norm": reference.rms_norm_same_dtype(x, weight, given["sum"], eps=measured.EPS)[1],
        "silu_mul": reference.silu_mul_same_dtype(x, given["y"]),
    }
    assert wanted.keys() == measured.OPS.keys()
    for name, result in wanted.items():
        arrays = {key: rows.device.array(host) for key, host in given.items()}
        inputs = measured.Inputs({}, arrays, rows.device.empty(x.shape, BF16))
        measured.OPS[name].ours(rows, inputs)()
        found = inputs.out.numpy().astype(np.float32)
        assert np.allclose(found, result.astype(np.float32), rtol=2**-7, atol=2**-7), name


@pytest.mark.slow
def test_llama(op_bundles: OpBundles, tmp_path: Path):
    llama, measured = op_bundles.open("llama"), benchmark("llama")
    shape = ("--size", "tiny", "--batches", "2", "--prompt", "3", "--tokens", "4")
    options = measured.options_of([str(llama.path), *shape, "--no-transformers", "--no-gptq", "--rounds", "1"])
    heading, *rows = measured.report(llama, tmp_path, options).splitlines()
    assert [row.split("  ")[0] for row in rows] == ["dense, batch 2"]
    assert all(float(number) >= 0 for row in rows for number in row.split()[3:-1]) and "tokens/s" in heading
    _, *rows = measured.report_by_op(llama, tmp_path, options).splitlines()
    calls = {row.split(": ")[1].rsplit(maxsplit=3)[0]: row.split()[-3] for row in rows}
    assert calls["advance 2x7"] == "1" and calls["matmul 128x512"] == "4" and calls["paged_attention 2x64x2x64"] == "2"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float8", "float8_blocks", "int8", "int8_weights", "int4"])
def test_weights_of_experts(op_bundles: OpBundles, kind: str):
    """The op of each kind takes them, and its results are of about 1."""
    moe, measured, rng = op_bundles.open("moe"), benchmark("moe"), np.random.default_rng(0)
    made = (
        measured.random_weights(moe, kind, name, (2, rows, 128), BF16)
        for name, rows in (("gate_up", 256), ("down", 128))
    )
    weights = {name: array for arrays in made for name, array in arrays.items()}
    x, chosen = rng.standard_normal((3, 128)).astype(BF16), np.array([[0, 1]] * 3, np.int32)
    found = getattr(moe, measured.KINDS[kind][0])(x, **weights, weights=np.ones((3, 2), np.float32), chosen=chosen)
    assert 0.1 < np.abs(found.astype(np.float32)).mean() < 2


def test_assignments_of_experts_in_blocks():
    chosen = np.array([[2, 0], [2, 3]] * 20)
    ids, experts, count = benchmark("moe").in_blocks(chosen, 5, rows=32)
    assert experts.tolist() == [0, 2, 2, 3] and count.tolist() == [len(ids)] == [128]
    for expert, block in zip(experts, ids.reshape(-1, 32), strict=True):
        assert (chosen.reshape(-1)[block[block < 80]] == expert).all()
    assert sorted(ids[ids < 80]) == list(range(80)) and (ids[ids >= 80] == 80).all()


def test_flops_of_attention():
    shape = benchmark("attention").Shape
    assert shape.parse("4x16x4096x128").flops == 2 * (2 * 4096 * 4096 * 128) * 4 * 16
    assert shape.parse("4x16x4096x128c").flops == 2 * (4096 * 4096 * 128) * 4 * 16
    assert shape.parse("4x16/2x4096x128").flops == 2 * (2 * 4096 * 4096 * 128) * 4 * 16
    varlen = shape.parse("3x16x4096x128v")
    assert varlen.lengths == [2048, 4096, 6144] and varlen.extents(2) == (3 * 4096, 2, 128)
    assert varlen.flops == 2 * (2 * 128) * 16 * (2048**2 + 4096**2 + 6144**2)


@pytest.mark.parametrize("number", [0, 1], ids=["raw ctypes", "aot_runtime"])
def test_cold_start(hip_double: DoubleLibrary, attention_bundle: Path, tmp_path: Path, number: int):
    """Each script gets the result right, and names its phases in order."""
    coldstart = benchmark("coldstart")
    library = hip_double.path.parent.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCM_PATH", str(library))
        ways = coldstart.ways_of(attention_bundle, tmp_path)
    expected = coldstart.write_data(tmp_path)
    script, *arguments = ways[number].arguments
    output = hip_double.run(run_script, str(attention_bundle), script, *arguments)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, atol=5e-3)
    phases = ast.literal_eval(output.splitlines()[-1])
    assert list(phases.values()) == sorted(phases.values()) and len(phases) >= 4


def test_the_jit_gets_every_constexpr(attention_bundle: Path, tmp_path: Path):
    from aot.compile.kernel_source import kernel_parameters, load_kernel

    jit = benchmark("coldstart").ways_of(attention_bundle, tmp_path)[2].arguments
    settings = ast.literal_eval(jit[-1])
    kernel = load_kernel(ROOT, str(Path(jit[2]).relative_to(ROOT)), "attention_forward")
    constexprs = {item.name: item.has_default for item in kernel_parameters(kernel) if item.constexpr}
    assert settings.keys() - constexprs.keys() <= {"num_warps", "num_stages", "waves_per_eu"}
    assert all(name in settings for name, has_default in constexprs.items() if not has_default)


def test_a_cold_start_is_timed_checked_and_reported(tmp_path: Path):
    coldstart = benchmark("coldstart")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time, numpy as np\n"
        "start = time.monotonic()\n"
        "np.save(sys.argv[1], float(sys.argv[2]) * np.ones(3))\n"
        "print({'start': start, 'work': time.monotonic()})"
    )
    wrong, right = (coldstart.Way(name, (str(script), str(tmp_path / "out.npy"), name)) for name in ("2", "1"))
    run = coldstart.run(right, tmp_path, np.ones(3))
    assert run.total == pytest.approx(sum(run.phases.values())) and list(run.phases) == ["start", "work"]
    with pytest.raises(coldstart.RunError, match="wrong result"):
        coldstart.run(wrong, tmp_path, np.ones(3))
    with pytest.raises(coldstart.RunError, match="No such file"):
        coldstart.run(coldstart.Way("absent", (str(tmp_path / "absent.py"),)), tmp_path, np.ones(3))

    def absent() -> None:
        raise coldstart.RunError("not here")

    slow, quick = (coldstart.Run(total, {"start": total}) for total in (0.3, 0.1))
    text = coldstart.report({coldstart.BASE: lambda: quick, "slow": lambda: slow, "absent": absent}, 3)
    assert [line.split() for line in text.splitlines()[1:3]] == [
        ["raw", "ctypes", "100", "1.00"],
        ["slow", "300", "3.00"],
    ]


def benchmark(name: str) -> ModuleType:
    """A benchmark as a module, by a name that no other has."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module(f"benchmarks.{name}")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
