"""Row-wise kernels: the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

import json
import runpy

import numpy as np
import pytest
from bundling import ROOT, built, on_demand
from click.testing import CliRunner
from rows_suite import *  # noqa: F403 -- its tests
from rows_suite import BF16, NORMS, RowsFor, normal, run_norm

from aot_runtime import Bundle
from aot_runtime.cli import main
from kernels.rows import reference


@pytest.fixture(scope="module")
def rows_for(tmp_path_factory: pytest.TempPathFactory) -> RowsFor:
    def rows(dtype: np.dtype) -> Bundle:
        return on_demand(tmp_path_factory, "rows", f"T={dtype}")

    return rows


@pytest.fixture(scope="module")
def cast_for(tmp_path_factory: pytest.TempPathFactory) -> RowsFor:
    return lambda _: on_demand(tmp_path_factory, "rows", "op=cast")


@pytest.fixture(scope="module")
def sample_for(tmp_path_factory: pytest.TempPathFactory) -> RowsFor:
    return lambda _: on_demand(tmp_path_factory, "rows", "op=sample")


@pytest.fixture(scope="module")
def reductions(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return built(tmp_path_factory, "rows", "T=bfloat16,op=softmax|rms_norm|layer_norm")


def traffic(bundle: Bundle, op: str, *arguments: str) -> dict[str, dict[str, int]]:
    """Bytes read and written of each tensor of a call."""
    result = CliRunner().invoke(main, ["profile", str(bundle.path), op, *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (launch,) = json.loads(result.stdout)["launches"]
    assert launch["other_memory"] == {"read": 0, "written": 0}
    loads, stores = (launch["accesses"][f"global_{kind}"]["bytes"] for kind in ("load", "store"))
    found = {name: (counts["read"], counts["written"]) for name, counts in launch["tensors"].items()}
    assert (loads, stores) == tuple(map(sum, zip(*found.values(), strict=True))), "nothing twice"
    return found


@pytest.mark.parametrize("cols", (128, 1024, 5008, 32768))
def test_softmax_reads_and_writes_each_element_once(reductions: Bundle, cols: int):
    dims = ("--dim=rows=20", f"--dim=cols={cols}", "--dtype=T=bfloat16")
    n = 2 * 20 * cols
    assert traffic(reductions, "softmax", *dims) == {"x": (n, 0), "out": (0, n)}


@pytest.mark.parametrize("cols", (1024, 5008, 32768))
def test_norms_read_and_write_each_element_once(reductions: Bundle, cols: int):
    """Of one row, for which the weights are read once too."""
    dims = ("--dim=rows=1", f"--dim=cols={cols}", "--dtype=T=bfloat16")
    n = 2 * cols
    wanted = {"x": (n, 0), "weight": (n, 0), "residual": (n, n), "out": (0, n)}
    assert traffic(reductions, "rms_norm", *dims, "--given=residual") == wanted
    found = traffic(reductions, "layer_norm", *dims, "--given=residual", "--given=bias")
    assert found == wanted | {"bias": (n, 0)}


@pytest.mark.parametrize("op", NORMS)
def test_programs_take_several_tiles_of_rows(rows_for: RowsFor, op: str):
    """More tiles than there are programs: 16 rows each, 8 for each of 304 compute units."""
    rng = np.random.default_rng(0)
    x, residual = (normal(rng, (16 * 8 * 304 + 21, 16), BF16) for _ in range(2))
    bias = {"bias": normal(rng, (16,), BF16)} if op == "layer_norm" else {}
    run_norm(rows_for(BF16), op, x, normal(rng, (16,), BF16), residual, **bias)


@pytest.mark.slow
@pytest.mark.parametrize("op", NORMS)
def test_programs_take_several_long_rows(rows_for: RowsFor, op: str):
    rng = np.random.default_rng(0)
    run_norm(rows_for(BF16), op, normal(rng, (64 * 304, 1024), BF16), normal(rng, (1024,), BF16))


def test_the_benchmark_calls_the_ops_as_they_are_meant(rows_for: RowsFor, monkeypatch: pytest.MonkeyPatch):
    """What benchmarks/rows.py measures is what the references compute."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = runpy.run_path(str(ROOT / "benchmarks/rows.py"))
    rows, rng = rows_for(BF16), np.random.default_rng(0)
    x, y, weight, bias = (normal(rng, shape, BF16) for shape in ((2, 1024), (2, 1024), (1024,), (1024,)))
    eps = benchmark["EPS"]
    wanted = {
        "softmax": reference.softmax_same_dtype(x),
        "rms_norm": reference.rms_norm_same_dtype(x, weight, eps=eps),
        "layer_norm": reference.layer_norm_same_dtype(x, weight, bias, eps=eps),
        "add_rms_norm": reference.rms_norm_same_dtype(x, weight, y, eps=eps)[1],
        "silu_mul": reference.silu_mul_same_dtype(x, y),
    }
    assert wanted.keys() == benchmark["OPS"].keys()
    for name, result in wanted.items():
        hosts = {"x": x, "y": y, "weight": weight, "bias": bias, "sum": y}
        arrays = {key: rows.device.array(host) for key, host in hosts.items()}
        inputs = benchmark["Inputs"]({}, arrays, rows.device.empty(x.shape, BF16))
        benchmark["OPS"][name].ours(rows, inputs)()
        found = inputs.out.numpy().astype(np.float32)
        assert np.allclose(found, result.astype(np.float32), rtol=2**-7, atol=2**-7), name


def check_spills(bundle: Bundle) -> None:
    for variant in bundle.index.variants:
        assert (variant.resources.vgpr_spills, variant.resources.sgpr_spills) == (0, 0), variant


def test_reductions_do_not_spill(reductions: Bundle):
    check_spills(reductions)


@pytest.mark.slow
def test_nothing_spills(tmp_path_factory: pytest.TempPathFactory):
    check_spills(built(tmp_path_factory, "rows"))
