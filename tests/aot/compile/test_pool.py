import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from aot.compile import pool as pool_module
from aot.compile.jobs import CompiledKernel
from aot.compile.pool import CompileFailure, TimeLimitError, WarmPool, WorkerDiedError, default_workers, run_jobs
from tests.support.building import jobs, tasks


def told(*verbs: str) -> list:
    return [jobs.job(verb, "gfx942", (), {}) for verb in verbs]


def results(work, executor) -> dict:
    return {job.function: result for job, result in run_jobs(work, executor, tasks.act)}


def wait_for(condition, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it may end at any moment
        return True


def pids(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.iterdir()]


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path_factory, monkeypatch):
    """Pools put their folders here, and must take them away."""
    folder = tmp_path_factory.mktemp("pools")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def test_real_kernels_compile_and_a_failure_stops_nothing():
    good = [jobs.softmax(arch, block) for arch in ("gfx942", "gfx1100", "sm_90") for block in (64, 128)]
    bad = [jobs.job("wrong", "gfx942", (("x", "*fp32"),), {}), jobs.softmax("gfx942", options=(("num_warp", 1),))]
    with WarmPool(2, timeout_s=100) as pool:
        found = dict(run_jobs([good[0], *bad, *good[1:]], pool))
    assert found.keys() == {*good, *bad}
    assert all(isinstance(found[job], CompiledKernel) for job in good)
    assert all(found[job].options["arch"] in (job.arch, "sm90") for job in good)
    assert "undefined_name is not defined" in found[bad[0]].reason
    assert "Traceback" in found[bad[0]].traceback_text
    assert "unknown compiler option 'num_warp'" in found[bad[1]].reason


@pytest.mark.parametrize("executor", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_any_executor_will_do(executor):
    """In threads the compiles take turns, since Triton's settings belong to the process."""
    work = [jobs.softmax(arch, block) for arch in ("gfx942", "sm_90") for block in (64, 128, 256)]
    with executor(3) as pool:
        found = dict(run_jobs(work, pool))
    assert [type(found[job]) for job in work] == [CompiledKernel] * 6
    assert all(found[job].metadata.symbol == "softmax" for job in work)


def test_results_come_as_they_complete():
    with WarmPool(2) as pool:
        order = [job.function for job, _ in run_jobs(told("sleep:1.0", "echo:a", "echo:b", "echo:c"), pool, tasks.act)]
    assert order == ["echo:a", "echo:b", "echo:c", "sleep:1.0"]


def test_workers_stay_warm_and_are_recycled():
    with WarmPool(1) as pool:
        assert len({result for _, result in run_jobs(told(*["pid"] * 20), pool, tasks.act)}) == 1
    with WarmPool(1, jobs_per_worker=4) as pool:
        found = [result for _, result in run_jobs(told(*["pid"] * 20), pool, tasks.act)]
    assert len(found) == 20
    assert len(set(found)) == 5


def test_failures_and_exceptions_are_told_apart():
    with WarmPool(2) as pool:
        found = results(told("fail:no registers", "raise:oops", "echo:fine"), pool)
    assert found["fail:no registers"] == CompileFailure("no registers", "Traceback of no registers")
    assert found["raise:oops"].reason == "KeyError: 'oops'"
    assert "tasks.py" in found["raise:oops"].traceback_text
    assert found["echo:fine"] == "fine"


def test_a_crash_is_retried_once(tmp_path):
    once, always = tmp_path / "once", tmp_path / "always"
    with WarmPool(2) as pool:
        found = results(told(f"crash_once:{once}", f"crash_always:{always}", "exit:7", "echo:fine"), pool)
    assert found[f"crash_once:{once}"] == "second"
    assert found[f"crash_always:{always}"] == CompileFailure("the compiler process was killed by SIGABRT")
    assert always.read_text() == "xx"
    assert found["exit:7"] == CompileFailure("the compiler process exited with code 7")
    assert found["echo:fine"] == "fine"


def test_an_abort_of_the_compiler_carries_its_last_words():
    """LLVM ends the process over some mistakes, here over an instruction set too old for the target."""
    doomed = jobs.softmax("sm_100", options=(("ptx_version", 80),))
    with WarmPool(1) as pool:
        found = dict(run_jobs([doomed, jobs.softmax("gfx942")], pool))
    assert "the compiler process " in found[doomed].reason
    assert "LLVM ERROR: PTX version 8.0 does not support target 'sm_100a'" in found[doomed].reason
    assert isinstance(found[jobs.softmax("gfx942")], CompiledKernel)


def test_a_broken_executor_fails_its_jobs_and_ends():
    with ProcessPoolExecutor(1) as pool:
        found = results(told("exit:3", "echo:late"), pool)
    assert "terminated abruptly" in found["exit:3"].reason


def test_a_job_past_its_limit_is_killed_and_the_pool_goes_on(tmp_path):
    with WarmPool(2, timeout_s=0.8) as pool:
        start = time.monotonic()
        found = results(told("sleep:60", f"child:{tmp_path}", "echo:a", "echo:b"), pool)
        assert time.monotonic() - start < 10
    late = CompileFailure("timed out after 0.8 s")
    assert found == {"sleep:60": late, f"child:{tmp_path}": late, "echo:a": "a", "echo:b": "b"}
    assert all(wait_for(lambda pid=pid: gone(pid)) for pid in pids(tmp_path)), "what the worker waited for is gone too"


def test_a_job_in_c_code_is_killed(tmp_path):
    with WarmPool(1, timeout_s=0.5) as pool:
        found = results(told(f"hold:{tmp_path}", "echo:next"), pool)
    assert found[f"hold:{tmp_path}"].reason == "timed out after 0.5 s"
    assert found["echo:next"] == "next"
    assert all(map(gone, pids(tmp_path)))


def test_leaving_by_an_exception_kills_at_once(tmp_path):
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError), WarmPool(2) as pool:
        futures = [pool.submit(tasks.act, job) for job in told(f"hold:{tmp_path}", f"child:{tmp_path}", "echo:x")]
        assert wait_for(lambda: len(pids(tmp_path)) == 3)
        start = time.monotonic()
        raise ZeroDivisionError
    assert time.monotonic() - start < 2
    assert all(wait_for(lambda pid=pid: gone(pid)) for pid in pids(tmp_path))
    assert all(future.cancelled() for future in futures)


def test_futures_raise_typed_errors():
    with WarmPool(2, timeout_s=0.5) as pool:
        slow, dead = pool.submit(time.sleep, 60), pool.submit(os._exit, 3)
        with pytest.raises(TimeLimitError, match=r"timed out after 0\.5 s"):
            slow.result()
        with pytest.raises(WorkerDiedError, match="exited with code 3"):
            dead.result()
    with pytest.raises(RuntimeError):
        pool.submit(os.getpid)


PARENT = """
import sys, tempfile
from aot.compile.pool import WarmPool, run_jobs
from tests.support.building import jobs, tasks
tempfile.tempdir = sys.argv[2]
with open(f"{sys.argv[2]}.runs", "a") as runs:
    runs.write("x")
work = [jobs.job(f"{verb}:{sys.argv[1]}", "gfx942", (), {}) for verb in ("hold", "child")]
with WarmPool(2) as pool:
    list(run_jobs(work, pool, tasks.act))
"""


@pytest.fixture
def parent(tmp_path):
    """A process whose two workers are busy: in C code, and waiting for a process of their own. Its script has no
    `if __name__ == "__main__"`, so it would run again in each worker that imported it."""
    script, folder, scratch = tmp_path / "parent.py", tmp_path / "pids", tmp_path / "scratch"
    script.write_text(PARENT)
    folder.mkdir()
    scratch.mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, script, folder, scratch], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        assert wait_for(lambda: len(pids(folder)) == 3, 30)
        assert Path(f"{scratch}.runs").read_text() == "x"
        yield process, pids(folder), scratch
    finally:
        process.kill()
        process.wait()


def test_interrupting_ends_everything_at_once(parent):
    process, workers, scratch = parent
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert time.monotonic() - start < 3
    assert process.returncode == -signal.SIGINT
    assert errors.count("KeyboardInterrupt") == 1, "the workers are silent"
    assert all(wait_for(lambda pid=pid: gone(pid)) for pid in workers)
    assert list(scratch.iterdir()) == []


def test_workers_do_not_outlive_a_killed_parent(parent):
    process, workers, _ = parent
    process.kill()
    process.wait()
    assert all(wait_for(lambda pid=pid: gone(pid), 3) for pid in workers)


def test_the_number_of_workers(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(pool_module, "_available_memory_bytes", lambda: 64 << 30)
    assert default_workers(1000) == 16
    assert default_workers(3) == 3
    monkeypatch.setattr(pool_module, "_available_memory_bytes", lambda: 10 << 30)
    assert default_workers(1000) == 6
    monkeypatch.setattr(pool_module, "_available_memory_bytes", lambda: 1 << 30)
    assert default_workers(1000) == 1


def test_available_memory_is_of_this_machine():
    assert 0 < pool_module._available_memory_bytes() <= psutil.virtual_memory().total
