import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pebble
import pytest

from aot.compile.compiler import compile_job, compile_job_again
from aot.compile.jobs import CompiledKernel, CompileJob
from aot.forked_process import WorkerDiedError
from aot.workers import pool as pool_module
from aot.workers.pool import CompileFailure, TimeLimitError, WarmPool, default_workers, run_jobs
from tests.support.building import jobs, tasks
from tests.support.building.tasks import wait_for
from tests.support.kernel_compiling import variants
from tests.support.processes import gone

_SPAWN = multiprocessing.get_context("spawn")


def told(*verbs: str) -> list[CompileJob]:
    return [jobs.job(verb, "gfx942", (), {}) for verb in verbs]


def results(executor: Executor, *verbs: str) -> list[tuple]:
    """Return the (verb, result) pairs in the order of arrival."""
    return [(job.function, result) for job, result in run_jobs(told(*verbs), executor, tasks.act)]


def pids(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.iterdir()]


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Point temporary files to a folder, which pools must leave empty."""
    folder = tmp_path_factory.mktemp("pools")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


def test_results_come_as_they_complete_and_a_failure_stops_nothing(tmp_path: Path):
    kernels = [jobs.job("wrong", "gfx942", (("x", "*fp32"),), {}), jobs.scalars("gfx942"), jobs.scalars("sm_90")]
    with WarmPool(2) as pool:
        go = tmp_path / "go"
        found = results(pool, f"until:{go}", "echo:a", "fail:no registers", "raise:oops", f"touch:{go}")
        built = dict(run_jobs(kernels, pool, compile_job))
    assert [verb.partition(":")[0] for verb, _ in found][:3] == ["echo", "fail", "raise"]
    by_verb = {verb.partition(":")[0]: result for verb, result in found}
    assert by_verb["fail"] == CompileFailure("no registers", "Traceback of no registers")
    assert by_verb["raise"].reason == "KeyError: 'oops'" and "tasks.py" in by_verb["raise"].traceback_text
    assert "undefined_name is not defined" in built[kernels[0]].reason
    assert [built[job].options["arch"] for job in kernels[1:]] == ["gfx942", "sm90"]


@pytest.mark.parametrize("executor", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_any_executor_will_do(executor: type[ThreadPoolExecutor] | type[ProcessPoolExecutor]):
    """In threads, compiles take turns, since Triton's settings belong to the process."""
    work = [jobs.softmax(arch, block) for arch in ("gfx942", "sm_90") for block in (64, 128)]
    with executor(2) as pool:
        found = dict(run_jobs(work, pool, compile_job))
    assert [type(found[job]) for job in work] == [CompiledKernel] * 4
    assert all(found[job].metadata.symbol == "softmax" for job in work)


def test_a_broken_executor_fails_its_jobs_and_ends(tmp_path: Path):
    with ProcessPoolExecutor(1) as pool:
        (_, failure), _ = results(pool, f"die:{tmp_path / 'marker'}", "echo:late")
    assert "terminated abruptly" in failure.reason


def test_workers_stay_warm_and_are_recycled():
    with WarmPool(1, jobs_per_worker=3) as pool:
        first, *rest = [result for _, result in results(pool, *["pid"] * 5)]
    assert rest[:2] == [first] * 2 and rest[2] == rest[3] != first


def test_a_recycled_worker_prints_nothing(capfd: pytest.CaptureFixture[str]):
    """Triton's bindings would print what a kernel of Gluon leaks when the interpreter ends."""
    (variant,) = variants(
        "gfx942", "gemm", "matmul", kernel="matmul_cdna3", config="tile_64x64", EPILOGUE="none", T="float16",
        UNALIGNED=False, SPLIT=False,
    )  # fmt: skip
    with WarmPool(1, jobs_per_worker=1) as pool:
        for _, compiled in run_jobs([variant.job, jobs.scalars("gfx942")], pool, compile_job):
            assert isinstance(compiled, CompiledKernel)
    assert capfd.readouterr() == ("", "")


def test_a_crash_is_retried_once(tmp_path: Path):
    """LLVM ends the process over some mistakes, here over an instruction set too old for the target. Its last words are
    passed on."""
    once, always = tmp_path / "once", tmp_path / "always"
    doomed = jobs.softmax("sm_100", options=(("ptx_version", 80),))
    with WarmPool(1) as pool:
        found = dict(results(pool, f"crash_once:{once}", f"die:{always}", "echo:fine"))
        ((_, failure),) = run_jobs([doomed], pool, compile_job)
    killed = CompileFailure("the compiler process was killed by SIGKILL")
    assert found == {"echo:fine": "fine", f"crash_once:{once}": "second", f"die:{always}": killed}
    assert always.read_text() == "xx"
    said = "the compiler process exited with code 1: LLVM ERROR: PTX version 8.0 does not support target 'sm_100a'"
    assert failure.reason.startswith(said), failure


def test_an_abort_is_told_with_what_the_compiler_printed_and_the_line():
    signature = (("x", "*fp32"), ("y", "*fp32"), ("ASM", "constexpr"), ("CONSTRAINTS", "constexpr"))
    constants = {"ASM": "v_mov_b32 $0, $1", "CONSTRAINTS": "=v,v,v"}
    work = jobs.job("assembly", "gfx942", signature, constants, source="kernels/foreign.py")
    with WarmPool(1) as pool:
        ((_, failure),) = run_jobs([work], pool, compile_job, compile_job_again)
    assert isinstance(failure, CompileFailure)
    lines = (jobs.ROOT / "kernels/foreign.py").read_text().splitlines()
    number = next(index for index, line in enumerate(lines, 1) if "inline_asm_elementwise" in line)
    assert failure.reason.startswith("the compiler process was killed by SIGABRT: ")
    assert "number of input constraints does not match number of parameters\n" in failure.reason
    assert failure.reason.endswith(
        "\n    kernels/foreign.py: kernel 'assembly'"
        f"\n    kernels/foreign.py:{number}: inline assembly 'v_mov_b32 $0, $1' with constraints '=v,v,v'"
    )


@pytest.mark.parametrize("known", [True, False])
def test_workers_that_die_before_they_have_a_job(monkeypatch: pytest.MonkeyPatch, known: bool):
    """Workers that die of low memory while they start are replaced, whether or not pebble knew of the jobs."""
    dying = WarmPool(1)
    monkeypatch.setattr(dying, "_pool", pebble.ProcessPool(1, initializer=os._exit, initargs=(9,), context=_SPAWN))
    with dying as pool:
        first = [pool.submit(tasks.act, job) for job in told("echo:a", "echo:b")]
        if not known:
            wait_for(lambda: not pool._pool.active)
            forgotten: Future[str] = Future()
            pool._futures[forgotten] = pool._pool
            first.append(forgotten)
        for future in first:
            with pytest.raises((WorkerDiedError, BrokenExecutor)):
                future.result(timeout=30)
        assert results(pool, "echo:c") == [("echo:c", "c")]


def test_a_job_past_its_limit_is_killed_and_the_pool_goes_on(tmp_path: Path):
    """The job may be in C code, or wait for a process of its own, which is killed too."""
    with WarmPool(2, timeout_s=0.5) as pool:
        found = dict(results(pool, f"hold:{tmp_path}", f"child:{tmp_path}", "echo:a"))
        with pytest.raises(TimeLimitError, match=r"timed out after 0\.5 s"):
            pool.submit(time.sleep, 60).result()
    late = CompileFailure("timed out after 0.5 s")
    assert found == {f"hold:{tmp_path}": late, f"child:{tmp_path}": late, "echo:a": "a"}
    wait_for(lambda: all(map(gone, pids(tmp_path))))
    with pytest.raises(RuntimeError):
        pool.submit(os.getpid)


def test_leaving_by_an_exception_kills_at_once(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), WarmPool(2) as pool:
        futures = [pool.submit(tasks.act, job) for job in told(f"hold:{tmp_path}", f"child:{tmp_path}", "echo:x")]
        wait_for(lambda: len(pids(tmp_path)) == 3)
        raise ZeroDivisionError
    wait_for(lambda: all(map(gone, pids(tmp_path))))
    assert all(future.cancelled() for future in futures)


PARENT = """
import pathlib, sys
from aot.workers.pool import WarmPool, run_jobs
from tests.support.building import jobs, tasks
folder = pathlib.Path(sys.argv[1])
folder.mkdir()
with WarmPool(2) as pool:
    list(run_jobs([jobs.job(f"{verb}:{folder}", "gfx942", (), {}) for verb in ("hold", "child")], pool, tasks.act))
"""


def test_workers_end_with_their_parent(tmp_path: Path):
    """A process whose two workers are busy: in C code, and waiting for a process of their own. Its script has no
    `if __name__ == "__main__"`, so it would run again, and fail, in each worker that imported it."""
    script, folder = tmp_path / "parent.py", tmp_path / "pids"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, script, folder], env=environment)
    try:
        wait_for(lambda: folder.is_dir() and len(pids(folder)) == 3)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: all(map(gone, pids(folder))))


def test_the_number_of_workers(monkeypatch: pytest.MonkeyPatch):
    assert 0 < pool_module._available_memory_bytes() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    for memory, jobs_there, workers in ((64, 1000, 16), (64, 3, 3), (10, 1000, 6), (1, 1000, 1)):
        monkeypatch.setattr(pool_module, "_available_memory_bytes", lambda size=memory: size << 30)
        assert default_workers(jobs_there) == workers
