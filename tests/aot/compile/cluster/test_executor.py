"""Jobs on a cluster, whatever happens to its workers."""

import threading
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="clusters need the extra `cluster`")

from aot.compile.cluster import executor
from aot.compile.cluster.executor import ClusterError, ClusterPool
from aot.compile.jobs import CompileJob
from aot.compile.pool import CompileFailure, run_jobs
from tests.support.building import jobs, tasks
from tests.support.building.clusters import Cluster, changed
from tests.support.building.tasks import gone, wait_for

ARCHS = ["gfx942"]
pytestmark = pytest.mark.slow


def told(*verbs: str) -> list[CompileJob]:
    return [jobs.job(verb, "gfx942", (), {}) for verb in verbs]


def results(pool: ClusterPool, *verbs: str) -> dict[str, object]:
    return {job.function: result for job, result in run_jobs(told(*verbs), pool, tasks.act)}


def test_a_job_that_kills_its_workers(cluster: Cluster, tmp_path: Path):
    """It is named, and not tried for ever; what was compiled beside it is not held to be at fault."""
    _, first = cluster.worker("--nthreads", "3")
    with ClusterPool(cluster.address, ARCHS) as pool:
        mark, go = tmp_path / "mark", tmp_path / "go"
        verbs = (f"kill_parent:{mark}", f"until:{go}", "echo:a", "echo:b")
        found: dict[str, object] = {}
        running = threading.Thread(target=lambda: found.update(results(pool, *verbs)), daemon=True)
        running.start()
        wait_for(mark.exists)
        go.touch()
        second, _ = cluster.worker()
        wait_for(lambda: second.poll() is not None)
        cluster.worker()
        running.join(60)
    assert not running.is_alive() and mark.read_text() == "xx"
    killer = found.pop(verbs[0])
    assert isinstance(killer, CompileFailure)
    assert killer.reason.startswith(f"worker {first} died when it compiled this; worker tcp://127.0.0.1:")
    assert killer.reason.endswith(" died when it compiled nothing else")
    assert found == {f"until:{go}": None, "echo:a": "a", "echo:b": "b"}


def test_the_limits_are_those_of_a_local_pool(cluster: Cluster, tmp_path: Path):
    """Time; a compiler that crashes is tried once more; a failure stops nothing."""
    _, address = cluster.worker()
    once, always = tmp_path / "once", tmp_path / "always"
    verbs = (f"hold:{tmp_path}", f"crash_once:{once}", f"die:{always}", "fail:no registers", "raise:oops", "echo:a")
    with ClusterPool(cluster.address, ARCHS, timeout_s=1.5, limit=1) as pool:
        found = results(pool, *verbs)
    assert found[verbs[0]] == CompileFailure("timed out after 1.5 s")
    assert found[verbs[1]] == "second" and found["echo:a"] == "a"
    assert found[verbs[2]] == CompileFailure(f"the compiler process was killed by SIGKILL (worker {address})")
    assert always.read_text() == "xx"
    assert found["fail:no registers"] == CompileFailure("no registers", "Traceback of no registers")
    raised = found["raise:oops"]
    assert isinstance(raised, CompileFailure) and raised.reason == "KeyError: 'oops'"
    (pid,) = (int(path.stem) for path in tmp_path.glob("*.worker"))
    assert gone(pid)


def test_a_job_that_is_cancelled_ends_and_others_go_on(cluster: Cluster, tmp_path: Path):
    cluster.worker()
    with ClusterPool(cluster.address, ARCHS) as pool:
        cancelled, other = (pool.submit(tasks.act, job) for job in told(f"hold:{tmp_path}", "echo:a"))
        wait_for(lambda: any(tmp_path.glob("*.worker")))
        assert cancelled.cancel() and other.result(60) == "a"
    (pid,) = (int(path.stem) for path in tmp_path.glob("*.worker"))
    assert gone(pid)


def test_a_cluster_without_workers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(executor, "WORKERS_S", 1.0)
    with pytest.raises(ClusterError, match="has no workers, which was waited for 1 s"):
        ClusterPool(cluster.address, ARCHS)


def test_a_damaged_result_is_not_taken(cluster: Cluster, tmp_path: Path):
    change = (
        "import dataclasses; from aot.compile.cluster import worker; sealed = worker.sealed; "
        "worker.sealed = lambda *results: dataclasses.replace(sealed(*results), digest='0' * 64)"
    )
    _, address = cluster.worker(environment=changed(tmp_path, change))
    with ClusterPool(cluster.address, ARCHS) as pool:
        (failure,) = results(pool, "echo:a").values()
    assert failure == CompileFailure("; ".join([f"the result of worker {address} is damaged"] * 2))
