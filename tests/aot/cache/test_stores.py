"""Stores of caches: folders and fsspec's file systems keep, list and remove entries."""

import http.server
import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from aot.cache.stores import (
    LEFTOVER_S,
    EntryError,
    FolderStore,
    FsspecStore,
    Store,
    check_url,
    open_store,
    shown,
)
from aot_runtime.folders import OpenFolder

NAME, OTHER = "v2/ab/ab01", "vectors-v1/cd/cd01"


@pytest.fixture(params=["folder", "memory", "folders"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return a store whose place exists. The third kind is an fsspec file system with folders."""
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
    """The folder is made, but not its parent, which may be a disk that is not mounted."""
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


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A place whose folders are links to outside folders with one entry each."""
    (tmp_path / "home/ab").mkdir(parents=True)
    for name in ("home/ab01", "home/ab/ab01"):
        (tmp_path / name).write_text("precious")
    (tmp_path / "cache/v2/cd").mkdir(parents=True)
    (tmp_path / "cache/v2/ab").symlink_to(tmp_path / "home")
    (tmp_path / "cache/v1").symlink_to(tmp_path / "home")
    (tmp_path / "cache/v2/cd/cd01").symlink_to(tmp_path / "home/ab01")
    return tmp_path / "cache"


def test_links_are_no_entries_and_are_not_followed(linked: Path):
    """An fsspec file system that lists links does not follow them either."""
    store = FolderStore(linked)
    assert list(store.files()) == list(FsspecStore(f"file://{linked}").files()) == []
    for name in (NAME, "v1/ab/ab01", "v2/cd/cd01"):
        with pytest.raises(EntryError, match="a symbolic link is in its place"):
            store.read(name)
    store.remove([NAME, "v1/ab/ab01", "v2/cd/cd01"])
    assert not (linked / "v2/cd").exists() and (linked / "v2/ab").is_symlink() and (linked / "v1").is_symlink()
    store.write(NAME, b"x")
    assert store.read(NAME) == b"x" and not (linked / "v2/ab").is_symlink()
    home = linked.parent / "home"
    assert {path.read_text() for path in (home / "ab01", home / "ab/ab01")} == {"precious"} and names(home) == [
        "ab",
        "ab01",
    ]


def test_a_link_to_an_empty_folder_does_not_end_tidying(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "cache/v2/cd").mkdir(parents=True)
    (tmp_path / "cache/v2/ab").symlink_to(tmp_path / "empty")
    FolderStore(tmp_path / "cache").remove([])
    assert names(tmp_path / "cache/v2") == ["ab"] and (tmp_path / "empty").is_dir()


def test_files_that_are_being_written_are_no_entries(tmp_path: Path):
    """They stay, unless their writer was killed long ago: then they are removed."""
    store = FolderStore(tmp_path)
    store.write(NAME, b"x")
    for name, age in (("new", 60), ("old", LEFTOVER_S + 60)):
        path = tmp_path / f"v2/ab/.new-{name}"
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    (found,) = store.files()
    assert found.name == NAME
    store.remove([NAME])
    assert names(tmp_path / "v2/ab") == [".new-new"]


def test_what_others_keep_to_themselves_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An entry or folder without permission is skipped; the others are read and listed."""
    store, open_, below = FolderStore(tmp_path), OpenFolder.open, OpenFolder.below

    def denied(method: Any, theirs: str) -> Any:
        def call(folder: OpenFolder, name: str, *arguments: Any, **options: Any) -> Any:
            if name == theirs:
                raise PermissionError(13, "Permission denied")
            return method(folder, name, *arguments, **options)

        return call

    for name in (NAME, "v2/ab/ab02", "v2/cd/cd01"):
        store.write(name, b"x")
    monkeypatch.setattr(OpenFolder, "open", denied(open_, "ab01"))
    monkeypatch.setattr(OpenFolder, "below", denied(below, "cd"))
    with pytest.raises(EntryError, match="Permission denied"):
        store.read(NAME)
    assert store.read("v2/ab/ab02") == b"x" and [file.name for file in store.files()] == [NAME, "v2/ab/ab02"]


def test_files_that_vanish_while_they_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, status = FolderStore(tmp_path), OpenFolder.status

    def vanishing(folder: OpenFolder, name: str) -> os.stat_result | None:
        if name in ("ab01", "cd"):
            shutil.rmtree(tmp_path / "v2/cd", ignore_errors=True)
            (tmp_path / "v2/ab/ab01").unlink(missing_ok=True)
        return status(folder, name)

    for name in (NAME, "v2/ab/ab02", "v2/cd/cd01"):
        store.write(name, b"x")
    monkeypatch.setattr(OpenFolder, "status", vanishing)
    assert [file.name for file in store.files()] == ["v2/ab/ab02"]


def test_a_folder_that_is_removed_as_it_is_empty_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`cache prune` removes it while a build runs."""
    create, tidied = OpenFolder._created, []

    def beside(folder: OpenFolder, *arguments: Any) -> Any:
        if len(tidied) < 3:
            tidied.append(FolderStore(tmp_path).remove([]))
        return create(folder, *arguments)

    monkeypatch.setattr(OpenFolder, "_created", beside)
    FolderStore(tmp_path).write(NAME, b"x")
    assert FolderStore(tmp_path).read(NAME) == b"x" and len(tidied) == 3


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "full folder", "file above"])
def test_what_is_in_the_way_of_an_entry(tmp_path: Path, kind: str):
    """It is replaced, unless somebody may have put it there on purpose."""
    store, path = FolderStore(tmp_path), tmp_path / NAME
    store.write(OTHER, b"x")
    path.parent.mkdir(parents=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/dev/zero")
        case "file above":
            path.parent.rmdir()
            path.parent.touch()
        case _:
            path.mkdir()
    if kind == "full folder":
        (path / "mine").touch()
    with pytest.raises(EntryError):
        store.read(NAME)
    if kind in ("full folder", "file above"):
        with pytest.raises(EntryError, match=r"a (folder that is not empty|file) is in its place"):
            store.write(NAME, b"x")
        return
    store.write(NAME, b"x")
    assert store.read(NAME) == b"x" and names(path.parent) == ["ab01"]


class Endless(http.server.BaseHTTPRequestHandler):
    """A file that ignores which part is asked for, and never ends."""

    def do_GET(self) -> None:
        self.send_response(404 if self.path.endswith("missing") else 200)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(b"whole" if self.path.endswith("short") else bytes(1 << 16))
            while self.path.endswith("endless"):
                self.wfile.write(bytes(1 << 16))

    def log_message(self, *_: object) -> None:
        pass


def test_no_more_is_read_of_a_web_server_than_was_asked_for():
    pytest.importorskip("aiohttp")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        store = open_store(f"http://127.0.0.1:{server.server_port}/cache")
        assert store.read("v2/ab/short", 1000) == b"whole" and store.read("v2/ab/missing") is None
        assert store.read("v2/ab/endless", 100_000) == bytes(100_001)
        server.shutdown()


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
