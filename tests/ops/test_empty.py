"""Calls of every shipped op with a batch of 0, no rows or no tokens: outputs without elements, and nothing launched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("triton", reason="planning needs the extra `build`")
pytest.importorskip("tinygrad", reason="the emulator needs the extra `emulator`")

from aot.check.call_selection import plan_op
from aot.manifest.loading import load_manifest
from aot.plan.bundles import plan_bundle
from aot.plan.cases import planning_index
from aot.targets import parse_arch
from aot_bundle.callspec import CallSpec, plan_call
from aot_emulator import EmulatorDriver
from aot_runtime import ArgumentError
from aot_runtime.call.choosing import Decision
from aot_runtime.call.planner import op_planner
from aot_runtime.contract.names import Scope
from aot_runtime.contract.records import Index, Op
from aot_runtime.device.device import Device
from aot_runtime.device.drivers import device_for_arch
from tests.ops.test_check import OPS
from tests.support.session_builds import ROOT

pytestmark = pytest.mark.on("emulator")

MANIFESTS = tuple(name for name, ops in OPS.items() if ops and name != "memory")
"""All that declare ops, except memory, which measures a device."""
OF_CALLS = {"batch", "rows", "tokens", "tokens_q", "seqlen_q", "m", "count"}
"""Dims that say how much there is to do, in whatever op."""
TOGETHER = {"tokens_q": ("batch", "tokens_k"), "tokens": ("batch",)}
"""Dims that are 0 beside a dim where sequences are packed: without one there is no token of one."""
REFUSED = {("quantise_all", "m"): "m is 0; allowed: 1 to"}
"""The scale of nothing."""
LAUNCHED = {("linear_int4", "m"), ("linear_int8", "m"), ("moe_align", "tokens"), ("moe_permute", "tokens")}
"""Their grids are of parts that find no row, or of rows or counts that become 0."""


class Empty:
    """The calls of one op in which a dim is 0."""

    def __init__(self, op: Op, index: Index, call: CallSpec, known: Decision):
        self.op, self.index = op, index
        self.dims = {name: known.names[name] for name in Scope.of(op).dims}
        given = frozenset(tensor.name for tensor in op.tensors if tensor.optional and tensor.name in known.layouts)
        dtypes = {name: known.names[name] for name in op.dtypes}
        self.call = CallSpec(dims=self.dims, given=given, dtypes=dtypes, scalars=call.scalars)
        self.planner = op_planner(index, op.name)

    def decide(self, *zeros: str) -> Decision:
        dims = self.dims | dict.fromkeys(zeros, 0)
        call = CallSpec(dims=dims, given=self.call.given, dtypes=self.call.dtypes, scalars=self.call.scalars)
        return plan_call(self.index, self.planner, call, 304)


def empties(manifest: str) -> Iterator[Empty]:
    """Return every op that a manifest itself declares, with a call that is drawn for it."""
    driver = EmulatorDriver()
    device = Device(driver, device_for_arch(driver, "gfx942"))
    loaded = load_manifest(ROOT / f"manifests/{manifest}.yaml")
    bundle = plan_bundle(loaded, parse_arch("gfx942"), {"op": frozenset(loaded.spec.ops)}, False)
    sources = {source.name: source.manifest for source in bundle.manifest.sources}
    for op in bundle.ops:
        if checks := plan_op(bundle, sources[op.name], op, device, 0, 1).checks:
            specs = [variant.spec for variant in bundle.variants if variant.spec.op == op.name]
            drawn = checks[0].drawn
            yield Empty(op, planning_index(op, specs, bundle.target), drawn.packed, drawn.decision)


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_nothing_to_do(manifest: str):
    found = 0
    for empty in empties(manifest):
        for dim in sorted(OF_CALLS & empty.dims.keys()):
            name = (empty.op.name, dim)
            if reason := REFUSED.get(name):
                with pytest.raises(ArgumentError, match=reason):
                    empty.decide(dim)
                continue
            beside = TOGETHER.get(dim, ()) if dim != "batch" else TOGETHER
            decision = empty.decide(dim, *(name for name in beside if name in empty.dims))
            assert name in LAUNCHED or all(0 in launch.grid for launch in decision.launches), name
            found += 1
    assert found
