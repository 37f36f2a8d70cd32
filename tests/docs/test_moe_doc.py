"""docs/moe.md: its calls work."""

from __future__ import annotations

import numpy as np

from kernels.moe.reference import moe as exact_moe
from kernels.moe.reference import moe_route, moe_same_dtype
from kernels.tolerance import assert_close
from tests.docs.markdown import blocks
from tests.docs.scripts import ROOT
from tests.support.op_bundles import OpBundles


def test_calls(op_bundles: OpBundles):
    page = (ROOT / "docs/moe.md").read_text(encoding="utf-8")
    rng = np.random.default_rng(0)
    shapes = {"logits": (3, 8), "x": (3, 64), "gate_up": (8, 64, 64), "down": (8, 64, 32)}
    given = {name: (rng.standard_normal(shape) / 4).astype(np.float16) for name, shape in shapes.items()}
    source, ordering = (block.text for block in blocks(page, "python"))
    assert source.count('open_bundle("dist/moe-gfx942")') == 1
    names = given | {"bundle": op_bundles.open("moe")}
    exec(compile(source.replace('open_bundle("dist/moe-gfx942")', "bundle"), "docs/moe.md", "exec"), names)

    weights, chosen = moe_route(given["logits"], topk=2)
    assert np.array_equal(names["chosen"], chosen) and np.abs(names["weights"] - weights).max() < 1e-6
    operands = given["x"], given["gate_up"], given["down"], names["weights"], chosen
    assert_close(names["y"], exact_moe(*operands), moe_same_dtype(*operands), 1e-6)

    exec(compile(ordering, "docs/moe.md", "exec"), names)
    wanted = given["x"].astype(np.float64) * names["weights"].sum(1, keepdims=True, dtype=np.float64)
    np.testing.assert_allclose(names["y"], wanted, rtol=2e-3, atol=1e-4)
