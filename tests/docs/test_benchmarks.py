"""A smoke run of the benchmarks. Times are not looked at."""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from kernels.rows import reference
from tests.docs.scripts import ROOT, run_script
from tests.support.dtypes import BF16
from tests.support.hip_double.double import DoubleLibrary
from tests.support.op_bundles import OpBundles

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
    """Return the end of `python script arguments…`: its status, or its message for a status of 1."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(sys, "argv", [str(script), *arguments])
        patch.syspath_prepend(script.parent)
        runpy.run_path(str(script), run_name="__main__")
    return end.value.code


def test_launch(hip_double: DoubleLibrary, rows_bundle: Path):
    script = str(ROOT / "benchmarks/launch.py")
    output = hip_double.run(run_script, str(rows_bundle), script, str(rows_bundle), "--calls", "3", "--rounds", "2")
    named = [line.split("  ")[0] for line in output.splitlines()]
    for way in ("aot_runtime, out=", "aot_runtime, allocating", "driver.prepare(...).run", "raw ctypes loop"):
        assert way in named, output


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


def test_rows(op_bundles: OpBundles):
    """The measured ops compute the results of the references."""
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


def benchmark(name: str) -> ModuleType:
    """A benchmark as a module, by a name that no other has."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module(f"benchmarks.{name}")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def test_calls_of_peers_fit_the_manifests():
    """benchmarks/gfx942.py; no kernel of a peer is here, so none is built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        cases, building, sources = (
            importlib.import_module(f"peers.{name}") for name in ("cases", "building", "sources")
        )
    for case in cases.cases():
        for way in case.ways:
            folder = building.SHIPPED if way.who == cases.OURS else sources.HERE
            op = yaml.load((folder / f"{way.manifest}.yaml").read_text(), yaml.CSafeLoader)["ops"][way.op]
            assert way.dtypes.keys() == op["dtypes"].keys()
            assert all(way.dtypes[name] in op["dtypes"][name] for name in way.dtypes)
            assert way.scalars.keys() <= op.get("scalars", {}).keys() and way.content.keys() <= op["tensors"].keys()
