"""`aotbundle profile --time` on shipped bundles: output, sampling and errors."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from aot_bundle.callspec import CallSpec
from aot_bundle.command.main import main
from aot_bundle.profile.profile_call import make_call, open_for
from aot_bundle.profile.time_call import time_call
from aot_emulator import EmulatorDriver
from aot_emulator.timing import compute_unit, costs, sampling
from aot_emulator.timing.sampling import Sampled, SamplingRunner, chosen
from tests.aot_emulator.timing.conftest import in_python, plain_replay  # noqa: F401  (a fixture)
from tests.support.emulation.bundling import PLAIN_ATTENTION, built

SOFTMAX = ("softmax", "--dtype", "T=float16", "--shape", "x=400,1024")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["profile", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def flash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory, "attention", PLAIN_ATTENTION).path


def attention(bundle: Path, causal: bool = False, **dims: int) -> Sampled:
    extents = {"batch": 1, "heads": 2, "heads_kv": 2, "seqlen_q": 512, "seqlen_k": 512}
    call = CallSpec(
        dims=extents | {"head_dim": 64, "head_dim_v": 64} | dims,
        dtypes={"T": "float16"},
        scalars={"causal": str(causal).lower()},
    )
    (launch,) = time_call(EmulatorDriver(), bundle, "flash_attention", call).launches
    return launch.sampled


def test_the_command(rows_bundle: Path, tmp_path: Path):
    timeline = tmp_path / "timeline.json"
    result = run(rows_bundle, *SOFTMAX, "--time", "--timeline", timeline)
    assert result.exit_code == 0, result.output
    for part in ("us, modelled", "GB/s of device memory", "of 400 workgroups represents all", "not measured",
                 "latency of loads", "instructions that wait longest", "s_waitcnt"):  # fmt: skip
        assert part in result.output
    assert max(map(len, result.output.splitlines())) <= 100
    _check_timeline(json.loads(timeline.read_text()))


def _check_timeline(found: dict[str, Any]) -> None:
    """Assert that each wavefront does one thing at a time, and that all execute the same instructions, in the code's
    order."""
    assert found["otherData"] == {"measured": False, "arch": "gfx942"}
    events = [event for event in found["traceEvents"] if event["ph"] == "X"]
    threads = {event["tid"] for event in events}
    names = [event for event in found["traceEvents"] if event["name"] == "thread_name"]
    assert {event["tid"] for event in names} == threads and len(threads) >= 8
    executed = set()
    for thread in threads:
        mine = sorted((event for event in events if event["tid"] == thread), key=lambda event: event["ts"])
        for event, following in pairwise(mine):
            assert event["ts"] + event["dur"] <= following["ts"] + 1e-9
        executed.add(tuple(event["args"]["pc"] for event in mine if event["cat"] != "wait"))
    assert len(executed) == 1


def test_the_data(rows_bundle: Path):
    found = json.loads(run(rows_bundle, *SOFTMAX, "--time", "--json").stdout)
    (launch,) = found["launches"]
    assert found["measured"] is False and found["seconds"] == launch["seconds"] > 1e-6
    assert sum(launch["shares"].values()) == pytest.approx(1)
    assert all(0 <= part <= 1 for part in [*launch["shares"].values(), *launch["busy"].values()])
    assert launch["memory_bytes"] == 2 * 400 * 1024 * 2 and launch["flops"] == 0
    assert launch["waits"] and all(0 < sum(wait["shares"].values()) < 1 for wait in launch["waits"])


@pytest.mark.parametrize("arguments, words", [
    (("--timeline", "x.json"), "--timeline needs --time"), (("--time", "--by-instruction"), "exclude each other"),
])  # fmt: skip
def test_options_that_do_not_go_together(rows_bundle: Path, arguments: tuple[str, ...], words: str):
    result = run(rows_bundle, *SOFTMAX, *arguments)
    assert result.exit_code == 2 and words in result.stderr


def test_a_kernel_with_an_instruction_that_has_no_cost(rows_bundle: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(costs, "is_transcendental", lambda instruction: False)
    result = run(rows_bundle, *SOFTMAX, "--time")
    assert result.exit_code == 1 and "does not know its cost on gfx942" in result.stderr
    assert re.search(r"v_(exp|rcp)_f32 at pc 0x[0-9a-f]+ of softmax_rows", result.stderr), result.stderr


def test_a_workgroup_that_does_not_end(rows_bundle: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampling, "MOST_INSTRUCTIONS", 20)
    result = run(rows_bundle, *SOFTMAX, "--time")
    assert result.exit_code == 1 and "workgroups that wait for each other cannot be sampled" in result.stderr


def test_chosen_workgroups():
    assert chosen(3, 4) == (0, 1, 2)
    assert chosen(1000, 4)[0] == 0 and len(chosen(1000, 4)) == 4
    for count in (5, 64, 304, 4099):
        found = chosen(count, 16 if count > 16 else 4)
        assert list(found) == sorted(set(found)) and found[-1] < count
        assert max(b - a for a, b in pairwise(found)) <= 2 * -(-count // len(found))


def test_short_launches_are_run_whole_where_another_one_follows(rows_bundle: Path, monkeypatch: pytest.MonkeyPatch):
    """A device runs 2432 of 2600 rows at a time; of a longer launch, only 2432 are run."""
    call = CallSpec({"x": (2600, 1024)}, dtypes={"T": "float16"})
    for most, are_left in ((sampling.MOST_OF_A_SHORT_LAUNCH, False), (100, True)):
        monkeypatch.setattr(sampling, "MOST_OF_A_SHORT_LAUNCH", most)
        driver, runner = EmulatorDriver(), SamplingRunner()
        made = make_call(open_for(driver, rows_bundle, "softmax"), "softmax", call, {"out": "0"})
        left = []
        with driver.run_by(runner):
            for _ in range(2):
                made.run()
                left.append(np.count_nonzero(~made.arrays["out"].numpy().any(1)))
        assert left[0] > 100 and left[1] == (left[0] if are_left else 0)
        assert [len(found.run) for found in runner.found] == [4, 4]


@pytest.mark.slow
def test_samples_stand_for_all(flash: Path, monkeypatch: pytest.MonkeyPatch):
    """Workgroups of causal attention differ: results of 16 sampled of 64 are compared with those of all."""
    sampled = attention(flash, causal=True, heads=16, heads_kv=16)
    monkeypatch.setattr(sampling, "MORE_SAMPLES", 1000)
    whole = attention(flash, causal=True, heads=16, heads_kv=16)
    assert len(sampled.trace.workgroups) < len(whole.trace.workgroups) == whole.workgroups
    assert sampled.time.seconds == pytest.approx(whole.time.seconds, rel=0.1)
    assert sampled.flops == pytest.approx(whole.flops, rel=0.1)


@pytest.mark.slow
def test_iterations_stand_for_all(flash: Path, monkeypatch: pytest.MonkeyPatch):
    found = attention(flash, seqlen_k=4096)
    monkeypatch.setattr(compute_unit, "MANY", 10**6)
    whole = attention(flash, seqlen_k=4096)
    assert found.time.seconds == pytest.approx(whole.time.seconds, rel=0.03)
    assert found.time.shares == pytest.approx(whole.time.shares, abs=0.02)


@pytest.mark.slow
def test_keys_are_fetched_once_by_the_workgroups_that_share_them(flash: Path):
    """The heads on an XCD read the same keys; with one query block for each head, nothing is shared."""
    apart = attention(flash, heads=64, heads_kv=64, seqlen_q=128)
    assert apart.sharing.distinct == pytest.approx(apart.sharing.units)
    together = attention(flash, heads=64, heads_kv=1, seqlen_q=128)
    assert together.sharing.distinct == pytest.approx(1) and together.sharing.sum_by_xcd == pytest.approx(8)


@pytest.mark.slow
def test_numba_and_python_replay_alike(flash: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("numba", reason="needs the extra `timing`")
    quick = attention(flash)
    monkeypatch.setattr(compute_unit, "numbers", plain_replay())
    plain = attention(flash)
    assert plain.time.seconds == quick.time.seconds
    assert (plain.time.waited == quick.time.waited).all() and plain.time.shares == quick.time.shares
