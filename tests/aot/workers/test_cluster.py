"""Builds on a dask cluster: the bytes of a local build, whatever happens to the workers."""

import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("distributed", reason="clusters need the extra `cluster`")

from aot.compile.compiler import compile_job
from aot.compile.jobs import CompileJob
from aot.errors import BuildError, KernelFileError
from aot.workers import cluster as cluster_module
from aot.workers.cluster import ClusterPool
from aot.workers.pool import CompileFailure, run_jobs
from tests.support.building import jobs, tasks
from tests.support.building.builds import Project, contents, figures
from tests.support.building.clusters import Cluster, changed, kill
from tests.support.building.projects import KERNELS, SCALE, edit
from tests.support.building.tasks import wait_for
from tests.support.processes import descendants, gone

T = TypeVar("T")
SMALL = ("--filter", "block=16,dtype=float16")


class Elsewhere(ThreadPoolExecutor):
    """A worker that is a thread, from which one file is hidden."""

    def __init__(self, path: Path):
        super().__init__(1)
        self._path, self._aside = path, path.with_suffix(".aside")

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        def run() -> T:
            self._path.rename(self._aside)
            try:
                return fn(*args, **kwargs)
            finally:
                self._aside.rename(self._path)

        return super().submit(run)


def test_a_build_on_a_cluster_is_the_local_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The worker is in this process, and cannot read the project."""
    from distributed import LocalCluster

    project, local = Project(tmp_path), Project(tmp_path / "local")
    pool = Elsewhere(project.folder / "k.py")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(cluster_module, "_pool", lambda threads, timeout_s: pool)
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with LocalCluster(**options, protocol="tcp", host="127.0.0.1") as found:
        address = found.scheduler_address
        result = project.invoke(project.command(*SMALL, "--scheduler", address), workers=True)
    assert figures(result) == (2, 0) and f"compiling 2 variants with 1 worker of {address}\n" in result.stdout
    local.build(*SMALL)
    assert contents(project.folder_of()) == contents(local.folder_of())


def test_no_scheduler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """If nothing listens, or what listens never answers, the build fails in bounded time."""
    monkeypatch.setattr(cluster_module, "CONNECT_S", 0.2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = free.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (nobody, silent.getsockname()[1]):
            address = f"tcp://127.0.0.1:{port}"
            with pytest.raises(BuildError, match=f"^cannot connect to the scheduler at {address}: ."):
                ClusterPool(address)
    project = Project(tmp_path)
    result = project.build(*SMALL, "--scheduler", address)
    assert result.exit_code == 1 and f"aotbuild: error: cannot connect to the scheduler at {address}" in result.stderr
    wrong = project.build("--scheduler", "localhost:8786")
    assert wrong.exit_code == 2 and "write tcp://HOST:PORT or tls://HOST:PORT" in wrong.stderr


def test_sources_lie_on_a_worker_as_they_do_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file beside the root is sent too. A file whose hash has changed is an error."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = {"kernels/a.py": b"a", "../../beside.py": b"b"}
    unpacked = cluster_module._unpacked(tuple(files.items()))
    assert unpacked.is_relative_to(tmp_path)
    assert {file: (unpacked / file).read_bytes() for file in files} == files
    job = jobs.scalars("gfx942")
    sources = ((job.source, Path(job.root, job.source).read_bytes()),)
    changed = replace(job, sources=((job.source, "0" * 64),))
    with pytest.raises(KernelFileError, match=f"file {job.source} changed during the build; build again"):
        cluster_module._run_unpacked(compile_job, changed, sources, cluster_module._toolchain("gfx942", False))


def test_another_compiler_is_refused():
    job = jobs.scalars("gfx942")
    toolchain = cluster_module._toolchain("gfx942", False)
    assert cluster_module._run_unpacked(lambda found: replace(found, root=""), job, (), toolchain) == replace(
        job, root=""
    )
    with pytest.raises(
        Exception, match=f"^{socket.gethostname()} has another compiler than the machine that runs the build"
    ):
        cluster_module._run_unpacked(lambda _: None, job, (), {**toolchain, "compiler": ["3.8.0", ""]})


def test_a_call_is_made_where_it_is_unpickled():
    assert pickle.loads(pickle.dumps(cluster_module._Call((max, (1, 2))))) == 2


# With processes

HELPED = edit(
    KERNELS,
    ("import triton.language as tl\n", "import triton.language as tl\n\nfrom helpers.math import twice\n"),
    ("(value * factor)", "twice(value * factor)"),
)
HELPER = "import triton\n\n\n@triton.jit\ndef twice(x):\n    return x + x\n"
STALLING = edit(
    KERNELS,
    (
        "@triton.jit\n",
        "@triton.constexpr_function\ndef stalled(block):\n    folder = pathlib.Path(FOLDER)\n"
        "    if block == 32 and not (folder / 'marker').exists():\n"
        "        (folder / 'marker').touch()\n        (folder / 'pipe').read_bytes()\n    return 1\n\n\n"
        "@triton.jit\n",
    ),
    ("    row = tl.program_id(0)\n", "    row = tl.program_id(0) * stalled(BLOCK)\n"),
    ("import triton\n", "import pathlib\n\nimport triton\n"),
)
"""The first variant of a block of 32 takes forever: it waits for what nobody writes to a pipe."""


def stalling(folder: Path) -> Project:
    project = Project(folder, SCALE, STALLING.replace("FOLDER", repr(str(folder))))
    os.mkfifo(folder / "pipe")
    return project


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Start a cluster without workers, whose scheduler has no aotbuild."""
    (tmp_path / "scheduler").mkdir()
    environment = changed(tmp_path / "scheduler", "import sys; sys.modules['aot'] = None")
    with Cluster(tmp_path / "cluster", environment=environment) as found:
        yield found


def told(*verbs: str) -> list[CompileJob]:
    return [jobs.job(verb, "gfx942", (), {}) for verb in verbs]


@pytest.mark.slow
def test_workers_make_the_same_bytes(cluster: Cluster, tmp_path: Path):
    """Two workers, one of them with a nanny, build for two targets; then the cache needs no cluster. A worker told to
    end leaves nothing behind."""
    process, _ = cluster.worker("--nanny")
    cluster.worker("--nthreads", "2")
    project, local = (Project(tmp_path / name, SCALE, HELPED) for name in ("p", "local"))
    for one in (project, local):
        (one.folder / "helpers").mkdir()
        (one.folder / "helpers" / "math.py").write_text(HELPER)
    archs = ("gfx942", "sm_90")
    assert figures(project.build("--scheduler", cluster.address, archs=archs, workers=True)) == (16, 0)
    assert figures(local.build(archs=archs)) == (16, 0)
    assert contents(project.output) == contents(local.output)
    process.terminate()
    log = cluster.folder / "1-worker" / "log"
    assert process.wait(20) == 0 and "still alive" not in log.read_text() and not list(log.parent.glob("aotbuild-*"))
    kill(cluster.scheduler)
    assert figures(project.build("--scheduler", cluster.address, archs=archs)) == (0, 16)


@pytest.mark.slow
def test_jobs_end_as_they_do_locally(cluster: Cluster, tmp_path: Path):
    """Time limits and failures are those of a local pool; a compiler that crashes is tried once more."""
    _, address = cluster.worker()
    once, always = tmp_path / "once", tmp_path / "always"
    verbs = (f"hold:{tmp_path}", f"crash_once:{once}", f"die:{always}", "fail:no registers", "raise:oops", "echo:a")
    with ClusterPool(cluster.address, timeout_s=1.5) as pool:
        found: dict[str, Any] = {
            job.function: result for job, result in run_jobs(told(*verbs), pool, tasks.act, at_once=1)
        }
    assert found[verbs[0]] == CompileFailure("timed out after 1.5 s")
    assert found[verbs[1]] == "second" and found["echo:a"] == "a"
    assert found[verbs[2]] == CompileFailure(f"the compiler process was killed by SIGKILL (worker {address})")
    assert always.read_text() == "xx"
    assert found["fail:no registers"] == CompileFailure("no registers", "Traceback of no registers")
    assert found["raise:oops"].reason == "KeyError: 'oops'"
    (pid,) = (int(path.stem) for path in tmp_path.glob("*.worker"))
    assert gone(pid)


@pytest.mark.slow
def test_a_worker_that_is_killed(cluster: Cluster, tmp_path: Path):
    """Another worker compiles what it was compiling."""
    process, _ = cluster.worker()
    project = stalling(tmp_path / "p")
    build = project.start("--scheduler", cluster.address)
    try:
        wait_for((project.folder / "marker").exists)
        cluster.worker()
        kill(process)
        out, err = build.communicate(timeout=100)
    finally:
        build.kill()
    assert build.returncode == 0 and figures(out) == (8, 0), err


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_build_that_is_ended_ends_what_workers_compile(cluster: Cluster, tmp_path: Path, end: signal.Signals):
    """The workers then serve the next build."""
    process, _ = cluster.worker()
    project = stalling(tmp_path / "p")
    build = project.start("--scheduler", cluster.address)
    try:
        wait_for((project.folder / "marker").exists)
        compiling = descendants(process.pid)
        build.send_signal(end)
        code = build.wait(30)
    finally:
        build.kill()
    assert code == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[end]
    wait_for(lambda: any(map(gone, compiling)), 20)
    done, kept = figures(project.build("--scheduler", cluster.address, workers=True))
    assert done + kept == 8 and kept


@pytest.mark.slow
def test_a_scheduler_that_is_lost(cluster: Cluster, tmp_path: Path):
    cluster.worker()
    project = stalling(tmp_path / "p")
    build = project.start("--scheduler", cluster.address)
    started = time.monotonic()
    try:
        wait_for((project.folder / "marker").exists)
        kill(cluster.scheduler)
        _, err = build.communicate(timeout=60)
    finally:
        build.kill()
    assert build.returncode == 1 and f"the connection to the scheduler {cluster.address} was lost" in err
    assert "Traceback" not in err and time.monotonic() - started < 60
    assert figures(project.build())[1] > 0
