"""Installing a bundle, interrupted anywhere: a build removes its own files, and no others."""

import itertools
import os
import shutil
from pathlib import Path
from unittest import mock

import pytest

from aot_bundle.verification import verify_bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.records import SIGNATURES, TEXT_FILES
from aot_runtime.folders import OpenFolder
from tests.support.building.builds import Project, contents
from tests.support.building.projects import KERNELS

TWO = ("--filter", "dtype=float16,block=16")
OTHER = KERNELS.replace("value * factor", "value * factor + 1")
USERS = (
    ".gitignore", ".git/HEAD", ".nfs000001", "NOTES", "code/.keep", "code/0123456789abcdef.hsaco", "code/tuned.hsaco",
    "code/deeper/.hidden", "selftest/0123456789abcdef.npz", "selftest/mine.txt", "include/.clang-format",
    "include/other.h", ".bundle.json.x1y2z3ab", ".aotbuild-notes", ".aotbuild-Notes123/file",
    ".aotbuild-notes1234/file",
)  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


def build(project: Project, kernels: str) -> None:
    (project.folder / "k.py").write_text(kernels)
    assert project.build(*TWO).exit_code == 0


@pytest.fixture
def folder(project: Project, tmp_path: Path) -> Path:
    """Return the folder of a bundle; the project's kernel has changed since its build."""
    project.output = tmp_path / "out"
    build(project, KERNELS)
    (project.folder / "k.py").write_text(OTHER)
    return project.folder_of()


def code(folder: Path) -> set[str]:
    return {blob.file for blob in read_index(folder).blobs.values()}


def test_files_of_users_stay(project: Project, folder: Path):
    for name in USERS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("the user's own")
    (folder / ".aotbuild-linkto_1").symlink_to(project.folder)
    old = code(folder)
    build(project, OTHER)
    left = contents(folder)
    assert {name for name in left if left[name] == b"the user's own"} == {*USERS}
    assert not old & left.keys() and code(folder) <= left.keys() and len(old) == len(code(folder)) == 2
    assert (folder / ".aotbuild-linkto_1").is_symlink() and (project.folder / "k.py").exists()


def test_a_damaged_index_says_nothing_of_what_is_there(project: Project, folder: Path):
    old = code(folder)
    (folder / "bundle.json").write_text("{}")
    build(project, OTHER)
    assert old <= contents(folder).keys()


def stopped(project: Project, step: int, killed: bool) -> bool:
    """Build, and stop before the `step`-th file is put in place. Returns False if there are fewer files."""
    calls, move = itertools.count(), OpenFolder.move

    def move_or_stop(folder: OpenFolder, name: str, target: OpenFolder) -> None:
        if next(calls) == step:
            if killed:
                os._exit(9)
            raise OSError(28, "No space left on device", "somewhere")
        move(folder, name, target)

    process = os.fork() if killed else 0
    if process:
        return os.waitpid(process, 0)[1] != 0
    with mock.patch.object(OpenFolder, "move", move_or_stop):
        result = project.build(*TWO)
    if killed:
        os._exit(0)
    said = "aotbuild: error: bundle tiny-gfx942 cannot be written: No space left on device: somewhere\n"
    assert (result.exit_code, result.stderr) in ((0, ""), (1, said))
    return bool(result.exit_code)


@pytest.mark.parametrize("killed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_bundle_is_the_old_one_or_the_new_one_wherever_writing_stops(project: Project, folder: Path, killed: bool):
    """The next build removes all that a killed one left, be it of the same or of another bundle."""
    pristine, fresh = folder.parent / "pristine", {}
    shutil.copytree(folder, pristine)
    project.output /= "fresh"
    for text in (OTHER, KERNELS):
        build(project, text)
        fresh[text] = contents(project.folder_of())
    project.output = project.output.parent
    for step in itertools.count():
        shutil.rmtree(folder)
        shutil.copytree(pristine, folder)
        (project.folder / "k.py").write_text(OTHER)
        if not stopped(project, step, killed):
            break
        assert project.bundle().id == read_index(pristine).id and (killed or not list(folder.glob(".aotbuild-*")))
        for text in (KERNELS, OTHER)[step % 2 if killed else 1 :]:
            build(project, text)
            assert contents(folder) == fresh[text]
    assert step == 2 + len(TEXT_FILES) + 1, "two code objects, what is generated from the index, and the index"
    assert contents(folder) == fresh[OTHER]


@pytest.mark.parametrize("older", [True, False])
def test_a_bundle_that_no_reader_takes_does_not_replace_one(project: Project, folder: Path, older: bool):
    if not older:
        shutil.rmtree(folder)
    before = contents(folder)
    with mock.patch("aot.c.files.header_text", lambda index: "of another bundle"):
        result = project.build(*TWO)
    assert result.exit_code == 1 and contents(folder) == before and folder.exists() == older
    said = "bundle tiny-gfx942 was not written, because readers would reject it: include/tiny.h belongs to "
    assert result.stderr.startswith(f"aotbuild: error: {said}")


def test_a_build_with_nothing_to_do_reads_no_code_object(project: Project, folder: Path):
    with mock.patch("aot.write.atomic_install.verify_bundle", lambda folder: ["was verified"]):
        build(project, KERNELS)


def test_signatures_go_with_the_index_that_they_were_for(project: Project, folder: Path):
    for name in SIGNATURES:
        (folder / name).write_text("of the index that is there")
    build(project, KERNELS)
    assert all((folder / name).exists() for name in SIGNATURES), "the same bytes"
    build(project, OTHER)
    assert not any((folder / name).exists() for name in SIGNATURES)


# Links


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a folder beside the output, with files named like a bundle's."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "tiny.h").write_text("precious")
    return place


@pytest.mark.parametrize("name", ["code", "include", "lib", "lib/cmake", "lib/cmake/tiny", "stubs"])
def test_a_link_in_the_place_of_a_folder_is_replaced(project: Project, folder: Path, outside: Path, name: str):
    shutil.rmtree(folder / name)
    (folder / name).symlink_to(outside)
    build(project, OTHER)
    assert not (folder / name).is_symlink() and verify_bundle(folder) == []
    assert contents(outside) == {"tiny.h": b"precious"}


def test_a_link_to_the_same_files_is_replaced(project: Project, folder: Path, outside: Path):
    """Its files are up to date, but a bundle must not consist of a link."""
    build(project, OTHER)
    (folder / "code").rename(outside / "code")
    (folder / "code").symlink_to(outside / "code")
    before = contents(outside)
    build(project, OTHER)
    assert verify_bundle(folder) == [] and contents(outside) == before


def test_what_an_older_bundle_had_is_not_removed_through_a_link(project: Project, folder: Path, outside: Path):
    (folder / "code").rename(outside / "code")
    (folder / "code").symlink_to(outside / "code")
    before = contents(outside)
    (project.folder / "k.py").write_text(KERNELS)
    assert project.build("--filter", "dtype=float32,block=16").exit_code == 0
    assert contents(outside) == before and len(before) == 3


@pytest.mark.parametrize("name", ["bundle.json", "include/tiny.h", "bundle.json.sig"])
def test_a_link_in_the_place_of_a_file_is_replaced(project: Project, folder: Path, outside: Path, name: str):
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside / "tiny.h")
    build(project, KERNELS if name == "bundle.json" else OTHER)  # without an index it is not known what was there
    assert verify_bundle(folder) == [] and contents(outside) == {"tiny.h": b"precious"}


def test_a_pipe_in_the_place_of_a_file_is_replaced(project: Project, folder: Path):
    (folder / "include/tiny.h").unlink()
    os.mkfifo(folder / "include/tiny.h")
    build(project, KERNELS)
    assert verify_bundle(folder) == []


def test_the_output_may_be_a_link_and_the_bundle_in_it_may_not(project: Project, folder: Path, outside: Path):
    """The folder that the command line names may be a link; what is in it may not."""
    (project.folder / "out-link").symlink_to(outside)
    project.output = project.folder / "out-link"
    build(project, KERNELS)
    assert verify_bundle(outside / "tiny-gfx942") == []
    (outside / "tiny-gfx942").rename(outside / "elsewhere")
    (outside / "tiny-gfx942").symlink_to(outside / "elsewhere")
    before = contents(outside / "elsewhere")
    (project.folder / "k.py").write_text(OTHER)
    result = project.build(*TWO)
    said = f"a symbolic link is in its place: {project.output / 'tiny-gfx942'}"
    assert result.exit_code == 1 and said in result.stderr and contents(outside / "elsewhere") == before
