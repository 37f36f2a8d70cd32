"""What a build does to the folder that its bundle is written to: it takes away its own, and nothing else."""

import itertools
import os
import shutil
from pathlib import Path

import pytest

from aot_runtime.bundle.reading import read_index
from tests.support.building.builds import Project, contents
from tests.support.building.projects import KERNELS

TWO = ("--filter", "dtype=float16,block=16")
OTHER = KERNELS.replace("value * factor", "value * factor + 1")

USERS = (
    ".gitignore",
    ".git/HEAD",
    ".nfs000001",
    "NOTES",
    "code/.keep",
    "code/0123456789abcdef.hsaco",
    "code/tuned.hsaco",
    "code/deeper/.hidden",
    "selftest/0123456789abcdef.npz",
    "selftest/mine.txt",
    "include/.clang-format",
    "include/other.h",
    ".bundle.json.x1y2z3ab",
    ".aotbuild-notes",
    ".aotbuild-Notes123/file",
    ".aotbuild-notes1234/file",
)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def folder(project: Project, tmp_path: Path) -> Path:
    """The folder of a bundle that was built; the project's kernel is another now."""
    (project.folder / "k.py").write_text(KERNELS)
    project.output = tmp_path / "out"
    assert project.build(*TWO).exit_code == 0
    (project.folder / "k.py").write_text(OTHER)
    return project.output / "tiny-gfx942"


def test_files_of_users_stay(project: Project, folder: Path):
    for name in USERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("the user's own")
    (folder / ".aotbuild-linkto_1").symlink_to(project.folder)
    old = {blob.file for blob in read_index(folder).blobs.values()}
    assert project.build(*TWO).exit_code == 0
    new = {blob.file for blob in read_index(folder).blobs.values()}
    left = contents(folder)
    assert {name for name in left if left[name] == b"the user's own"} == {*USERS}
    assert not old & left.keys() and new <= left.keys() and len(old) == len(new) == 2
    assert (folder / ".aotbuild-linkto_1").is_symlink() and (project.folder / "k.py").exists()


def test_a_damaged_index_says_nothing_of_what_is_there(project: Project, folder: Path):
    old = {blob.file for blob in read_index(folder).blobs.values()}
    (folder / "bundle.json").write_text("{}")
    assert project.build(*TWO).exit_code == 0
    assert old <= contents(folder).keys()


def killed(project: Project, step: int) -> bool:
    """Build in a process that is gone before the `step`-th file is put in place; whether there are so many."""
    process = os.fork()
    if process == 0:
        calls, replace = itertools.count(), Path.replace

        def replace_or_end(path: Path, target: Path) -> Path:
            if path.is_relative_to(project.output) and next(calls) == step:
                os._exit(9)
            return replace(path, target)

        Path.replace = replace_or_end  # type: ignore[method-assign]
        project.build(*TWO)
        os._exit(0)
    return os.waitpid(process, 0)[1] != 0


def test_nothing_is_left_of_a_build_that_was_killed(project: Project, folder: Path, tmp_path: Path):
    """Neither its folder, nor what it had moved out of that; the next build may be of something else again."""
    pristine, fresh = tmp_path / "pristine", {}
    shutil.copytree(folder, pristine)
    project.output = tmp_path / "fresh"
    for text in (OTHER, KERNELS):
        (project.folder / "k.py").write_text(text)
        assert project.build(*TWO).exit_code == 0
        fresh[text] = contents(project.output / "tiny-gfx942")
    project.output = tmp_path / "out"
    for step in itertools.count():
        shutil.rmtree(folder)
        shutil.copytree(pristine, folder)
        (project.folder / "k.py").write_text(OTHER)
        if not killed(project, step):
            break
        assert project.bundle().id == read_index(pristine).id
        for text in (KERNELS, OTHER)[step % 2 :]:
            (project.folder / "k.py").write_text(text)
            assert project.build(*TWO).exit_code == 0
            assert contents(folder) == fresh[text]
    assert step == 5, "two code objects, a header, a stub and the index"


@pytest.mark.parametrize("older", [True, False])
def test_a_bundle_that_no_reader_takes_does_not_replace_one(project: Project, folder: Path, monkeypatch, older: bool):
    if not older:
        shutil.rmtree(folder)
    before = contents(folder)
    monkeypatch.setattr("aot.write.bundle_writer.header_text", lambda index: "of another bundle")
    result = project.build(*TWO)
    assert result.exit_code == 1 and contents(folder) == before and folder.exists() == older
    assert result.stderr.startswith(
        "aotbuild: error: bundle tiny-gfx942 was not written, as no reader would take it: include/tiny.h belongs to "
    )


def test_a_build_with_nothing_to_do_reads_no_code_object(project: Project, folder: Path, monkeypatch):
    (project.folder / "k.py").write_text(KERNELS)
    monkeypatch.setattr("aot.write.placing.verify_bundle", lambda folder: ["was verified"])
    assert project.build(*TWO).exit_code == 0
