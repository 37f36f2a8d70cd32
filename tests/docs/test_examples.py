"""The examples do what they say."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aot_bundle.callspec import CallSpec, plan_call
from aot_bundle.verification import verify_bundle
from aot_runtime import ArgumentError, open_bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.call.planner import op_planner
from tests.docs.markdown import blocks
from tests.docs.scripts import ROOT, Launches, run_script
from tests.release.shown import PAGES
from tests.support.hip_double.double import Double, DoubleLibrary
from tests.support.on_demand import index_of
from tests.support.plans import planned


def imported(source: str) -> set[str]:
    """Return the first names of what Python code imports."""
    nodes = list(ast.walk(ast.parse(source)))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name.partition(".")[0] for name in plain | {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)}}


def test_nothing_that_a_user_runs_imports_kernels():
    """`kernels` is the name of others' distributions, too."""
    scripts = [path for folder in ("examples", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]
    pages = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    code = {str(path): path.read_text(encoding="utf-8") for path in scripts}
    code |= {f"{page}: {b.text}": b.text for page in pages for b in blocks(page.read_text(encoding="utf-8"), "python")}
    assert len(code) > 40
    assert [name for name, source in code.items() if "kernels" in imported(source)] == []


@pytest.mark.parametrize("arch", ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "sm_90"))
def test_the_first_bundle_serves_its_example(arch: str):
    """README's first command builds what examples/attention_numpy.py calls."""
    index = index_of(planned(arch, "first"))
    dims = {"batch": 2, "heads": 8, "heads_kv": 8, "seqlen_q": 300, "seqlen_k": 300, "head_dim": 64, "head_dim_v": 64}
    call = CallSpec(dims=dims, dtypes={"T": "float16"}, scalars={"causal": "true"})
    assert plan_call(index, op_planner(index, "flash_attention"), call, None).launches


@pytest.fixture
def beside_another(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which another package called `kernels` is found, one that has nothing of ours."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/__init__.py").touch()
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "runtime")))}


@pytest.mark.parametrize(
    "code",
    [
        "sys.modules['triton'] = None\n"
        "with project(root).active() as modules:\n"
        "    modules.reference('kernels/attention/quantised_reference.py', 'attention_int8')",
        "with project(root).active() as modules:\n    modules.load('kernels/rows/norm.py', 'norm_rows')",
    ],
    ids=["reference", "kernel"],
)
def test_another_package_called_kernels_is_not_in_the_way(beside_another: dict[str, str], code: str):
    """Nor is Triton needed for a reference, by which examples/fmha.py checks its results."""
    if "load(" in code:
        pytest.importorskip("triton")
    head = f"import sys\nfrom aot.source.project import project\nroot = {str(ROOT)!r}\n"
    tail = "\nimport kernels\nassert kernels.__file__, 'what was there is there'"
    subprocess.run([sys.executable, "-c", head + code + tail], env=beside_another, check=True, timeout=120)


def test_attention_in_numpy(hip_double: DoubleLibrary, attention_bundle: Path):
    script = str(ROOT / "examples/attention_numpy.py")
    output = hip_double.run(run_script, str(attention_bundle), script, str(attention_bundle))
    found = re.fullmatch(r"float16\[2, 8, 300, 64\], max error (\S+)\n", output)
    assert found, output
    assert 0 < float(found[1]) < 2e-3


def test_a_foreign_manifest_only_binds():
    """Only `bind` adapts the kernels: their file imports Triton alone."""
    source = (ROOT / "examples/foreign/kernels.py").read_text()
    assert re.findall(r"^(?:import|from) (\S+)", source, re.MULTILINE) == ["triton", "triton.language"]


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
