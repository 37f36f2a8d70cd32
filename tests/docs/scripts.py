"""Build bundles, and run scripts unchanged with launches executed by numpy references."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from aot_runtime.contract.records import Variant
from tests.support.hip_double.double import Double, Launch
from tests.support.reference_launches import ReferenceLaunches, device_view
from tests.support.session_builds import ROOT as ROOT
from tests.support.session_builds import build_here


def build(manifest: Path, output: Path, wanted: str = "") -> Path:
    """Build a manifest for gfx942; return the bundle's folder. `wanted`: as for `--filter`."""
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    command = ["--arch", "gfx942", str(manifest), "-o", str(output), "--cache-dir", str(output / "cache")]
    result = build_here([*command, "--filter", wanted] if wanted else command)
    assert result.exit_code == 0, result.output
    return next(output.glob("*-gfx942"))


class Launches(ReferenceLaunches):
    """The references of this repository's kernels, and of those in examples/foreign."""

    def add_kernel(self, variant: Variant, a: dict[str, float], launch: Launch) -> None:
        n, dtype = int(a["n_elements"]), variant.axis_values["T"]
        assert launch.grid == (-(-n // 1024), 1, 1)
        x, y, out = (device_view(a[name], dtype, (n,), (1,)) for name in ("x_ptr", "y_ptr", "output_ptr"))
        out[...] = x + y

    def _layer_norm_fwd_fused(self, variant: Variant, a: dict[str, float], launch: Launch) -> None:
        rows, cols, dtype = launch.grid[0], int(a["N"]), variant.axis_values["T"]
        x, y = (device_view(a[name], dtype, (rows, cols), (int(a["stride"]), 1)) for name in ("X", "Y"))
        weight, bias = (device_view(a[name], dtype, (cols,), (1,)).astype(np.float64) for name in ("W", "B"))
        mean, rstd = (device_view(a[name], "float32", (rows,), (1,)) for name in ("Mean", "Rstd"))
        exact = x.astype(np.float64)
        mean[...] = exact.mean(1)
        rstd[...] = (exact.var(1) + a["eps"]) ** -0.5
        y[...] = ((exact - mean[:, None]) * rstd[:, None] * weight + bias).astype(y.dtype)


def run_script(bundle: str, script: str, *arguments: str) -> None:
    """Run a script as `python script arguments…` does. Call it in a process over the double."""
    double = Double()  # it holds the callback
    launches = Launches(Path(bundle), double)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
    assert launches.launches, "nothing was launched"


def run_blocks(bundle: str, folder: str, source: str) -> None:
    """Run source text in a folder."""
    double = Double()  # it holds the callback
    launches = Launches(Path(bundle), double)
    os.chdir(folder)
    exec(compile(source, "<document>", "exec"), {"__name__": "document"})
    assert launches.launches, "nothing was launched"
