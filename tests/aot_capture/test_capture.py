"""`aotbuild capture` under real Triton without a GPU, each program in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aot_capture.records import Capture, read_capture
from aot_capture.values import Decoder
from tests.aot_capture.conftest import Captured, Session
from tests.docs.scripts import ROOT


def test_kernels_are_noted_with_what_their_code_depends_on(captured: Captured):
    capture = captured.capture
    assert {kernel.name for kernel in capture.kernels} == {"scale", "applied", "select", "gluon_copy"}
    assert all(kernel.rederived and not kernel.cache_hit for kernel in capture.kernels)
    assert [installed.key_ok for installed in capture.installations] == [True]
    assert not capture.unrecorded and not capture.notes

    scale = next(kernel for kernel in capture.kernels if kernel.name == "scale")
    assert scale.target == ["hip", "gfx942", 64] and scale.signature["x"] == "*fp32"
    assert scale.constants == [[[3], 64]]
    assert scale.site is not None and scale.site.startswith(str(captured.file.parent / "kernels.py"))
    refers = capture.functions[scale.function].refers
    assert refers["FACTOR"] == {"constexpr": 3} and refers["tl"] == {"module": "triton.language"}
    assert refers["double"]["function"] in capture.functions
    assert refers["helpers"]["namespace"][1]["shifted"]["function"] in capture.functions


def test_closures_enums_and_layouts_are_noted(captured: Captured):
    kernels = {kernel.name: kernel for kernel in captured.capture.kernels}
    closure = captured.capture.functions[kernels["applied"].function].refers
    assert "function" in closure["function"] and closure["constant"] == {"constexpr": 3}
    constants = {tuple(path): value for path, value in kernels["select"].constants}
    assert constants[(2,)] == {"enum": ["kernels", "Mode", "NEGATE", 2, "IntEnum"]}
    assert constants[(3,)] == {"dtype": "fp16"}
    layout = {tuple(path): value for path, value in kernels["gluon_copy"].constants}[(3,)]
    decode = Decoder(lambda name: name, lambda name: name).decode
    assert repr(decode(layout)).startswith("BlockedLayout")


def test_aggregate_classes_are_noted(session: Session):
    check_aggregate(session.capture("import aggregates")[0])


def check_aggregate(capture: Capture) -> None:
    (pair,) = capture.aggregates.values()
    tensor = {"import": ["triton.language.core", "tensor"]}
    assert pair.annotations == {"left": tensor, "right": tensor} and set(pair.methods) == {"__init__", "total"}
    assert all(method["function"] in capture.functions for method in pair.methods.values())
    (kernel,) = capture.kernels
    assert capture.functions[kernel.function].refers["Pair"] == {"aggregate": pair.id} and kernel.rederived


def test_a_kernel_costs_few_calls(session: Session):
    """A call costs about 0.1 μs in a program that runs: times would depend on the machine."""
    script = """
import sys, kernels
from aot_capture.recorder import Recorder
works, counts = Recorder._guarded, []
def counted(*arguments):
    calls = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    works(*arguments)
    sys.setprofile(None)
    counts.append(len(calls))
Recorder._guarded = counted
kernels.launch_all()
print(*counts[1:])
"""
    capture, result = session.capture(script)
    counts = [int(count) for count in result.stdout.split()]
    assert len(counts) == len(capture.kernels) - 1 > 1
    assert max(counts) < 600, counts


def test_launches_run_nothing_of_the_capture(session: Session):
    script = """
import sys, kernels
kernels.scale[(1,)](kernels.X, kernels.X, 1024, BLOCK=64)
seen = set()
sys.setprofile(lambda frame, *_: seen.add(frame.f_code.co_filename))
kernels.scale[(1,)](kernels.X, kernels.X, 1024, BLOCK=64)
sys.setprofile(None)
print(sorted(name for name in seen if 'aot_capture' in name and not name.endswith('no_gpu.py')))
"""
    capture, result = session.capture(script)
    assert len(capture.kernels) == 1 and result.stdout == "[]\n"


def test_a_program_without_triton_imports_only_what_waits_for_it(session: Session):
    script = "import sys; print(*sorted(name for name in sys.modules if name.startswith(('triton', 'aot_'))))"
    _, result = session.capture(script)
    names = {"aot_capture", "aot_capture.inductor", "aot_capture.starting", "aot_capture.variables"}
    assert set(result.stdout.split()) == names


def test_kernels_from_a_warm_cache_are_noted(session: Session):
    session.capture()
    (session.folder / "kernels.jsonl").unlink()
    capture, result = session.capture()
    assert len(capture.kernels) == 4 and all(k.cache_hit and k.rederived for k in capture.kernels)
    assert "4 kernels, 4 of them from a cache" in result.stderr


def test_worker_processes_are_captured(session: Session):
    script = """
import multiprocessing, subprocess, sys
import kernels
if __name__ == "__main__":
    kernels.scale[(1,)](kernels.X, kernels.X, 1024, BLOCK=64)
    context = multiprocessing.get_context("fork")
    worker = context.Process(target=lambda: kernels.scale[(1,)](kernels.X, kernels.X, 1000, BLOCK=64))
    worker.start(); worker.join()
    subprocess.run([sys.executable, "-c", "import kernels; kernels.scale[(1,)](kernels.X, kernels.X, 1, BLOCK=64)"])
"""
    capture, _ = session.capture(script)
    assert len(capture.kernels) == 3 == len({kernel.pid for kernel in capture.kernels})
    assert {installed.pid for installed in capture.installations} == {kernel.pid for kernel in capture.kernels}


def test_the_programs_own_listeners_are_called(session: Session):
    script = """
import triton, kernels
heard = []
triton.knobs.compilation.listener = lambda **event: heard.append(event["src"].name)
kernels.scale[(1,)](kernels.X, kernels.X, 1024, BLOCK=64)
with triton.knobs.compilation.scope():
    triton.knobs.compilation.listener = None
    kernels.scale[(1,)](kernels.X, kernels.X, 7, BLOCK=64)
saved = triton.knobs.compilation.listener
triton.knobs.compilation.listener = None
triton.knobs.compilation.listener = saved
kernels.scale[(1,)](kernels.X, kernels.X, 1, BLOCK=64)
del triton.knobs.compilation.listener
print(heard)
"""
    capture, result = session.capture(script)
    assert result.stdout == "['scale', 'scale']\n"
    assert len(capture.kernels) == 3


def test_a_shadowed_sitecustomize_runs(session: Session, tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import sys; sys.was_customised = True\n")
    path = os.pathsep.join(map(str, (other, ROOT, ROOT / "runtime")))
    _, result = session.capture("import sys, kernels; print(sys.was_customised)", PYTHONPATH=path)
    assert result.stdout == "True\n"


def test_what_cannot_be_noted_is_named_and_the_program_goes_on(session: Session):
    script = """
import triton, kernels
kernels.scale[(1,)](kernels.X, kernels.X, 1024, BLOCK=64)
import aot_capture.recorder
def fail(*_): raise ValueError("planted")
works, aot_capture.recorder.names_read = aot_capture.recorder.names_read, fail
kernels.select[(1,)](kernels.Pair(kernels.X, 60), kernels.X, MODE=1, DTYPE=kernels.tl.float16, BLOCK=64)
aot_capture.recorder.names_read = works
kernels.select[(1,)](kernels.Pair(kernels.X, 60), kernels.X, MODE=2, DTYPE=kernels.tl.float16, BLOCK=64)
print("went on")
"""
    capture, result = session.capture(script)
    assert result.stdout == "went on\n"
    assert [(each.name, each.reason) for each in capture.unrecorded] == [("select", "ValueError: planted")]
    assert "not recorded: select: ValueError: planted" in result.stderr
    assert [kernel.name for kernel in capture.kernels] == ["scale", "select"]


def test_a_triton_that_cannot_be_captured_is_imported(session: Session):
    script = (
        "import sys; sys.modules['aot_capture.listeners'] = None; import kernels; kernels.launch_all(); print('on')"
    )
    _, result = session.capture(script)
    assert result.stdout == "on\n" and "nothing is captured: ModuleNotFoundError" in result.stderr


def test_variables_of_the_script_are_left_alone(session: Session):
    """Variables that share names with a kernel's local ones are not asked for anything, and no kernel is read early:
    Triton would then refuse it where a global has changed before its first launch."""
    (session.folder / "script.py").write_text("""
from kernels import *

class Tensor:
    def __repr__(self): raise SystemExit("asked")

class Tensors:
    def __getattr__(self, name):
        raise ValueError(name) if name in ("_fields", "__qualname__") else SystemExit("asked")

u, v = Tensor(), Tensors()
i = {}
i["itself"] = i
WIDTH = tl.constexpr(1)

@triton.jit
def w(x, y):
    tl.store(y, tl.load(x) + WIDTH)

@triton.jit
def copy(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    u = v + 1
    w = u
    tl.store(y + i, w)

copy[(1,)](X, X, BLOCK=64)
WIDTH = tl.constexpr(2)
w[(1,)](X, X)
""")
    capture, result = session.capture("import script")
    assert result.returncode == 0, result.stderr
    assert [kernel.name for kernel in capture.kernels] == ["copy", "w"] and not capture.unrecorded
    copy, w = (capture.functions[kernel.function] for kernel in capture.kernels)
    assert "w" not in copy.refers and copy.refers["u"] == {"opaque": ["script.Tensor", ""]}
    assert copy.refers["v"] == {"opaque": ["Tensors", "ValueError: __qualname__"]}
    assert w.refers["WIDTH"] == {"constexpr": 2}


def test_a_file_that_cannot_be_written_does_not_stop_the_program(session: Session):
    script = (
        "import os, kernels; os.remove('kernels.jsonl'); os.mkdir('kernels.jsonl'); kernels.launch_all(); print('on')"
    )
    result = session.aotbuild("capture", "-o", "kernels.jsonl", "--arch", "gfx942", "--", sys.executable, "-c", script)
    assert result.stdout == "on\n"
    assert result.stderr.count("cannot be recorded") == 1


def test_a_killed_program_leaves_a_readable_file(session: Session):
    script = "import kernels, os; kernels.launch_all(); os.kill(os.getpid(), 9)"
    capture, result = session.capture(script)
    assert result.returncode == 128 + signal.SIGKILL
    assert len(capture.kernels) == 4 and capture.installations


def test_sources_can_be_left_out(session: Session):
    capture, _ = session.capture(
        "import kernels; kernels.scale[(1,)](kernels.X, kernels.X, 1024, BLOCK=64)", "--no-source"
    )
    assert all(function.source is None and function.source_sha256 for function in capture.functions.values())
    assert "tl.load" not in (session.folder / "kernels.jsonl").read_text()


def test_autotuners_are_noted(session: Session):
    """The program has a driver of its own that measures: results without a GPU are not recorded."""
    script = """
import triton
from aot_capture.no_gpu import NoGpuDriver
triton.runtime.driver.set_active(NoGpuDriver("hip:gfx942:64"))
import kernels
kernels.tuned[(1,)](kernels.X, 100)
kernels.tuned_with_hook[(1,)](kernels.X, 100)
"""
    result = session.aotbuild("capture", "-o", "k.jsonl", "--", sys.executable, "-c", script)
    capture = read_capture(session.folder / "k.jsonl")
    assert result.returncode == 0 and len(capture.autotunes) == 2
    plain, hooked = capture.autotunes
    assert plain.key == {"tuple": [100, "fp32"]} and plain.best == plain.configs[0][2]
    assert plain.configs[1][0]["num_warps"] == 2 and plain.configs[1][1] == [1.0, 1.0, 1.0]
    assert [config[3] for config in hooked.configs] == [True, True]
    assert capture.functions[hooked.function].name == "tuned_with_hook"


def test_autotuners_of_older_tritons_are_observed(session: Session):
    script = """
import triton.runtime.autotuner as autotuner
from aot_capture.listeners import observe_choices
seen = []
observe_choices(autotuner.Autotuner, lambda **event: seen.append(event))
import kernels
kernels.tuned[(1,)](kernels.X, 100)
kernels.tuned[(1,)](kernels.X, 100)
(event,) = seen
print(event["fn"] is kernels.tuned.fn, event["key"], len(event["configs_timings"]), event["cache_hit"])
assert event["duration"] > 0
"""
    _, result = session.capture(script)
    assert result.stdout == "True (100, 'fp32') 2 False\n"


def test_a_warm_cache_of_inductor_is_warned_of(session: Session):
    folder = session.folder / "inductor" / "fxgraph"
    (folder / "ab").mkdir(parents=True)
    _, result = session.capture("import kernels", TORCHINDUCTOR_CACHE_DIR=str(folder.parent))
    assert f"Inductor's cache in {folder.parent} is warm" in result.stderr


def test_the_environment_alone_captures(session: Session):
    exports = session.aotbuild("capture", "-o", session.folder / "k.jsonl", "--arch", "gfx942", "--env").stdout
    script = f'{exports}\n{sys.executable} -c "import kernels; kernels.launch_all()"'
    subprocess.run(["sh", "-ec", script], cwd=session.folder, check=True, timeout=60)
    assert len(read_capture(session.folder / "k.jsonl").kernels) == 4


def test_a_file_is_not_overwritten(session: Session):
    session.capture()
    capture, result = session.capture()
    assert result.returncode == 2 and "--append" in result.stderr
    capture, result = session.capture("import kernels; kernels.tuned[(1,)](kernels.X, 5)", "--append")
    assert result.returncode == 0 and len(capture.kernels) == 6
    assert not capture.autotunes  # nothing is measured without a GPU


def test_a_program_that_compiles_nothing_is_told_of(session: Session):
    capture, result = session.capture("pass")
    assert not capture.kernels and "No kernel was compiled" in result.stderr


def test_signals_reach_the_program(session: Session, tmp_path: Path):
    script = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); open('up', 'w'); time.sleep(60)"
    command = [sys.executable, "-m", "aot", "capture", "-o", "k.jsonl", "--", sys.executable, "-c", script]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "runtime")))}
    with subprocess.Popen(command, cwd=session.folder, env=environment, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not (session.folder / "up").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 7


OTHER_PYTHONS = [name for name in os.environ.get("AOTBUILD_TEST_TRITONS", "").split(os.pathsep) if name]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "sm_90"])
@pytest.mark.parametrize("python", OTHER_PYTHONS)
def test_other_tritons(session: Session, python: str, arch: str):
    """AOTBUILD_TEST_TRITONS names Pythons with other Tritons. Captured, then run again from the moved cache."""
    (session.folder / "torch.py").write_text("class Tensor: ...\n")  # Triton up to 3.7 asks for it on AMD
    lanes = 64 if arch == "gfx942" else 32
    command = ["--arch", arch, "--", python, "-c", f"import kernels; kernels.launch_all({lanes})"]
    result = session.aotbuild("capture", "-o", "kernels.jsonl", *command)
    if "ROCm linker" in result.stderr:
        pytest.skip("Triton 3.4 needs ROCm's linker, which this machine lacks")
    capture = read_capture(session.folder / "kernels.jsonl")
    assert result.returncode == 0, result.stderr
    assert len(capture.kernels) == 4 and all(kernel.rederived for kernel in capture.kernels)
    assert all(installed.key_ok for installed in capture.installations) and not capture.unrecorded
    (session.folder / "own-cache").rename(session.folder / "moved")
    result = session.aotbuild("run", "--no-compile", "--cache", "moved", *command)
    assert result.returncode == 0 and "0 would compile; from the cache: 4 kernels" in result.stderr, result.stderr
    (session.folder / "empty").mkdir()
    result = session.aotbuild("run", "--no-compile", "--warn", "--cache", "empty", *command)
    assert result.returncode == 0 and "4 would compile" in result.stderr, result.stderr
    if not capture.installations[0].triton.startswith("3.4."):
        result = session.aotbuild("capture", "-o", "aggregates.jsonl", *command[:-1], "import aggregates")
        check_aggregate(read_capture(session.folder / "aggregates.jsonl"))
