"""The examples do what they say."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

from aot_runtime import ArgumentError, open_bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.bundle.verification import verify_bundle
from tests.docs.scripts import ROOT, Launches, run_script
from tests.support.hip_double.double import Double, DoubleLibrary


def test_attention_in_numpy(hip_double: DoubleLibrary, attention_bundle: Path):
    script = str(ROOT / "examples/attention_numpy.py")
    output = hip_double.run(run_script, str(attention_bundle), script, str(attention_bundle))
    found = re.fullmatch(r"float16\[2, 8, 300, 64\], max error (\S+)\n", output)
    assert found, output
    assert 0 < float(found[1]) < 2e-3


def test_a_foreign_manifest_only_binds():
    """Nothing but `bind` adapts the kernels: their file imports Triton alone, and no launch has another source."""
    source = (ROOT / "examples/foreign/kernels.py").read_text()
    assert re.findall(r"^(?:import|from) (\S+)", source, re.MULTILINE) == ["triton", "triton.language"]
    assert [path.name for path in sorted((ROOT / "examples/foreign").glob("*.py"))] == ["kernels.py"]


def test_foreign_kernels_are_whole(foreign_bundle: Path):
    assert verify_bundle(foreign_bundle) == []
    assert {op.name for op in read_index(foreign_bundle).ops} == {"add", "layer_norm"}


def test_foreign_kernels_run(hip_double: DoubleLibrary, foreign_bundle: Path):
    hip_double.run(_run_foreign, str(foreign_bundle))


def _run_foreign(folder: str) -> None:
    double = Double()
    launches = Launches(Path(folder), double)
    foreign = open_bundle(folder)
    rng = np.random.default_rng(0)
    for n in (1, 1024, 5000):
        x, y = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
        np.testing.assert_array_equal(foreign.add(x, y), x + y)
    for rows, cols in ((1, 64), (7, 100), (3, 8192)):
        x = rng.standard_normal((rows, cols)).astype(np.float16)
        weight, bias = (rng.standard_normal(cols).astype(np.float16) for _ in range(2))
        y, mean, rstd = foreign.layer_norm(x, weight, bias, eps=1e-3)
        exact = x.astype(np.float64)
        np.testing.assert_allclose(mean, exact.mean(1), atol=1e-6)
        np.testing.assert_allclose(rstd, (exact.var(1) + 1e-3) ** -0.5, rtol=1e-5)
        expected = (exact - mean[:, None]) * rstd[:, None] * weight + bias
        np.testing.assert_allclose(y, expected, atol=1e-2)
    assert len(launches.launches) == 6
    padded = foreign.device.array(np.zeros((4, 80), np.float16))[:, :64]
    row = foreign.device.array(np.zeros(64, np.float16))
    try:
        foreign.layer_norm(padded, row, row)
    except ArgumentError as error:  # the kernel has one stride for x and y
        assert "stride 80" in str(error)
    else:
        sys.exit("an x with gaps was taken")
