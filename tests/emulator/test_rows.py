"""Row-wise kernels: the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

import json

import numpy as np
import pytest
from bundling import built
from click.testing import CliRunner
from rows_suite import *  # noqa: F403 -- its tests
from rows_suite import BF16, RowsFor

from aot_runtime import Bundle
from aot_runtime.cli import main


@pytest.fixture(scope="module")
def rows_for(tmp_path_factory: pytest.TempPathFactory) -> RowsFor:
    def rows(dtype: np.dtype) -> Bundle:
        return built(tmp_path_factory, "rows", f"T={dtype}")

    return rows


@pytest.fixture(scope="module")
def cast_for(tmp_path_factory: pytest.TempPathFactory) -> RowsFor:
    return lambda _: built(tmp_path_factory, "rows", "op=cast")


@pytest.fixture(scope="module")
def sample_for(tmp_path_factory: pytest.TempPathFactory) -> RowsFor:
    return lambda _: built(tmp_path_factory, "rows", "op=sample")


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
def test_softmax_reads_and_writes_each_element_once(rows_for: RowsFor, cols: int):
    dims = ("--dim=rows=20", f"--dim=cols={cols}", "--dtype=T=bfloat16")
    n = 2 * 20 * cols
    assert traffic(rows_for(BF16), "softmax", *dims) == {"x": (n, 0), "out": (0, n)}


@pytest.mark.parametrize("cols", (1024, 5008, 32768))
def test_norms_read_and_write_each_element_once(rows_for: RowsFor, cols: int):
    """Of one row, for which the weights are read once too."""
    dims = ("--dim=rows=1", f"--dim=cols={cols}", "--dtype=T=bfloat16")
    n = 2 * cols
    wanted = {"x": (n, 0), "weight": (n, 0), "residual": (n, n), "out": (0, n)}
    assert traffic(rows_for(BF16), "rms_norm", *dims, "--given=residual") == wanted
    found = traffic(rows_for(BF16), "layer_norm", *dims, "--given=residual", "--given=bias")
    assert found == wanted | {"bias": (n, 0)}


def test_nothing_spills(rows_for: RowsFor):
    for variant in rows_for(BF16).index.variants:
        assert (variant.resources.vgpr_spills, variant.resources.sgpr_spills) == (0, 0), variant
