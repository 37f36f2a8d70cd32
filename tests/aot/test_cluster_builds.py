"""Builds on a cluster: the bytes of a local build, whatever happens to the workers."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

pytest.importorskip("distributed", reason="clusters need the extra `cluster`")

import aot
from aot.compile.cluster import executor, worker
from aot.compile.cluster.executor import ClusterError, ClusterPool
from tests.support.building.builds import Project, contents, figures
from tests.support.building.clusters import Cluster, changed, kill
from tests.support.building.projects import KERNELS, SCALE, edit
from tests.support.building.tasks import gone, wait_for

T = TypeVar("T")
ARCHS = ["gfx942"]
SMALL = ("--filter", "block=16,dtype=float16")
FULL = "No space left on device"


class Elsewhere(ThreadPoolExecutor):
    """One thread in place of a worker's processes, for which a file is not there."""

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
    """One worker, in this process, which cannot read the project."""
    from distributed import LocalCluster

    project, local = Project(tmp_path), Project(tmp_path / "local")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(worker, "WarmPool", lambda workers, limit_s: Elsewhere(project.folder / "k.py"))
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with LocalCluster(**options, protocol="tcp", host="127.0.0.1") as found:
        address = found.scheduler_address
        result = project.invoke(project.command(*SMALL, "--scheduler", address), workers=True)
    assert figures(result) == (2, 0) and f"compiling 2 variants with 1 worker of {address}\n" in result.stdout
    local.build(*SMALL)
    assert contents(project.folder_of()) == contents(local.folder_of())


def test_no_scheduler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """None listens; or what listens never answers, or is something else. Each is an error in bounded time."""
    monkeypatch.setattr(executor, "CONNECT_S", 0.2)
    monkeypatch.setattr(executor, "_GRACE_S", 0.1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = free.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (nobody, silent.getsockname()[1]):
            address = f"tcp://127.0.0.1:{port}"
            with pytest.raises(ClusterError, match=f"^no scheduler can be reached at {address}: ."):
                ClusterPool(address, ARCHS)
    project = Project(tmp_path)
    result = project.build(*SMALL, "--scheduler", address)
    assert result.exit_code == 1 and f"aotbuild: error: no scheduler can be reached at {address}" in result.stderr
    wrong = project.build("--scheduler", "localhost:8786")
    assert wrong.exit_code == 2 and "write tcp://HOST:PORT or tls://HOST:PORT" in wrong.stderr


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
"""Of some variants that which is compiled first takes for ever: it waits for what nobody writes to a pipe."""


def stalling(folder: Path) -> Project:
    project = Project(folder, SCALE, STALLING.replace("FOLDER", repr(str(folder))))
    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
    return project


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--line-info",)])
def test_workers_make_the_same_bytes(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, options: tuple[str, ...]
):
    """Two of them, one with a nanny, for two targets; and what the cache has then needs no cluster. The worker that is
    told to end does, and leaves nothing behind."""
    process, _ = cluster.worker("--nanny")
    cluster.worker("--nthreads", "2")
    project, local = (Project(tmp_path / name, SCALE, HELPED) for name in ("p", "local"))
    for one in (project, local):
        (one.folder / "helpers").mkdir()
        (one.folder / "helpers" / "math.py").write_text(HELPER)
    archs = ("gfx942", "sm_90")
    result = project.build(*options, "--scheduler", cluster.address, archs=archs, workers=True)
    assert figures(result) == (16, 0) and not [text for text in caplog.messages if "not used" in text]
    assert figures(local.build(*options, archs=archs)) == (16, 0)
    assert contents(project.output) == contents(local.output)
    process.terminate()
    log = cluster.folder / "1-worker" / "log"
    assert process.wait(20) == 0 and "still alive" not in log.read_text() and not list(log.parent.glob("aotbuild-*"))
    kill(cluster.scheduler)
    assert figures(project.build(*options, "--scheduler", cluster.address, archs=archs)) == (0, 16)


@pytest.mark.slow
@pytest.mark.parametrize("nanny", ["--no-nanny", "--nanny"])
def test_a_worker_that_is_killed(cluster: Cluster, tmp_path: Path, nanny: str):
    """What it was compiling is compiled elsewhere, or by the one that takes its place."""
    process, address = cluster.worker(nanny)
    project = stalling(tmp_path / "p")
    build = project.start("--scheduler", cluster.address)
    try:
        wait_for((project.folder / "marker").exists)
        if nanny == "--no-nanny":
            cluster.worker()
            kill(process)
        else:
            children = psutil.Process(process.pid).children()
            next(child for child in children if "resource_tracker" not in str(child.cmdline())).kill()
        out, err = build.communicate(timeout=100)
    finally:
        build.kill()
    assert build.returncode == 0 and figures(out) == (8, 0), err
    assert f"aotbuild: worker {address} is gone; jobs that it had: 1" in err
    local = stalling(tmp_path / "p")
    local.output, local.cache = tmp_path / "out", tmp_path / "cache"
    local.build()
    assert contents(project.output) == contents(local.output)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("import triton; triton.__version__ = '3.8.0'", "Triton is 3.8.0, not 3.9.0"),
        ("import aot; aot.__version__ = '0.0.1'", f"aotbuild is 0.0.1, not {aot.__version__}"),
        ("import os; os.environ['TRITON_DEFAULT_FP_FUSION'] = '0'", "TRITON_DEFAULT_FP_FUSION is false, not set"),
        ("import sys; sys.modules['aot'] = None", "ModuleNotFoundError: "),
    ],
)
def test_a_worker_that_is_another(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: str, said: str
):
    """It is refused by name before it compiles anything. Others are used; where there are none, nothing is built."""
    _, other = cluster.worker(environment=changed(tmp_path, change))
    project = Project(tmp_path / "p")
    result = project.build(*SMALL, "--scheduler", cluster.address)
    assert result.exit_code == 1 and not list(project.output.glob("tiny*"))
    assert f"aotbuild: error: no worker of {cluster.address} can be used: {other}: " in result.stderr
    assert said in result.stderr and "Traceback" not in result.stderr
    cluster.worker()
    caplog.clear()
    assert figures(project.build(*SMALL, "--scheduler", cluster.address, workers=True)) == (2, 0)
    assert any(f"worker {other} is not used: " in text and said in text for text in caplog.messages)


@pytest.mark.slow
@pytest.mark.parametrize(("kibibytes", "cause"), [(0, "File too large"), *((size, FULL) for size in (12, 20))])
def test_a_full_disk(cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, kibibytes: int, cause: str):
    """The worker is named with the cause, be it Python that is told of it or the compiler, and what it was given is
    compiled elsewhere. A disk of 0 is one that takes no large file."""
    wrapper: tuple[str, ...] = ("prlimit", "--fsize=4096", "--")
    if kibibytes:
        tried = ["unshare", "-m", "mount", "-t", "tmpfs", "none", str(tmp_path)]
        if subprocess.run(tried, capture_output=True).returncode:
            pytest.skip("a disk can be mounted by root only")
        mount = f'mount -t tmpfs -o size={kibibytes}k none "$TMPDIR" && exec "$@"'
        wrapper = ("unshare", "-m", "bash", "-c", mount, "_")
    _, full = cluster.worker(wrapper=wrapper)
    project = Project(tmp_path / "p")
    result = project.build(*SMALL, "--scheduler", cluster.address, workers=True)
    said = f"{full}: {cause} in {cluster.folder}"
    assert result.exit_code == 1 and said in result.stderr and not list(project.output.glob("tiny*"))
    cluster.worker()
    caplog.clear()
    assert figures(project.build(*SMALL, "--scheduler", cluster.address, workers=True)) == (2, 0)
    assert any(text.startswith(f"worker {full} is not used: {cause}") for text in caplog.messages)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_build_that_is_ended_ends_what_workers_compile(cluster: Cluster, tmp_path: Path, end: signal.Signals):
    """And the workers go on with the next build."""
    process, _ = cluster.worker()
    project = stalling(tmp_path / "p")
    build = project.start("--scheduler", cluster.address)
    try:
        wait_for((project.folder / "marker").exists)
        compiling = [child.pid for child in psutil.Process(process.pid).children() if child.cpu_times().user > 0.5]
        assert compiling
        started = time.monotonic()
        build.send_signal(end)
        code = build.wait(30)
        assert time.monotonic() - started < 15
    finally:
        build.kill()
    assert code == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[end]
    wait_for(lambda: all(map(gone, compiling)), 20)
    assert not list(project.output.glob("tiny*"))
    done, kept = figures(project.build("--scheduler", cluster.address, workers=True))
    assert done + kept == 8 and kept


@pytest.mark.slow
def test_a_scheduler_that_is_lost(cluster: Cluster, tmp_path: Path):
    cluster.worker()
    project = stalling(tmp_path / "p")
    build = project.start("--scheduler", cluster.address)
    try:
        wait_for((project.folder / "marker").exists)
        kill(cluster.scheduler)
        _, err = build.communicate(timeout=60)
    finally:
        build.kill()
    assert build.returncode == 1 and f"the connection to the scheduler {cluster.address} was lost" in err
    assert "Traceback" not in err
    assert figures(project.build())[1] > 0


@pytest.mark.slow
def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By dask's own configuration; without it there is no connection."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=aotbuild"
    made = [*command.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    files = {"ca-file": certificate, "cert": certificate, "key": key}
    options = [item for name, path in files.items() for item in (f"--tls-{name}", str(path))]
    with Cluster(tmp_path / "cluster", *options, "--protocol", "tls") as cluster:
        assert cluster.address.startswith("tls://")
        cluster.worker()
        project = Project(tmp_path / "p")
        plain = project.start(*SMALL, "--scheduler", cluster.address)
        _, err = plain.communicate(timeout=60)
        assert plain.returncode == 1 and f"no scheduler can be reached at {cluster.address}: " in err
        monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TLS__CA_FILE", str(certificate))
        monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT", str(certificate))
        monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY", str(key))
        out, err = project.start(*SMALL, "--scheduler", cluster.address).communicate(timeout=60)
        assert figures(out) == (2, 0), err
