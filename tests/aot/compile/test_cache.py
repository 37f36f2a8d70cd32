import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from aot.compile.cache import CacheError, CompileCache, default_cache_dir
from aot.compile.compiler import compile_job
from tests.support.building import jobs

KEY = "ab" * 32


@pytest.fixture(scope="module")
def kernel():
    return compile_job(jobs.softmax("gfx942", 128))


@pytest.fixture
def cache(tmp_path):
    return CompileCache(tmp_path / "cache")


def entry_of(cache: CompileCache) -> Path:
    (entry,) = [path for path in cache.path.rglob("*") if path.is_file()]
    return entry


def test_a_kernel_comes_back_as_it_was(cache, kernel):
    assert cache.get(KEY) is None
    cache.put(KEY, kernel)
    assert CompileCache(cache.path).get(KEY) == kernel
    cubin = compile_job(jobs.softmax("sm_90", 128))
    cache.put("cd" * 32, cubin)
    assert cache.get("cd" * 32) == cubin, "a cubin has figures that are unknown (None)"


@pytest.mark.parametrize("keep", [0, 1, 31, 32, 100, -1])
def test_a_truncated_entry_is_a_miss_and_is_repaired(cache, kernel, keep):
    cache.put(KEY, kernel)
    entry = entry_of(cache)
    entry.write_bytes(entry.read_bytes()[:keep])
    assert cache.get(KEY) is None
    cache.put(KEY, kernel)
    assert cache.get(KEY) == kernel


def test_an_altered_entry_is_a_miss(cache, kernel):
    cache.put(KEY, kernel)
    entry = entry_of(cache)
    whole = entry.read_bytes()
    for position in range(0, len(whole), 53):
        changed = bytearray(whole)
        changed[position] ^= 1
        entry.write_bytes(bytes(changed))
        assert cache.get(KEY) is None


def test_an_entry_under_another_key_is_a_miss(cache, kernel):
    cache.put(KEY, kernel)
    other = KEY[:-1] + "c"
    entry_of(cache).rename(entry_of(cache).with_name(other))
    assert cache.get(other) is None


def test_an_entry_that_is_a_folder_is_a_miss(cache, kernel):
    cache.put(KEY, kernel)
    entry = entry_of(cache)
    entry.unlink()
    entry.mkdir()
    assert cache.get(KEY) is None
    with pytest.raises(CacheError, match="cannot be written"):
        cache.put(KEY, kernel)
    assert [path.name for path in entry.parent.iterdir()] == [KEY], "no temporary file is left"


def hammer(path: Path, kernel, number: int) -> int:
    cache = CompileCache(path)
    misses = 0
    for _ in range(100):
        cache.put(KEY, replace(kernel, lds_bytes=number))
        found = cache.get(KEY)
        misses += found is None or replace(found, lds_bytes=0) != replace(kernel, lds_bytes=0)
    return misses


def test_processes_share_a_directory(cache, kernel):
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(hammer, cache.path, kernel, number) for number in range(4)]
        assert [future.result() for future in futures] == [0, 0, 0, 0]
    assert entry_of(cache).name == KEY


def test_a_directory_that_cannot_be_written(tmp_path, kernel):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"compile cache .*file/cache cannot be written: Not a directory"):
        CompileCache(tmp_path / "file" / "cache")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(CacheError, match="Permission denied"):
        CompileCache(tmp_path)


def test_the_default_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("AOTBUILD_CACHE_DIR", raising=False)
    assert default_cache_dir() == Path("/home/someone/.cache/aotbuild")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache_dir() == Path("/xdg/aotbuild")
    monkeypatch.setenv("AOTBUILD_CACHE_DIR", str(tmp_path / "here"))
    assert default_cache_dir() == tmp_path / "here" == CompileCache().path
