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
def test_programs_of_parts_of_k_add_what_others_store(modules: dict[str, ModuleType], tmp_path: Path):
    pytest.importorskip("triton", reason="compiling needs the extra `build`")
    traces = modules["traces"]
    whole, parts = (traces.traced(traces.Product(32, 32, 32, 1, split=split), tmp_path) for split in (1, 4))
    for found, stored in ((whole, 32 * 32 * 2), (parts, 0)):
        executed = [part for part, count in found.trace.waves[0][0].parts if count == 1]
        assert sum(float(found.trace.amounts[part, 2].sum()) for part in executed) == stored
    assert traces.Product(32, 32, 32, 1, split=0).name == whole.config.name != parts.config.name


@pytest.mark.slow
def test_loads_of_scales_make_no_more_steps_of_an_iteration(modules: dict[str, ModuleType]):
    """One step in an iteration, in which each wavefront loads half a step's bytes: its part, and scales."""
    pytest.importorskip("triton", reason="compiling needs the extra `build`")
    step = ["head", "load", "load", "load", "mfma", "mfma"]
    trace = workgroup(*[[*step * 16, "valu", "mfma", "mfma"]] * 4).trace
    found = modules["traces"].Traced(modules["traces"].Scaled(16, 32), trace, 17, 1, 0)
    assert (found.trips, found.unroll, found.peeled) == (15, 1, 2)  # the last iteration is not like the others


@pytest.mark.slow
def test_experts_load_the_tokens_that_they_have_and_their_own_matrices(modules: dict[str, ModuleType], tmp_path: Path):
    pytest.importorskip("triton", reason="compiling needs the extra `build`")
    traces, predictions = modules["traces"], modules["predictions"]
    every = traces.Experts(16, 32, 64, 2)
    few = traces.Experts(16, 32, 64, 2, rows=every.few)
    for config, rows in ((every, 16), (few, 2)):
        found = traces.traced(config, tmp_path)
        loads = found.trace.amounts[:, 1] * np.array([not cost.near for cost in found.trace.costs])
        loaded = sum(float(loads[part].sum()) for wave in found.trace.waves[0] for part, n in wave.parts if n > 1)
        lines = max(rows, 2) + 32
        assert loaded == pytest.approx(lines * 64 * 2 * found.unroll, rel=0.1 if rows == 16 else 0.3)
    of_each = (17, 0, 3)  # three blocks: 16 and 1 tokens of the first expert, 3 of the last
    assert [part.tolist() for part in predictions.blocks_of(of_each, 16)] == [[0, 0, 2], [16, 1, 3]]
    shared: Sharing = predictions.expert_sharing(of_each, 64, every, 1, 0, 1)
    assert shared.units == 6 and shared.distinct * (16 + 32) == pytest.approx(16 + 1 + 3 + 2 * 2 * 32)
    assert shared.dies * (16 + 32) == pytest.approx(2 * (16 + 1 + 3) + 6 * 32)  # a die has one tile
    assert sum(predictions.routed(64, 8, 2)) == 128 and max(predictions.routed(64, 8, 8)) == 64


def test_experts_are_read_with_the_models_that_have_their_sizes(modules: dict[str, ModuleType], tmp_path: Path):
    pytest.importorskip("triton", reason="compiling needs the extra `build`")
    published, traces = modules["published"], modules["traces"]
    columns = ("family", "tier", "device", "dtype", "E", "M", "N", "BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps",
               "nonkdim", "kpack", "GROUP_M", "src")  # fmt: skip
    rows = [f"fused_moe,B,MI300X,fp16/bf16,{e},32,{n},16,64,{bk},4,16,2,4,s1" for e, n, bk in
            ((8, 1792, 128), (60, 1408, 64), (128, 1024, 64), (8, 2048, 1024))]  # fmt: skip
    (tmp_path / "mi300x_winners.csv").write_text("\n".join([",".join(columns), *rows]))
    mixtral, qwen = published.experts(tmp_path)  # 128 experts: no known model; the last does not fit LDS
    assert (mixtral.name, mixtral.shape) == ("experts 8 32x1792 s1", (32, 1792, 4096, 8, 2))
    assert (qwen.name, qwen.shape, qwen.group) == ("experts 60 32x1408 s1", (32, 1408, 2048, 60, 4), 4)
    tried = [traces.Experts(16, 64, 256, 4), traces.Experts(256, 64, 64, 4)]  # 256 divides one K; there are 128 rows
    others = [traces.Experts(16, 64, 64, 4, 32), traces.Experts(16, 64, 192, 4), traces.Experts(512, 16, 16, 4)]
    assert published.pruned_experts(qwen, [*tried, *others]) == tried
    assert published.groups_tried(qwen, tried[0]) == (1, 4, 8)


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
