"""Places of caches: a folder and file systems of fsspec keep what they are given, and list and remove it."""

import os
import time
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from aot.compile.stores import FolderStore, FsspecStore, Store, check_url, open_store, shown

NAME, OTHER = "v2/ab/ab01", "vectors-v1/cd/cd01"


@pytest.fixture(params=["folder", "memory", "folders"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store whose place is there. The third is a file system of fsspec that has folders."""
    if request.param == "folder":
        return open_store(str(tmp_path))
    return FsspecStore(f"memory://{uuid4()}" if request.param == "memory" else f"file://{tmp_path}")


def test_entries_are_kept_listed_and_removed(store: Store):
    assert isinstance(store, FolderStore | FsspecStore) and list(store.files()) == []
    assert store.read(NAME) is None
    store.write(NAME, b"older")
    store.write(NAME, b"newer")
    store.write(OTHER, b"")
    store.write("v1/ab/ab01", b"of an older version")
    assert store.read(NAME) == b"newer" and store.read(OTHER) == b"" and store.read("v2/ab/ab02") is None
    found = {file.name: file for file in store.files()}
    assert {name: file.size for name, file in found.items()} == {NAME: 5, OTHER: 0, "v1/ab/ab01": 19}
    assert all(abs(file.used - time.time()) < 60 for file in found.values())
    store.remove([NAME, "v2/ab/ab02", "v1/ab/ab01"])
    assert store.read(NAME) is None and [file.name for file in store.files()] == [OTHER]


def test_a_large_file_is_not_read_whole(store: Store):
    store.write(NAME, bytes(10))
    assert store.read(NAME, most=10) == bytes(10)
    store.write(NAME, bytes(10_000))
    try:
        assert len(store.read(NAME, most=10) or b"") == 11
    except OSError:
        assert isinstance(store, FolderStore)


def test_what_others_keep_at_the_place_is_left_alone(store: Store, tmp_path: Path):
    fsspec.filesystem("memory").pipe_file("/elsewhere/v2/ab/x", b"")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    (tmp_path / "v2.txt").touch()
    assert list(store.files()) == []


def test_a_place_that_is_not_there(tmp_path: Path):
    """The folder is made, the folder that it is in is not: it may be a disk that is not mounted."""
    gone = open_store(str(tmp_path / "gone"))
    assert not gone.exists() and gone.read(NAME) is None and list(gone.files()) == []
    gone.write(NAME, b"x")
    assert gone.exists() and gone.read(NAME) == b"x"
    with pytest.raises(FileNotFoundError):
        open_store(str(tmp_path / "not/there")).write(NAME, b"x")
    assert not (tmp_path / "not").exists()
    assert not open_store(f"memory://{uuid4()}").exists()


def test_a_folder_gets_whole_files_that_others_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = FolderStore(tmp_path)
    mask = os.umask(0o027)
    try:
        store.write(NAME, b"older")
    finally:
        os.umask(mask)
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o640

    def interrupted(*_: object, **__: object) -> None:
        assert sorted(path.read_bytes() for path in (tmp_path / "v2/ab").iterdir()) == [b"newer", b"older"]
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.write(NAME, b"newer")
    assert store.read(NAME) == b"older" and [path.name for path in (tmp_path / "v2/ab").iterdir()] == ["ab01"]


def test_reading_marks_the_use_but_for_who_only_reads(tmp_path: Path):
    FolderStore(tmp_path).write(NAME, b"x")
    os.utime(tmp_path / NAME, (0, 0))
    assert open_store(str(tmp_path), readonly=True).read(NAME) == b"x" and (tmp_path / NAME).stat().st_mtime == 0
    assert open_store(str(tmp_path)).read(NAME) == b"x" and (tmp_path / NAME).stat().st_mtime > 0


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("", "is empty"),
        ("s4://bucket", "Protocol not known: s4"),
        ("simplecache::s4://name:word@bucket", r"^simplecache::s4://bucket cannot be opened: Protocol not known: s4"),
    ],
)
def test_urls_that_nothing_opens(url: str, fault: str):
    with pytest.raises(ValueError, match=fault):
        check_url(url)


def test_urls_that_something_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for url in ("caches/x", "file:///mnt/x", "memory://x", "simplecache::memory://x", "https://host/x"):
        check_url(url)
    FolderStore(tmp_path).write(NAME, b"x")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store("~").read(NAME) == open_store(f"file://{tmp_path}").read(NAME) == b"x"
    assert shown("s3://key:word@bucket/x@y") == "s3://bucket/x@y" and shown("/mnt/a@b") == "/mnt/a@b"


def test_without_fsspec_urls_are_refused_and_folders_are_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    check_url("/mnt/x")
    check_url("file:///mnt/x")
    with pytest.raises(ValueError, match=r"s3://bucket needs fsspec: pip install 'aotbuild\[cluster\]'"):
        check_url("s3://bucket")
