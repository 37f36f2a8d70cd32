"""The harness that holds the model of time to published times: its scores, and what it computes without running."""

from __future__ import annotations

import importlib
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from aot_emulator import ARCHS, EmulatorDriver, Options, Statistics
from aot_emulator.machine.launch_records import Launch
from aot_emulator.state.device_memory import Memory
from aot_emulator.timing.constants import machine_of
from aot_emulator.timing.sharing import Sharing, shared_loads
from aot_emulator.timing.trace import record

from tests.aot_emulator.timing.made import workgroup
from tests.docs.scripts import ROOT

FOLDER = ROOT / "benchmarks/timing"


@pytest.fixture
def modules() -> Iterator[dict[str, ModuleType]]:
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: importlib.import_module(name) for name in ("scores", "traces", "predictions", "published")}
    finally:
        sys.path.remove(str(FOLDER))
        for name in set(sys.modules) - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == FOLDER:
                del sys.modules[name]


def test_scores():
    sys.path.insert(0, str(FOLDER))
    try:
        scores = importlib.import_module("scores")
    finally:
        sys.path.remove(str(FOLDER))
    costs = {"a": 1.0, "b": 2.0, "c": 2.0, "d": 3.0, "e": 4.0}
    assert [scores.percentile(costs, name) for name in "abde"] == [0, 0.375, 0.75, 1]
    assert scores.rank(costs, "d") == 3 and scores.rank(costs, "a") == 0
    assert scores.log_error([2, 8], [4, 4]) == pytest.approx(np.log(2))
    assert scores.spearman([1, 2, 3, 4], [10, 20, 40, 30]) == pytest.approx(0.8)
    value, count = scores.spearman_within([0] * 4 + [1] * 3, [1, 2, 3, 4, 9, 8, 7], [1, 2, 3, 4, 1, 2, 3])
    assert (value, count) == (pytest.approx(1), 4)


def test_the_keys_that_are_held_out_are_named_once():
    names = (FOLDER / "held_out.txt").read_text().splitlines()
    assert names == sorted(set(names)) and sum(name.startswith("product ") for name in names) == 124


@pytest.mark.slow
def test_sharing_by_tiles_is_what_running_the_workgroups_shows(modules: dict[str, ModuleType]):
    """A product of 1024 x 1024 by 64 x 64 tiles: 256 programs, dealt to the dies by the kernel itself."""
    pytest.importorskip("triton", reason="compiling needs the extra `build`")
    m, n, k, config = 1024, 1024, 512, modules["traces"].Product(64, 64, 64, 4)
    compiled, found = config.compiled(""), []

    def run(launch: Launch, memory: Memory, options: Options) -> Statistics:
        trace = record(launch, memory, options, (0,), machine_of("gfx942"))
        found.append(shared_loads(launch, memory, options, trace, 1))
        return trace.statistics

    driver, device = EmulatorDriver(Options()), list(ARCHS).index("gfx942")
    metadata = compiled.metadata
    module = driver.load_module(device, compiled.asm["hsaco"])
    function = driver.get_function(device, module, metadata.name, metadata.shared)
    pointers = [driver.allocate_now(device, size) for size in (m * k * 2, n * k * 2, m * n * 2)]
    given = struct.pack("<3Q6i", *pointers, m, n, k, k, k, n)
    kernargs = given + bytes(-len(given) % 8 + 16)
    with driver.run_by(run):
        driver.prepare(device, function, (304, 1, 1), 256, metadata.shared, kernargs).run(0)
    (ran,) = found
    computed: Sharing = modules["predictions"].tile_sharing(m, n, 64, 64, 4, 0)
    # 48 of the 304 programs have no tile: what a compute unit loads is the mean of all in one, of 256 in the other.
    scale = ran.units / computed.units
    assert ran.distinct / scale == pytest.approx(computed.distinct, rel=0.01)
    assert ran.dies / scale == pytest.approx(computed.dies, rel=0.01)
    assert ran.die / scale == pytest.approx(computed.die, rel=0.01)


@pytest.mark.slow
def test_programs_of_parts_of_k_share_nothing_with_other_parts(modules: dict[str, ModuleType]):
    """64 tiles of 128 x 128, whole and in two parts: the rows and columns of each part are loaded by themselves."""
    pytest.importorskip("triton", reason="compiling needs the extra `build`")
    whole, parts, pairs = (
        modules["predictions"].tile_sharing(1024, 1024, 128, 128, 4, 0, **how)
        for how in ({}, {"split": 2}, {"split": 16, "resident": 4, "remapped": False})
    )
    assert (whole.units, whole.distinct, parts.units, parts.distinct) == (64, 8, 128, 16)
    assert pairs.units == 304 and pairs.distinct == pytest.approx(16 * 8 * 304 / 1024)


@pytest.mark.slow
def test_loads_of_scales_make_no_more_steps_of_an_iteration(modules: dict[str, ModuleType]):
    """One step in an iteration, in which each wavefront loads half a step's bytes: its part, and scales."""
    pytest.importorskip("triton", reason="compiling needs the extra `build`")
    step = ["head", "load", "load", "load", "mfma", "mfma"]
    trace = workgroup(*[[*step * 16, "valu", "mfma", "mfma"]] * 4).trace
    found = modules["traces"].Traced(modules["traces"].Scaled(16, 32), trace, 17, 1, 0)
    assert (found.trips, found.unroll, found.peeled) == (15, 1, 2)  # the last iteration is not like the others


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_a_block_of_attention_makes_the_steps_that_are_said(
    modules: dict[str, ModuleType], causal: bool, tmp_path: Path
):
    pytest.importorskip("triton", reason="compiling needs the extra `build`")
    traces = modules["traces"]
    config = traces.Attention(16, 64, 32, 2, 1, 1, causal)
    found = traces.traced(config, tmp_path)
    assert found.steps == (18 if causal else 17)
    matrix = [cost.unit.name == "MATRIX" for cost in found.trace.costs]
    parts = found.trace.waves[0][0].parts
    executed = sum(count * sum(matrix[index] for index in part) for part, count in parts)
    each = max(sum(matrix[index] for index in part) for part, count in parts if count > 1) / found.unroll
    assert executed == (found.steps + (2 if causal else 0)) * each  # two blocks are masked
