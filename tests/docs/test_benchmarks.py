"""Smoke tests of the benchmarks. Times are not checked."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.docs.scripts import ROOT, run_script
from tests.support.hip_double.double import DoubleLibrary

SUBCOMMANDS = {"gfx942": ("run",)}
BENCHMARKS = sorted(
    path for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in ("measure", "on_gpu", "kernargs")
)


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_help(path: Path, capsys: pytest.CaptureFixture[str]):
    assert ended(path, *SUBCOMMANDS.get(path.stem, ()), "--help") == 0
    assert "default:" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "bundles"), [("launch", 1), ("coldstart", 1), ("attention", 1), ("emulator", 2)])
def test_without_a_bundle(name: str, bundles: int, tmp_path: Path):
    message = ended(ROOT / f"benchmarks/{name}.py", *[str(tmp_path / "nothing")] * bundles)
    assert isinstance(message, str) and message.startswith(f"{name}.py: ")


def ended(script: Path, *arguments: str) -> object:
    """Return the end of `python script arguments…`: its status, or its message for a status of 1."""
    with pytest.raises(SystemExit) as end:
        run_here(script, *arguments)
    return end.value.code


def test_launch(hip_double: DoubleLibrary, rows_bundle: Path):
    script = str(ROOT / "benchmarks/launch.py")
    output = hip_double.run(run_script, str(rows_bundle), script, str(rows_bundle), "--calls", "3", "--rounds", "2")
    named = [line.split("  ")[0] for line in output.splitlines()]
    for way in ("aot_runtime, out=", "aot_runtime, allocating", "driver.prepare(...).run", "raw ctypes loop"):
        assert way in named, output


def test_random_calls(rows_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Each result is written at once, tables can be made of them again, and a call that fails fails alone."""
    results, script = tmp_path / "calls.jsonl", ROOT / "benchmarks/random_calls.py"
    given = [str(rows_bundle), "--seed", "1", "--count", "2"]
    message = ended(script, "all", *given, "--modelled", "--results", str(results))
    assert isinstance(message, str) and message.startswith("rows 1: softmax rows="), "no variant of bfloat16 is built"
    whole = capsys.readouterr().out
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert [line["ours"] > 0 for line in lines] == [True, False]
    run_here(script, "--print", str(results))
    assert capsys.readouterr().out.strip() in whole
    missing = ended(script, "rows,mla", *given, "--plan")
    assert isinstance(missing, str) and "mla_decode" in missing


def run_here(script: Path, *arguments: str) -> None:
    """Run `python script arguments…` in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(script), *arguments])
        patch.syspath_prepend(script.parent)
        runpy.run_path(str(script), run_name="__main__")
