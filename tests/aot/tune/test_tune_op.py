"""`aotbuild tune` from end to end: with the model, and on the emulator as a device; interrupted runs, and errors."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("tinygrad", reason="the model of time needs the extra `emulator`")

from aot.manifest.loading import load_tuning
from aot.manifest.schema import ConfigSpec
from aot.tune import model_timer
from tests.support.building.builds import Project
from tests.support.building.projects import edit
from tests.support.hip_double.double import DoubleLibrary

KERNELS = """\
import triton
import triton.language as tl


@triton.jit
def double(x, out, n, BLOCK: tl.constexpr, WRONG: tl.constexpr = False):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(out + at, value * (3 if WRONG else 2), mask=at < n)
"""
MANIFEST = """\
bundle: tiny
ops:
  double:
    tensors:
      x: {shape: [n], dtype: float32}
      out: {shape: [n], dtype: float32, role: output}
    specialisations: [general]
    launches:
      - kernel: k.py:double
        grid: ["cdiv(n, BLOCK)"]
        configs: [{name: base, blocks: {BLOCK: 512}, options: {num_warps: 1}}]
"""
SPACE = """\
op: double
groups:
  - name: base
    candidates: [{blocks: {BLOCK: [64, 512]}}]
    calls: [{dims: {n: 200000}}]
"""
WRONG = edit(SPACE, ("{BLOCK: [64, 512]}", "{BLOCK: [64, 512], WRONG: [false, true]}"), ("200000", "300"))


class Tuned(Project):
    """A tiny project with a space."""

    def __init__(self, folder: Path, space: str = SPACE):
        super().__init__(folder, MANIFEST, KERNELS)
        (folder / "tuning/spaces").mkdir(parents=True)
        (folder / "tuning/spaces/double.yaml").write_text(space)
        self.tuning, self.results = folder / "tuning/double.yaml", folder / "times.jsonl"

    def words(self, *options: str) -> list[str]:
        return ["tune", "double", str(self.manifest), "--arch", "gfx942", "--cache-dir", str(self.cache), "-j", "1",
                "--results", str(self.results), *options]  # fmt: skip

    def tune(self, *options: str) -> str:
        result = self.invoke(self.words(*options))
        assert result.exit_code == 0, result.output
        return result.output

    def refused(self, *options: str) -> tuple[int, str]:
        result = self.invoke(self.words(*options))
        return result.exit_code, result.output

    @property
    def times(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.results.read_text().splitlines()]

    @property
    def base(self) -> ConfigSpec:
        (entry,) = load_tuning(self.tuning).spec.tuning
        return entry.launches["double"][0]


@pytest.fixture(scope="module")
def modelled_run(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """Return the state of a run that was stopped while the second candidate was modelled, and continued."""
    project = Tuned(tmp_path_factory.mktemp("tuned"))
    whole = model_timer._Worker.time
    calls = iter(range(9))

    def interrupted(worker: Any, task: Any) -> Any:
        if next(calls):
            raise KeyboardInterrupt
        return whole(worker, task)

    with mock.patch.object(model_timer._Worker, "time", interrupted):
        assert project.refused()[0] != 0
    assert len(project.times) == 1 and not project.tuning.exists()
    project.results.write_text(project.results.read_text() + '{"op": "dou')  # as a killed run may leave it
    project.tune("--write-shortlist", str(project.folder / "short.yaml"))
    return project


def test_the_best_becomes_the_config_and_no_time_is_asked_for_twice(modelled_run: Tuned):
    """The existing config has the same code as candidate 2."""
    seconds = {entry["candidate"].get("BLOCK", 512): entry["seconds"] for entry in modelled_run.times}
    assert len(modelled_run.times) == 2 and seconds[64] < seconds[512] * 0.98
    assert modelled_run.base.blocks == {"BLOCK": 64} and modelled_run.base.options == {"num_warps": 1}
    assert modelled_run.base.modelled and modelled_run.base.modelled.version.startswith("model ")
    assert modelled_run.tune("--dry-run") == "double for gfx942\n  base: 2 candidates, 1 call\n"


def test_a_shortlist_says_what_it_is_for(modelled_run: Tuned):
    """Configs found on a device are marked as measured, and the model leaves them as they are."""
    measured = modelled_run.folder / "measured.yaml"
    words = ["tune", "--shortlist", str(modelled_run.folder / "short.yaml"), "--cache-dir", str(modelled_run.cache),
             "--results", str(modelled_run.results)]  # fmt: skip
    options = ["--device", "emulator", "--dim", "n=300", "--rounds", "1", "--margin", "0"]
    result = modelled_run.invoke([*words, *options, "-o", str(measured)])
    assert result.exit_code == 0, result.output
    assert "measured on AMD Instinct MI300X, emulated" in result.output
    said = 'measured: {device: MI300X, date: "2026-01-31", figure: Best.}'
    launches = "{double: [{name: base, blocks: {BLOCK: 512}}]}"
    before = f"tuning:\n  - arch: [gfx942]\n    {said}\n    launches: {launches}\n"
    tuned, _ = modelled_run.tuning.read_text(), modelled_run.tuning.write_text(before)
    assert "base: unchanged: 'base' was measured, and a modelled time does not replace it" in modelled_run.tune()
    assert modelled_run.tuning.read_text() == before
    modelled_run.tuning.write_text(tuned)


def test_on_a_device_a_wrong_candidate_is_named_and_dropped(tmp_path: Path):
    project = Tuned(tmp_path, WRONG)
    output = project.tune("--device", "emulator", "--rounds", "1", "-o", str(tmp_path / "tuned.yaml"), "--margin", "0")
    faults = {tuple(entry["candidate"].values()): entry["fault"] for entry in project.times}
    wrong = {candidate for candidate, fault in faults.items() if fault == "computes another out"}
    assert wrong == {(64, True), (512, True)} and not any(faults[key] for key in faults.keys() - wrong)
    assert "left out: 2 computes another out" in output and not project.tuning.exists()


COSTED = edit(
    MANIFEST,
    (
        "        configs: [{name: base,",
        """        cost: start + step * cdiv(n, BLOCK * times)
        configs: [{name: small, when: n > 0, blocks: {BLOCK: 64}, options: {num_warps: 1}}, {name: base,""",
    ),
    ("    specialisations:", "    alternatives: {times: [1, 2]}\n    specialisations:"),
    ('"cdiv(n, BLOCK)"', '"cdiv(n, BLOCK)", times'),
)
FITTED = """\
tuning:
  - arch: [gfx942]
    modelled: {by: guesses}
    launches:
      double:
        - {name: small, fitted: {start: 9, step: 1}}
        - {name: base, fitted: {start: 1, step: 1}}
"""
DRAWS = "op: double\ndraws: [{dims: {n: [1, 30000, 8]}}]\n"


def test_costs_are_fitted_to_modelled_times_of_all_ways(tmp_path: Path):
    project = Tuned(tmp_path, DRAWS)
    project.manifest.write_text(COSTED)
    project.tuning.write_text(FITTED)
    built = project.invoke(["--arch", "gfx942", str(project.manifest), "-o", str(tmp_path), "--cache-dir",
                            str(project.cache)])  # fmt: skip
    assert built.exit_code == 0, built.output
    options = ("--costs", str(tmp_path / "tiny-gfx942"), "--count", "9", "--seed", "3")
    first = project.tune(*options)
    found = re.search(r"regret of 3 calls that the fit does not use: mean (\d+\.\d)%", first)
    assert found and float(found[1]) < 10
    times = [json.loads(line) for line in project.results.read_text().splitlines()]
    assert len(times) == 9 and {*times[0]["seconds"]} == {
        f"times={times} 0:{config}" for times in (1, 2) for config in ("small", "base")
    }
    configs = load_tuning(project.tuning).spec.tuning[0].launches["double"]
    assert 1 < configs[0].fitted["start"] < 9 and configs[1].fitted["step"] < 1
    again = project.tune(*options)
    assert "timing all ways of 0 calls" in again and len(project.results.read_text().splitlines()) == 9


def test_recorded_calls(modelled_run: Tuned):
    """The op's calls are used, whichever bundle made them; one that is recorded twice is compared once."""
    calls = modelled_run.folder / "calls.yaml"
    entry = "  - {bundle: other, op: double, dims: {n: 7}, count: 3}\n"
    calls.write_text(f"calls:\n{entry}{entry}  - {{op: triple}}\n  - {{op: double, dims: {{n: 70}}, arch: [sm_90]}}\n")
    assert modelled_run.tune("--dry-run", "--for", str(calls)).endswith("base: 2 candidates, 1 call\n")
    calls.write_text("calls:\n  - {op: triple}\n")
    assert f"no call of op 'double' for gfx942 in {calls}" in modelled_run.refused("--for", str(calls))[1]


REFUSED = (
    (("--arch", "gfx1100"), 1, "the model of time does not support gfx1100; supported: gfx942"),
    (("--device", "emulator"), 1, "such times mean nothing, so they are written only to a file given with -o"),
    (("--device", "emulator:gfx90a"), 1, "(gfx90a), but --arch is gfx942"),
    (("--group", "bass"), 1, "the space has no group 'bass' for gfx942; did you mean 'base'?"),
    (("--dim", "m=3"), 2, "the command line: double has no dim 'm'; known: n"),
    (("--dim", "n=3", "--for", "x.yaml"), 2, "--for excludes --dim"),
    (("--model", "--device", "hip"), 2, "--model and --device exclude each other"),
)


@pytest.mark.parametrize("options, status, message", REFUSED)
def test_what_is_refused(modelled_run: Tuned, options: tuple[str, ...], status: int, message: str):
    assert modelled_run.refused(*options)[0] == status
    assert message in modelled_run.refused(*options)[1]


def test_a_space_that_leaves_nothing_says_why(tmp_path: Path):
    space = edit(SPACE, ("    calls:", '    constraints: [BLOCK != 512]\n    require: ["load_bits > 999"]\n    calls:'))
    status, output = Tuned(tmp_path, space).refused()
    assert status == 1 and "the space leaves no candidate\n  base: 1 does not meet" in output
    assert "1 does not meet BLOCK != 512" in output and "1 does not meet load_bits > 999" in output


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path: Path):
    project = Tuned(tmp_path, edit(SPACE, ("[64, 512]", "[64, 128, 256, 512, 1024]")))
    process = subprocess.Popen([sys.executable, "-m", "aot", *project.words()], stdout=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not (project.results.exists() and len(project.times) > 1) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    known = project.times
    project.tune("-j", "2")
    assert project.times[: len(known)] == known and len(project.times) == 5


@pytest.mark.slow
def test_on_the_double_of_a_gpu(hip_double: DoubleLibrary, tmp_path: Path):
    """Launches go through hip-python and are carried out as late as they may be."""
    project = Tuned(tmp_path, WRONG)
    hip_double.run(tune_over_double, project.words("--device", "hip", "--rounds", "1"))
    assert [entry["fault"] for entry in project.times].count("computes another out") == 2
    assert project.base.measured and project.base.measured.version.startswith("triton ")


def tune_over_double(words: list[str]) -> None:
    """Run the command in this process, with launches on the emulator."""
    from aot.cli import main
    from tests.support.emulated_launches import EmulatedLaunches

    launches = EmulatedLaunches()  # it holds the callback
    main([*words, "--margin", "0"], standalone_mode=False)
    del launches


def test_measuring_needs_no_emulator():
    """With --device, neither trials nor costs import the emulator, whose tables a machine with a GPU may lack."""
    code = "import sys, aot.tune.costs, aot.tune.tune_op; sys.exit('aot_emulator' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
