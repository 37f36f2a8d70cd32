"""Builds as processes: side by side, interrupted, killed."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.support.building.builds import Project, contents, figures
from tests.support.building.projects import KERNELS, SCALE

SLOW = KERNELS.replace(
    "    i = tl.arange",
    "    if BLOCK == 32:\n        for n in tl.static_range(10000000):\n            factor += n\n    i = tl.arange",
)
"""Half of the variants take for ever."""


def finish(process, timeout: float = 120) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def wait_for(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)


def entries(project: Project) -> int:
    return sum(path.is_file() and not path.name.startswith(".") for path in project.cache.rglob("v2/*/*"))


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def started(project: Project, *options: str):
    """(a build of which 2 variants are compiled and 2 are not to be, its worker processes)."""
    process = project.start("--filter", "dtype=float16", "--jobs", "2", *options)
    try:
        wait_for(lambda: entries(project) == 2)
    except BaseException:
        process.kill()
        raise
    children = psutil.Process(process.pid).children(recursive=True)
    assert alive(children)
    return process, children


def check_next_run(project: Project) -> None:
    """What was compiled is kept; with the kernel repaired, a build is right."""
    assert figures(project.build("--filter", "dtype=float16,block=16", "-o", str(project.folder / "kept"))) == (0, 2)
    (project.folder / "k.py").write_text(KERNELS)
    assert figures(project.build("--filter", "dtype=float16"))[0] >= 2
    assert len(project.bundle().variants) == 4
    fresh = Project(project.folder / "fresh")
    fresh.build("--filter", "dtype=float16")
    assert contents(project.output / "tiny-gfx942") == contents(fresh.output / "tiny-gfx942")


@pytest.mark.parametrize("older", [False, True])
def test_an_interrupt_leaves_nothing_half_done(tmp_path, older):
    project = Project(tmp_path)
    if older:
        project.build("--filter", "dtype=float16", "--cache-dir", str(tmp_path / "other"))
    before = contents(project.output) if older else {}
    (tmp_path / "k.py").write_text(SLOW)
    process, children = started(project)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
    code, out, err = finish(process, 20)
    assert code == 130
    assert out == "compiling 4 variants with 2 workers\n"
    assert err == "aotbuild: interrupted; nothing was written, and what was compiled is in the cache\n"
    wait_for(lambda: not alive(children), 10)
    after = contents(project.output)
    assert {name: after[name] for name in after if not name.endswith(".lock")} == {
        name: before[name] for name in before if not name.endswith(".lock")
    }
    check_next_run(project)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_build_leaves_no_workers_and_nothing_half_done(tmp_path, end):
    project = Project(tmp_path, SCALE, SLOW)
    process, children = started(project)
    process.send_signal(end)
    assert finish(process, 20)[0] == -end
    wait_for(lambda: not alive(children), 10)
    assert not (project.output / "tiny-gfx942").exists()
    check_next_run(project)


def test_two_builds_of_one_bundle_take_turns(tmp_path):
    project = Project(tmp_path)
    first, second = project.start("--jobs", "2"), project.start("--jobs", "2")
    results = [finish(first), finish(second)]
    assert [code for code, _, _ in results] == [0, 0], results
    assert sorted(figures(out) for _, out, _ in results) == [(0, 8), (8, 0)], "the second found all that the first made"
    waited = [err for _, _, err in results if err]
    assert waited in ([], ["aotbuild: waiting for another build of tiny-gfx942\n"])
    assert len(project.bundle().variants) == 8


def test_two_builds_of_two_bundles_go_on_side_by_side(tmp_path):
    """One output folder, one cache, the same kernels: neither waits for the other, and both are right."""
    first, second = Project(tmp_path / "a"), Project(tmp_path / "b", SCALE.replace("bundle: tiny", "bundle: other"))
    second.output, second.cache = first.output, first.cache
    builds = [first.start("--jobs", "1"), second.start("--jobs", "1")]
    results = [finish(process) for process in builds]
    assert [(code, err) for code, _, err in results] == [(0, ""), (0, "")]
    assert all(sum(figures(out)) == 8 for _, out, _ in results)
    first.bundle()
    ours, theirs = (contents(first.output / f"{name}-gfx942") for name in ("tiny", "other"))
    assert {k: v for k, v in ours.items() if k.startswith("code/")} == {
        k: v for k, v in theirs.items() if k.startswith("code/")
    }


def test_a_build_waits_for_the_one_before_it(tmp_path):
    """The second, which has nothing slow to do, is held up while the first is at work, and goes on once it is gone."""
    project = Project(tmp_path, SCALE, SLOW)
    first, children = started(project)
    second = project.start("--filter", "dtype=float16,block=16")
    assert second.stderr.readline() == "aotbuild: waiting for another build of tiny-gfx942\n"
    assert second.poll() is None
    first.kill()
    first.communicate()
    code, out, _ = finish(second, 30)
    assert code == 0 and figures(out) == (0, 2)
    wait_for(lambda: not alive(children), 10)


def test_the_exit_status_and_the_streams_of_the_real_command(tmp_path):
    project = Project(tmp_path)
    code, out, err = finish(project.start("--filter", "dtype=float16,block=16"))
    assert (code, err) == (0, "") and figures(out) == (2, 0)
    (tmp_path / "k.py").write_text(KERNELS.replace("value * factor", "value * nothing"))
    code, out, err = finish(project.start("--filter", "dtype=float16,block=16"))
    assert code == 1 and "nothing is not defined" in err and "Traceback" not in err
    project.manifest.write_text("ops: 3\n")
    code, out, err = finish(project.start())
    assert (code, out) == (2, "")
    assert err == (
        f"aotbuild: error: {project.manifest}:1:1: ops: expected a mapping (given: 3)\n"
        f"aotbuild: error: {project.manifest}:1:1: the manifest: the key 'bundle' is missing\n"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("what", ["output", "cache"])
def test_a_folder_without_permission(tmp_path, what):
    project = Project(tmp_path)
    folder: Path = getattr(project, what)
    folder.mkdir()
    folder.chmod(0o555)
    result = project.build()
    assert result.exit_code == 1 and f"{folder} cannot be written: Permission denied" in result.stderr
