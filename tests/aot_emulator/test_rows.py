"""Row-wise kernels: the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

import runpy

import numpy as np
import pytest
from aot_emulator import EmulatorDriver
from aot_emulator.profile.profile_call import profile_on
from aot_emulator.profile.profile_report import profile_data

from aot_runtime import Bundle
from aot_runtime.call.callspec import CallSpec
from kernels.rows import reference
from tests.ops.rows.rows_suite import *  # noqa: F403 -- its tests
from tests.ops.rows.rows_suite import BF16, FP32, NORMS, RowsFor, normal, run_norm
from tests.support.emulation.bundling import ROOT, built, on_demand

pytestmark = pytest.mark.sampled(5)


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


Traffic = dict[str, tuple[int, int]]
"""Tensor to bytes that are read and written of it, each counted once."""


def described(dtypes: str, given: str = "", **dims: int) -> CallSpec:
    """A call by its dims. dtypes: those of T, or of variables: `T=bfloat16 Q=int8`. given: optional tensors."""
    named = dict(text.split("=") for text in dtypes.split()) if "=" in dtypes else {"T": dtypes}
    return CallSpec(dims=dims, dtypes=named, given=frozenset(given.split()))


def traffic(bundle: Bundle, op: str, call: CallSpec) -> tuple[Traffic, tuple[int, int]]:
    """(that of a call of one launch, how many bytes it loads and stores)."""
    driver = bundle.device.driver
    assert isinstance(driver, EmulatorDriver)
    (launch,) = profile_data(profile_on(driver, bundle, op, call), by_instruction=False)["launches"]
    assert launch["other_memory"] == {"read": 0, "written": 0}
    loads, stores = (launch["accesses"][f"global_{kind}"]["bytes"] for kind in ("load", "store"))
    return {name: (counts["read"], counts["written"]) for name, counts in launch["tensors"].items()}, (loads, stores)


def once(bundle: Bundle, op: str, call: CallSpec, scalars: tuple[str, ...] = ()) -> Traffic:
    """The traffic of a call that reads and writes nothing twice. scalars: tensors that scalar loads read."""
    found, total = traffic(bundle, op, call)
    by_lanes = [counts for name, counts in found.items() if name not in scalars]
    assert total == tuple(map(sum, zip(*by_lanes, strict=True))), "nothing twice"
    return found


@pytest.mark.parametrize("dtype", (BF16, FP32), ids=str)
@pytest.mark.parametrize("cols", (3, 127, 128, 1000, 1024, 4096, 5008, 8192, 32768))
def test_softmax_reads_and_writes_each_element_once(rows_for: RowsFor, cols: int, dtype: np.dtype):
    n = dtype.itemsize * 20 * cols
    found = once(rows_for(dtype), "softmax", described(str(dtype), rows=20, cols=cols))
    assert found == {"x": (n, 0), "out": (0, n)}


@pytest.mark.parametrize("dtype", (BF16, FP32), ids=str)
@pytest.mark.parametrize("cols", (3, 127, 1000, 1024, 4096, 5008, 8192, 32768))
def test_norms_read_and_write_each_element_once(rows_for: RowsFor, cols: int, dtype: np.dtype):
    """Of one row, for which the weights are read once too."""
    rows, dims = rows_for(dtype), {"rows": 1, "cols": cols}
    n = dtype.itemsize * cols
    wanted = {"x": (n, 0), "weight": (n, 0), "residual": (n, n), "out": (0, n)}
    assert once(rows, "rms_norm", described(str(dtype), "residual", **dims)) == wanted
    found = once(rows, "layer_norm", described(str(dtype), "residual bias", **dims))
    assert found == wanted | {"bias": (n, 0)}


@pytest.mark.parametrize("kind, op", (("int8", "rms_norm"), ("float8_e4m3fnuz", "layer_norm")))
@pytest.mark.parametrize("cols", (127, 4096, 32768))
def test_quantised_norms_read_and_write_each_element_once(rows_for: RowsFor, cols: int, kind: str, op: str):
    call = described(f"T=bfloat16 Q={kind}", "residual", rows=1, cols=cols)
    n = 2 * cols
    bias = {"bias": (n, 0)} if op == "layer_norm" else {}
    wanted = {"x": (n, 0), "weight": (n, 0), "residual": (n, n), "out": (0, cols), "row_scales": (0, 4)}
    assert once(rows_for(BF16), f"{op}_quantised", call) == wanted | bias


@pytest.mark.parametrize("rows, cols, programs", [(300, 4096, 300), (2700, 512, 675), (70 * 304, 1024, 8 * 304)])
def test_programs_read_the_weights_once(rows_for: RowsFor, rows: int, cols: int, programs: int):
    """Of many rows x and out are touched once, and the weights, which stay in the caches, once a program."""
    n, weight = 2 * rows * cols, 2 * cols
    found, total = traffic(rows_for(BF16), "rms_norm", described("bfloat16", rows=rows, cols=cols))
    assert found == {"x": (n, 0), "weight": (weight, 0), "out": (0, n)} and total == (n + programs * weight, n)


OTHERS = {
    "silu_mul": ({"rows": 3, "cols": 5008}, {"gate": (1, 0), "up": (1, 0), "out": (0, 1)}, 3 * 5008),
    "gelu_mul": ({"rows": 3, "cols": 1000}, {"gate": (1, 0), "up": (1, 0), "out": (0, 1)}, 3 * 1000),
    "transpose": ({"batch": 2, "rows": 130, "cols": 200}, {"x": (1, 0), "out": (0, 1)}, 2 * 130 * 200),
}
"""(dims of the call, how often each tensor is read and written, elements of a tensor)."""


@pytest.mark.parametrize("op", OTHERS)
def test_other_ops_read_and_write_each_element_once(rows_for: RowsFor, op: str):
    dims, wanted, count = OTHERS[op]
    n = 2 * count
    found = once(rows_for(BF16), op, described("bfloat16", **dims))
    assert found == {name: (read * n, written * n) for name, (read, written) in wanted.items()}


@pytest.mark.parametrize("pairs", (64, 16))
def test_rotary_reads_and_writes_each_element_once(rows_for: RowsFor, pairs: int):
    """All of a head is rotated, or a part of it. Lanes of each of the eight heads read the angles, which are in cache."""
    call = described("bfloat16", tokens=1, heads=8, head_dim=128, pairs=pairs, max_position=9)
    n, angle = 2 * 8 * 128, 4 * pairs
    found, total = traffic(rows_for(BF16), "rotary", call)
    assert found == {"x": (n, 0), "cos": (angle, 0), "sin": (angle, 0), "positions": (4, 0), "out": (0, n)}
    assert total == (n + 8 * 2 * angle, n)


def test_tables_and_casts_read_and_write_each_element_once(rows_for: RowsFor, cast_for: RowsFor):
    call = described("T=bfloat16 I=int32", tokens=1, vocabulary=9, cols=4096)
    found = once(rows_for(BF16), "embedding", call, scalars=("ids",))
    assert found == {"table": (8192, 0), "ids": (4, 0), "out": (0, 8192)}
    call = described("S=bfloat16 D=float32", rows=3, cols=1000)
    assert once(cast_for(BF16), "cast", call) == {"x": (6000, 0), "out": (0, 12000)}


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


@pytest.mark.slow
def test_nothing_spills(tmp_path_factory: pytest.TempPathFactory):
    for variant in built(tmp_path_factory, "rows").index.variants:
        assert (variant.resources.vgpr_spills, variant.resources.sgpr_spills) == (0, 0), variant
