import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from aot.cache.layered_cache import CacheError, CompileCache, default_cache_dir
from aot.compile.compiler import compile_job
from aot.compile.jobs import CompiledKernel
from aot.compile.keys import recipe_key
from tests.support.building import jobs


@pytest.fixture(scope="module")
def kernel() -> CompiledKernel:
    """A cubin, some of whose figures are unknown (None)."""
    return compile_job(jobs.scalars("sm_90"))


@pytest.fixture(scope="module")
def key(kernel: CompiledKernel) -> str:
    return recipe_key(kernel.recipe)


@pytest.fixture
def cache(tmp_path: Path) -> CompileCache:
    return CompileCache(tmp_path / "cache")


def entry_of(cache: CompileCache) -> Path:
    (entry,) = [path for path in cache.path.rglob("*") if path.is_file()]
    return entry


def test_a_kernel_comes_back_as_it_was(cache: CompileCache, kernel: CompiledKernel, key: str):
    assert cache.get(key) is None
    cache.put(key, kernel)
    assert CompileCache(cache.path).get(key) == kernel


def test_a_truncated_or_altered_entry_is_a_miss_and_is_repaired(cache: CompileCache, kernel: CompiledKernel, key: str):
    cache.put(key, kernel)
    entry = entry_of(cache)
    whole = entry.read_bytes()
    altered = [
        whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :] for position in (0, 31, 32, 99, -2)
    ]
    for content in (*(whole[:size] for size in (0, 1, 31, 32, 100, -1)), *altered):
        entry.write_bytes(content)
        assert cache.get(key) is None
    cache.put(key, kernel)
    assert cache.get(key) == kernel


def test_an_entry_under_another_key_is_a_miss(cache: CompileCache, kernel: CompiledKernel, key: str):
    cache.put(key, kernel)
    other = f"{key[:-1]}{'ab'[key[-1] == 'a']}"
    entry_of(cache).rename(entry_of(cache).with_name(other))
    assert cache.get(other) is None


def odd(entry: Path, kind: str) -> None:
    """Put something else in an entry's place."""
    content = entry.read_bytes()
    entry.unlink()
    if kind == "folder":
        entry.mkdir()
    elif kind == "pipe":
        os.mkfifo(entry)
    elif kind == "link":
        outside = entry.parents[3] / "outside"
        outside.write_bytes(content)
        entry.symlink_to(outside)
    else:
        entry.symlink_to(kind)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "/dev/zero", "/nowhere"])
def test_what_is_no_file_is_named_not_used_and_replaced(
    cache: CompileCache, kernel: CompiledKernel, key: str, kind: str, caplog: pytest.LogCaptureFixture
):
    """Links are not followed, whatever they lead to."""
    cache.put(key, kernel)
    entry = entry_of(cache)
    odd(entry, kind)
    assert cache.get(key) is None and cache.get(key) is None
    (told,) = [record.message for record in caplog.records]
    found = {"folder": "a folder", "pipe": "a pipe"}.get(kind, "a symbolic link")
    name = f"v2/{key[:2]}/{key}"
    assert told == f"{cache}: entry {name} cannot be read ({found} is in its place); it is not used"
    cache.put(key, kernel)
    assert cache.get(key) == kernel and [path.name for path in entry.parent.iterdir()] == [key]


def test_a_folder_with_something_in_it_is_left_and_named_once(
    cache: CompileCache, kernel: CompiledKernel, key: str, caplog: pytest.LogCaptureFixture
):
    cache.put(key, kernel)
    entry = entry_of(cache)
    odd(entry, "folder")
    (entry / "mine").touch()
    assert cache.get(key) is None
    cache.put(key, kernel)
    assert len(caplog.records) == 1 and [path.name for path in entry.parent.iterdir()] == [key]
    assert (entry / "mine").exists(), "no temporary file is left, and nothing else is gone"


def test_many_share_a_directory(cache: CompileCache, kernel: CompiledKernel, key: str):
    """Each entry that is read is one of those written, whole."""

    def hammer(number: int) -> list[CompiledKernel | None]:
        found = []
        for _ in range(100):
            cache.put(key, replace(kernel, lds_bytes=number))
            found.append(CompileCache(cache.path).get(key))
        return found

    with ThreadPoolExecutor(4) as pool:
        found = [entry for entries in pool.map(hammer, range(4)) for entry in entries]
    assert all(entry and replace(entry, lds_bytes=0) == replace(kernel, lds_bytes=0) for entry in found)
    assert entry_of(cache).name == key


def test_a_directory_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match=r"compile cache .*file/cache cannot be written: Not a directory"):
        CompileCache(tmp_path / "file" / "cache")
    if os.geteuid():  # root may write anywhere
        tmp_path.chmod(0o500)
        with pytest.raises(CacheError, match="Permission denied"):
            CompileCache(tmp_path)


def test_the_default_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("AOTBUILD_CACHE_DIR", raising=False)
    assert default_cache_dir() == Path("/home/someone/.cache/aotbuild")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache_dir() == Path("/xdg/aotbuild")
    monkeypatch.setenv("AOTBUILD_CACHE_DIR", str(tmp_path / "here"))
    assert default_cache_dir() == tmp_path / "here" == CompileCache().path
