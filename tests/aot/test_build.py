"""Builds that are repeated, moved, concurrent, interrupted or killed."""

import os
import resource
import shutil
import signal
from pathlib import Path
from subprocess import Popen

import pytest
from filelock import FileLock

from tests.support.building.builds import Project, contents, figures
from tests.support.building.projects import KERNELS, SCALE, edit
from tests.support.building.tasks import wait_for
from tests.support.processes import descendants, gone

# The same inputs give the same bytes

ARCHS = ("gfx942", "sm_90")
SMALL = ("--filter", "block=16,dtype=float16")
HELPED = edit(
    KERNELS,
    ("import triton.language as tl\n", "import triton.language as tl\n\nfrom helpers.math import twice\n"),
    ("(value * factor)", "twice(value * factor)"),
)
HELPER = "import triton\n\n\n@triton.jit\ndef twice(x):\n    return x + x\n"


def project_at(folder: Path) -> Project:
    project = Project(folder, SCALE, HELPED)
    (folder / "helpers").mkdir()
    (folder / "helpers" / "math.py").write_text(HELPER)
    return project


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [("--line-info",), ()])
def test_the_same_manifest_gives_the_same_bytes(tmp_path: Path, options: tuple[str, ...]):
    """Builds differ in folder, process and order, and take kernels from the compiler or from the cache."""
    first, second = project_at(tmp_path / "a"), project_at(tmp_path / "deeper" / "still" / "b")
    options = ("--filter", "dtype=float16", *options)
    assert figures(first.build(*options, archs=ARCHS)) == (8, 0)
    assert figures(second.build(*options, archs=ARCHS[::-1], workers="--line-info" not in options)) == (8, 0)
    second.cache = first.cache
    again = tmp_path / "again"
    assert figures(second.build(*options, "-o", str(again), archs=ARCHS)) == (0, 8)
    for arch in ARCHS:
        one, other, cached = (contents(output / f"tiny-{arch}") for output in (first.output, second.output, again))
        assert one.keys() == other.keys() and {"bundle.json", "include/tiny.h", "stubs/tiny.pyi"} < one.keys()
        assert [name for name in one if not one[name] == other[name] == cached[name]] == []
        assert not [name for name, content in one.items() if str(tmp_path).encode() in content]
        code = [content for name, content in one.items() if name.startswith("code/")]
        assert all((b"k.py" in content) == ("--line-info" in options) for content in code)
        assert first.bundle(arch).id == second.bundle(arch).id
    assert first.bundle("gfx942").id != first.bundle("sm_90").id


# Processes

SLOW = KERNELS.replace(
    "    i = tl.arange",
    "    if BLOCK == 32:\n        for n in tl.static_range(10000000):\n            factor += n\n    i = tl.arange",
)
"""Half of the variants take for ever."""


def finish(process: Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=100)
    return process.returncode, out, err


@pytest.mark.sampled(1)
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_a_build_that_is_ended_leaves_no_workers_and_nothing_half_done(tmp_path: Path, end: signal.Signals):
    """An older bundle stays as it was, and what was compiled is kept: with the kernel repaired, the next build is
    right."""
    project = Project(tmp_path)
    project.build(*SMALL, "--cache-dir", str(tmp_path / "other"))
    before = contents(project.folder_of())
    (tmp_path / "k.py").write_text(SLOW)
    process = project.start("--filter", "dtype=float16", "--jobs", "2")
    try:
        wait_for(lambda: sum(path.is_file() and path.name[0] != "." for path in project.cache.rglob("v2/*/*")) == 2)
        children = descendants(process.pid)
        assert not all(map(gone, children))
        if end == signal.SIGINT:
            os.killpg(process.pid, end)  # as a terminal does: the whole group
        else:
            process.send_signal(end)
        code, out, err = finish(process)
    finally:
        process.kill()
    if end == signal.SIGINT:
        assert code == 130 and out.startswith("compiling 4 variants with 2 workers\n")
        assert err == "aotbuild: interrupted; nothing was written, and what was compiled is in the cache\n"
    elif end == signal.SIGTERM:
        assert (code, err) == (143, "aotbuild: terminated; no bundle was written\n")
    else:
        assert code == -end
    wait_for(lambda: all(map(gone, children)))
    assert contents(project.folder_of()) == before
    assert figures(project.build(*SMALL, "-o", str(tmp_path / "kept"))) == (0, 2)
    (tmp_path / "k.py").write_text(KERNELS)
    project.build("--filter", "dtype=float16")
    fresh = Project(tmp_path / "fresh")
    fresh.build("--filter", "dtype=float16")
    assert contents(project.folder_of()) == contents(fresh.folder_of()) and len(project.bundle().variants) == 4


def test_builds_of_one_bundle_take_turns_and_of_others_go_on(tmp_path: Path):
    project, other = Project(tmp_path), Project(tmp_path / "b", SCALE.replace("bundle: tiny", "bundle: other"))
    other.output, other.cache = project.output, project.cache
    project.output.mkdir()
    with FileLock(project.output / ".tiny-gfx942.lock"):
        waiting = project.start(*SMALL)
        assert waiting.stderr and waiting.stderr.readline() == "aotbuild: waiting for another build of tiny-gfx942\n"
        assert figures(other.build(*SMALL)) == (2, 0)
        assert waiting.poll() is None
    code, out, err = finish(waiting)
    assert (code, err) == (0, "") and figures(out) == (0, 2)
    assert len(project.bundle().variants) == 2


def test_builds_at_once_share_a_cache(tmp_path: Path):
    """Each is whole and the same, whoever compiled what."""
    projects = [Project(tmp_path / name) for name in "abc"]
    for project in projects:
        project.cache = tmp_path / "cache"
    ends = [finish(process) for process in [project.start(*SMALL, "--jobs", "1") for project in projects]]
    assert all((code, err, sum(figures(out))) == (0, "", 2) for code, out, err in ends), ends
    first, *others = (contents(project.folder_of()) for project in projects)
    assert all(other == first for other in others)
    assert figures(projects[0].build(*SMALL, "-o", str(tmp_path / "again"))) == (0, 2)


def test_the_exit_status_and_the_streams_of_the_real_command(tmp_path: Path):
    project = Project(tmp_path, "ops: 3\n")
    code, out, err = finish(project.start())
    assert (code, out) == (2, "")
    assert err == (
        f"aotbuild: error: {project.manifest}:1:1: ops: expected a mapping (given: 3)\n"
        f"aotbuild: error: {project.manifest}:1:1: the manifest: the key 'bundle' is missing\n"
    )


def test_a_build_from_the_cache_removes_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    project = Project(tmp_path)
    project.build(*SMALL)
    leftover = tmp_path / "aotbuild-pool-abcdefgh"
    leftover.mkdir()
    (leftover / "lock").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert figures(project.build(*SMALL)) == (0, 2)
    assert not leftover.exists()


def test_a_full_disk(tmp_path: Path):
    """The error names the bundle that cannot be written, and nothing is left of it."""
    project = Project(tmp_path)
    project.build(*SMALL)
    shutil.rmtree(project.folder_of())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        result = project.build(*SMALL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.exit_code == 1 and "bundle tiny-gfx942 cannot be written: File too large" in result.stderr
    assert not project.folder_of().exists()
