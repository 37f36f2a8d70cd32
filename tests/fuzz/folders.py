"""Handle hostile folders: links, pipes and folders replace cache entries and files of a bundle, before and during an
operation. Nothing outside may change or be read.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from aot.cache.listing import list_local
from aot.cache.shared_cache import CacheError, CacheSettings
from aot.cache.stores import FolderStore
from aot.write.atomic_install import install_bundle
from aot_bundle.command.stubs import PACKAGE, write_package
from aot_bundle.packing import pack_bundle, unpack_bundle
from aot_bundle.verification import verify_bundle
from aot_runtime import folders
from aot_runtime.contract.records import TEXT_FILES
from aot_runtime.errors import AotError

from .bundle_inputs import SEEDS

SECRET = b"of somebody else"
KEYS = ("abcd", "abce", "key")
BUNDLE = "small-gfx942"
KINDS = ("file", "folder", "full folder", "link out", "link to a file", "link to a device", "link to itself", "pipe")
"""Things that may be put in the place of something; or it is taken away."""
_BELOW = ("", "/ab", *(f"/ab/{key}" for key in KEYS))
CACHE_PATHS = (*(f"{kind}{below}" for kind in ("v1", "v2", "vectors-v1") for below in _BELOW), "v2/ab/.new-0123")
_CALLS = ("open", "stat", "listdir", "mkdir", "unlink", "rmdir", "replace")
"""Functions of the system that something may happen before."""

Change = tuple[str, str]
"""A path in the folder, and what is put there."""


@dataclass(frozen=True)
class Case:
    """An action, the changes that are made before, and those before calls of the system, by their numbers."""

    action: str
    before: tuple[Change, ...]
    meanwhile: tuple[tuple[int, Change], ...]


class Folders:
    """Tries cases, one after the other, in a folder of its own."""

    def __init__(self, folder: Path):
        self.given, self.outside = folder / "given", folder / "outside"
        self.new, self.old = (_unpacked(name) for name in ("accumulate", "affine"))
        self.archive = folder / "small.aotb"
        (folder / BUNDLE).mkdir()
        install_bundle(folder / BUNDLE, self.new)
        pack_bundle(folder / BUNDLE, self.archive)
        self.names = {*KEYS, *(name.rpartition("/")[2] for name in self.old), "small.py", "__init__.py"}
        self._make_outside()
        self.actions: dict[str, tuple[tuple[str, ...], Callable[[bool], None]]] = {
            "read": (CACHE_PATHS, self._read),
            "write": (CACHE_PATHS, self._write),
            "prune": (CACHE_PATHS, self._prune),
            "place": (self._bundle_paths(), self._place),
            "pack": ((f"{BUNDLE}.aotb", f"{BUNDLE}/code", f"{BUNDLE}/bundle.json"), self._pack),
            "unpack": ((BUNDLE, f"{BUNDLE}/code"), self._unpack),
            "stubs": ((PACKAGE, f"{PACKAGE}/small.py", f"{PACKAGE}/small.pyi", f"{PACKAGE}/__init__.py"), self._stubs),
        }  # fmt: skip

    def strategy(self) -> st.SearchStrategy[Case]:
        """Generate cases of all actions."""
        kinds = st.sampled_from((*KINDS, "nothing"))

        def cases(name: str, paths: tuple[str, ...]) -> st.SearchStrategy[Case]:
            change = st.tuples(st.sampled_from(paths), kinds)
            before = st.lists(change, max_size=4).map(tuple)
            meanwhile = st.lists(st.tuples(st.integers(0, 80), change), max_size=2).map(tuple)
            return st.builds(Case, st.just(name), before, st.one_of(st.just(()), meanwhile))

        return st.one_of(*(cases(name, paths) for name, (paths, _) in self.actions.items()))

    def check(self, case: Case) -> str:
        """Return what became of a case. Raises AssertionError for what must not happen."""
        _, action = self.actions[case.action]
        self._fill(case.action)
        for change in case.before:
            self._put(change)
        outcome = "done"
        try:
            with _meanwhile(case.meanwhile, self._put):
                action(not case.meanwhile)
        except (OSError, AotError):
            outcome = "refused"
        finally:
            if _snapshot(self.outside) != self.before:
                self._make_outside()  # for the next case
                raise AssertionError(f"{case}: what is outside changed")
        return f"{case.action}: {outcome}{', while it was changed' if case.meanwhile else ''}"

    # What is there

    def _make_outside(self) -> None:
        shutil.rmtree(self.outside, ignore_errors=True)
        for place in (self.outside, self.outside / "ab"):
            place.mkdir()
            for name in self.names:
                (place / name).write_bytes(SECRET)
        (self.outside / "empty").mkdir()
        self.before = _snapshot(self.outside)

    def _fill(self, action: str) -> None:
        shutil.rmtree(self.given, ignore_errors=True)
        if action in ("read", "write", "prune"):
            for kind in ("v1", "v2"):
                (self.given / kind / "ab").mkdir(parents=True)
                for key in KEYS[:2]:
                    (self.given / kind / "ab" / key).write_bytes(b"entry")
        else:
            self.given.mkdir()
        if action in ("place", "pack"):
            for name, content in (self.old if action == "place" else self.new).items():
                path = self.given / BUNDLE / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def _bundle_paths(self) -> tuple[str, ...]:
        files = {*self.old, *self.new, *(file.format(name="small") for file in TEXT_FILES), "bundle.json.sig"}
        parents = {str(parent) for file in files for parent in Path(file).parents}
        return tuple(sorted({BUNDLE, *(f"{BUNDLE}/{name}" for name in (files | parents) - {"."})}))

    def _put(self, change: Change) -> None:
        """Put something in the place of what is at a path, which is reached through no link."""
        name, kind = change
        path = self.given / name
        for parent in reversed(path.relative_to(self.given).parents[:-1]):
            if not (self.given / parent).is_dir() or (self.given / parent).is_symlink():
                return
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        match kind:
            case "file":
                path.write_bytes(b"another")
            case "folder" | "full folder":
                path.mkdir()
                if kind == "full folder":
                    (path / "mine").write_bytes(b"another")
            case "link out":
                path.symlink_to(self.outside)
            case "link to a file":
                path.symlink_to(self.outside / KEYS[0])
            case "link to a device":
                path.symlink_to("/dev/zero")
            case "link to itself":
                path.symlink_to(path.name)
            case "pipe":
                os.mkfifo(path)

    # What is done; `alone`: nothing happens meanwhile

    def _read(self, alone: bool) -> None:
        for key in KEYS:
            content = FolderStore(self.given).read(f"v2/ab/{key}", 1000)
            assert content in (None, b"entry", b"another")

    def _write(self, alone: bool) -> None:
        store = FolderStore(self.given)
        for key in KEYS[1:]:
            store.write(f"v2/ab/{key}", b"written")
            assert not alone or store.read(f"v2/ab/{key}") == b"written"

    def _prune(self, alone: bool) -> None:
        try:
            listed = list_local(CacheSettings(self.given))
            assert all(entry.size in (len(b"entry"), len(b"another")) for entry in listed.entries)
            listed.remove(listed.entries)
        except CacheError as error:
            raise AssertionError(str(error)) from error
        assert not alone or list_local(CacheSettings(self.given)).entries == ()

    def _place(self, alone: bool) -> None:
        install_bundle(self.given / BUNDLE, self.new)
        assert (
            not alone
            or {fault for fault in verify_bundle(self.given / BUNDLE) if "not in the index" not in fault} == set()
        )

    def _pack(self, alone: bool) -> None:
        pack_bundle(self.given / BUNDLE, self.given / f"{BUNDLE}.aotb")
        assert not alone or verify_bundle(self.given / f"{BUNDLE}.aotb") == []

    def _unpack(self, alone: bool) -> None:
        unpack_bundle(self.archive, self.given / BUNDLE)
        assert not alone or verify_bundle(self.given / BUNDLE) == []

    def _stubs(self, alone: bool) -> None:
        from aot_runtime.bundle.reading import read_index

        write_package(self.given / PACKAGE, [read_index(self.archive)])


def _unpacked(seed: str) -> dict[str, bytes]:
    with zipfile.ZipFile(SEEDS / f"{seed}.zip") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _snapshot(folder: Path) -> list[tuple[str, int, int, int, int]]:
    found = []
    for place in (folder, folder / "ab"):
        with os.scandir(place) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                found.append((entry.path, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return sorted(found)


@contextmanager
def _meanwhile(steps: tuple[tuple[int, Change], ...], put: Callable[[Change], None]) -> Iterator[None]:
    if not steps:
        yield
        return
    calls = 0

    class System:
        def __getattr__(self, name: str) -> Any:
            found = getattr(os, name)
            if name not in _CALLS:
                return found

            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal calls
                for step, change in steps:
                    if step == calls:
                        put(change)
                calls += 1
                return found(*arguments, **options)

            return call

    with mock.patch.object(folders, "os", System()):
        yield
