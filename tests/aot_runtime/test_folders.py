"""Folders that others may modify: no operation follows links in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from aot_runtime.folders import FOR_ALL, InTheWayError, OpenFolder, opened_folder, write_file


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a folder that nobody named, in which nothing may change."""
    place = tmp_path / "outside"
    (place / "deep").mkdir(parents=True)
    for name in ("file", "deep/file"):
        (place / name).write_text("precious")
    return place


@pytest.fixture
def given(tmp_path: Path, outside: Path) -> Path:
    """Return the folder that was named, with links in it."""
    place = tmp_path / "given"
    place.mkdir()
    (place / "folder").symlink_to(outside)
    (place / "file").symlink_to(outside / "file")
    return place


ACTIONS: dict[str, Callable[[OpenFolder], object]] = {
    "open a folder": lambda folder: folder.below("folder").__enter__(),
    "make a folder": lambda folder: folder.below("folder/new", make=True).__enter__(),
    "open a folder within": lambda folder: folder.below("folder/deep").__enter__(),
    "read": lambda folder: folder.open("file"),
    "create": lambda folder: folder.create("file", [b"x"]),
    "create within": lambda folder: folder.create_all({"folder/new": b"x"}),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_link_is_an_error(given: Path, outside: Path, action: str):
    with opened_folder(given) as folder, pytest.raises(OSError) as raised:
        ACTIONS[action](folder)
    if isinstance(raised.value, InTheWayError):
        assert "a symbolic link is in its place" in str(raised.value)
    assert sorted(path.name for path in outside.iterdir()) == ["deep", "file"]


def test_links_are_replaced_and_removed_and_what_they_lead_to_stays(given: Path, outside: Path):
    with opened_folder(given) as folder:
        assert folder.write("file", [b"a", b"bc"], FOR_ALL) == 3
        assert not folder.remove_empty("folder")
        with folder.below("folder/deep", make=True, over_links=True) as deep:
            assert deep.names() == [] and deep.write("file", [b"x"]) == 1
            (given / "link").symlink_to(outside / "deep" / "file")
            folder.move("file", deep)
            folder.remove("link")
        (given / "folder" / "inner").symlink_to(outside)
        folder.remove_tree("folder")
        (given / "folder").symlink_to(outside)
        folder.remove_tree("folder")
        folder.remove_tree("nothing")
        assert folder.names() == []
    assert (outside / "file").read_text() == (outside / "deep" / "file").read_text() == "precious"


def test_the_folder_that_is_given_may_be_a_link(given: Path, outside: Path):
    assert write_file(given / "folder" / "written", [b"x"]) == 1
    assert (outside / "written").read_bytes() == b"x"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../outside", "a\0b"])
def test_names_of_other_places(given: Path, name: str):
    with opened_folder(given) as folder, pytest.raises(OSError, match="no name of a file"):
        folder.write(name, [b"x"])


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with opened_folder(tmp_path) as folder:
        for name, found in (("pipe", "a pipe"), ("folder", "a folder")):
            with pytest.raises(InTheWayError, match=f"{found} is in its place"):
                folder.open(name)
        with pytest.raises(InTheWayError, match="a pipe"):
            folder.below("pipe", make=True, over_links=True).__enter__()
        assert stat.S_ISFIFO(folder.status("pipe").st_mode) and folder.status("nothing") is None  # type: ignore[union-attr]


def test_a_folder_that_becomes_a_link_once_it_is_open(tmp_path: Path, outside: Path):
    """All is done in the folder that was opened, wherever it is now."""
    (tmp_path / "given" / "folder").mkdir(parents=True)
    with opened_folder(tmp_path / "given") as folder, folder.below("folder") as held:
        (tmp_path / "given" / "folder").rename(tmp_path / "moved")
        (tmp_path / "given" / "folder").symlink_to(outside)
        held.write("file", [b"x"])
        held.create("new", [b"x"])
        held.remove("file")
    assert sorted(path.name for path in outside.iterdir()) == ["deep", "file"]
    assert [path.name for path in (tmp_path / "moved").iterdir()] == ["new"]


def test_a_file_is_whole_or_not_there(tmp_path: Path):
    def broken() -> object:
        yield b"half"
        raise KeyboardInterrupt

    with opened_folder(tmp_path) as folder, pytest.raises(KeyboardInterrupt):
        folder.write("file", broken())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    write_file(tmp_path / "file", [b"x"], 0o604)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o604
