"""Smoke tests of the benchmarks. Times are not checked."""

from __future__ import annotations

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
