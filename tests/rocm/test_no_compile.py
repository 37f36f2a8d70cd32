"""A program captured above Triton's own HIP driver, and started again from its cache in another folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from aot.command.programs import SITE
from aot_capture import variables
from aot_capture.records import read_capture
from aot_capture.report import KERNEL, MODULE, read_report

from .programs import ROOT
from .test_triton import ADD, ON_NUMPY, run

pytestmark = pytest.mark.on("rocm")


def start(folder: Path, settings: dict[str, str]) -> None:
    """Run the program with these settings of `aot_capture`."""
    folder.mkdir()
    path = os.pathsep.join([str(SITE), str(ROOT), *sys.path])
    done = run("mi300x", ADD, ON_NUMPY, folder, PYTHONPATH=path, **settings)
    assert done.output == "gfx942 is right\n", done.output + done.errors


def test_a_captured_program_starts_without_compiling(tmp_path: Path):
    """Neither the kernel nor the C module of Triton's driver is compiled."""
    capture, log = tmp_path / "kernels.jsonl", tmp_path / "log"
    start(tmp_path / "first", {variables.CAPTURE: str(capture)})
    found = read_capture(capture)
    kernels = [(kernel.name, kernel.target, kernel.rederived) for kernel in found.kernels]
    assert kernels == [("add", ["hip", "gfx942", 64], True)] and not found.unrecorded

    shipped = (tmp_path / "first/cache").rename(tmp_path / "moved")
    settings = {
        variables.GUARD: variables.RAISE,
        variables.GUARD_CACHE: str(shipped),
        variables.GUARD_KERNELS: str(capture),
        variables.GUARD_LOG: str(log),
        "TRITON_CACHE_MANAGER": variables.MANAGER,
    }
    start(tmp_path / "second", settings)
    report = read_report(str(log))
    assert not report.misses and len(report.of(KERNEL, True)) == 1
    assert [event.name for event in report.of(MODULE, True)] == ["hip_utils"]
