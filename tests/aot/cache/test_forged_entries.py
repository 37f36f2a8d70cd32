"""Forged cache entries with valid digests are reported and not used, whatever their content."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aot.cache import shared_cache
from aot.cache.layered_cache import CompileCache, sealed
from aot.cache.shared_cache import SharedCache, SharedSettings
from aot.compile.compiler import compile_job
from aot.compile.jobs import CompiledKernel, CompileJob
from aot.compile.keys import recipe_key
from aot.workers.batch import look_up
from tests.support.building import jobs

Forge = Callable[[dict[str, Any]], bytes]


@pytest.fixture(scope="module")
def job() -> CompileJob:
    return jobs.scalars("gfx942")


@pytest.fixture(scope="module")
def kernel(job: CompileJob) -> CompiledKernel:
    return compile_job(job)


def changed(**fields: Any) -> Forge:
    return lambda entry: msgspec.msgpack.encode(entry | fields)


def option(value: Any) -> Forge:
    return lambda entry: msgspec.msgpack.encode(entry | {"options": entry["options"] | {"num_stages": value}})


def metadata(**fields: Any) -> Forge:
    return lambda entry: msgspec.msgpack.encode(entry | {"metadata": entry["metadata"] | fields})


def image(change: Callable[[bytes], bytes]) -> Forge:
    return lambda entry: msgspec.msgpack.encode(entry | {"image": change(entry["image"])})


BAD: dict[str, Forge] = {
    "nothing": lambda entry: b"",
    "a number": lambda entry: b"\x01",
    "deep": lambda entry: b"\x81\xa1x" + b"\x91" * 200_000 + b"\xc0",
    "deep options": lambda entry: msgspec.msgpack.encode(entry)[:-1] + b"\x81\xa1x" + b"\x91" * 2000 + b"\xc0",
    "a list that says it is long": lambda entry: b"\x81\xa4args\xdd\xff\xff\xff\xff",
    "something behind it": lambda entry: msgspec.msgpack.encode(entry) + b"\xc0",
    "a field is missing": lambda entry: msgspec.msgpack.encode({k: v for k, v in entry.items() if k != "num_warps"}),
    "option NaN": option(float("nan")),
    "option inf": option(float("inf")),
    "option of bytes": option(b"abc"),
    "option of a time": option(msgspec.msgpack.Ext(-1, struct.pack(">I", 7))),
    "option of an extension": option(msgspec.msgpack.Ext(5, b"abc")),
    "option 2^64-1": option(2**64 - 1),
    "another option": option(7),
    "deep option": option([[[[1]]]]),
    "num_warps 0": changed(num_warps=0),
    "num_warps -1": changed(num_warps=-1),
    "num_warps inf": changed(num_warps=float("inf")),
    "num_warps 8": changed(num_warps=8),
    "num_warps true": changed(num_warps=True),
    "warp_size 0": changed(warp_size=0),
    "lds 2^62": changed(lds_bytes=1 << 62),
    "lds 1 MiB": changed(lds_bytes=1 << 20),
    "lds -1": changed(lds_bytes=-1),
    "scratch 2^40": changed(global_scratch_bytes=1 << 40),
    "alignment 0": changed(profile_scratch_align=0),
    "cooperative": changed(cooperative=True),
    "no image": changed(image=b""),
    "another image": changed(image=b"forged"),
    "half an image": image(lambda content: content[: len(content) // 2]),
    "another architecture": image(lambda content: content[:48] + b"\x3f" + content[49:]),
    "another symbol": changed(symbol='x";/*'),
    "another compiler": changed(compiler="triton\n\x1b[2J"),
    "no registers": metadata(vgprs=0, allocated_vgprs=0),
    "many arguments": metadata(args=[]),
    "access of nothing": changed(accesses={"x": "w"}),
    "another recipe": changed(recipe="{}"),
}


def key_of(kernel: CompiledKernel) -> str:
    return recipe_key(kernel.recipe)


def forged(forge: Forge, kernel: CompiledKernel) -> bytes:
    body = forge(msgspec.msgpack.decode(msgspec.msgpack.encode(kernel)))
    return sealed(key_of(kernel), body)


def entry_below(folder: Path, kernel: CompiledKernel) -> Path:
    path = folder / "v2" / key_of(kernel)[:2] / key_of(kernel)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize("name", BAD)
def test_a_forged_entry_is_named_and_replaced(
    tmp_path: Path, job: CompileJob, kernel: CompiledKernel, name: str, caplog: pytest.LogCaptureFixture
):
    entry = entry_below(tmp_path, kernel)
    entry.write_bytes(forged(BAD[name], kernel))
    cache = CompileCache(tmp_path)
    outcome, missing = look_up({key_of(kernel): job}, cache)
    assert outcome.kernels == {} and list(missing) == [key_of(kernel)]
    (told,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert told.startswith(f"{cache}: entry v2/{key_of(kernel)[:2]}/{key_of(kernel)} ") and told.endswith(
        "; it is not used"
    )
    cache.put(key_of(kernel), kernel)
    outcome, missing = look_up({key_of(kernel): job}, cache)
    assert outcome.kernels == {key_of(kernel): kernel} and missing == {} and len(caplog.records) == 1


@pytest.mark.parametrize("name", ["deep", "num_warps 0", "lds 1 MiB", "another symbol"])
def test_one_of_a_shared_cache_does_not_get_into_the_local_one(
    tmp_path: Path, job: CompileJob, kernel: CompiledKernel, name: str, caplog: pytest.LogCaptureFixture
):
    entry_below(tmp_path / "shared", kernel).write_bytes(forged(BAD[name], kernel))
    for _ in range(2):
        with SharedCache(SharedSettings(str(tmp_path / "shared"), readonly=True)) as shared:
            outcome, _ = look_up({key_of(kernel): job}, CompileCache(tmp_path / "local", shared))
            assert outcome.kernels == {} and shared.taken == 0
        assert not entry_below(tmp_path / "local", kernel).exists()
    assert [record.message.endswith("; it is made again here") for record in caplog.records] == [True, True]


@pytest.mark.parametrize("odd", ["folder", "pipe", "/dev/zero", "33 MiB"])
def test_a_batch_of_odd_entries_does_not_end_the_use_of_the_cache(
    tmp_path: Path, job: CompileJob, kernel: CompiledKernel, odd: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):  # fmt: skip
    """Each odd entry is named once, and replaced by what was compiled again."""
    monkeypatch.setattr(shared_cache, "MAX_SHARED_BYTES", 1 << 20)
    entry = entry_below(tmp_path / "shared", kernel)
    if odd == "folder":
        entry.mkdir()
    elif odd == "pipe":
        __import__("os").mkfifo(entry)
    elif odd == "33 MiB":
        entry.write_bytes(bytes((1 << 20) + 1))
    else:
        entry.symlink_to(odd)
    with SharedCache(SharedSettings(str(tmp_path / "shared"))) as shared:
        cache = CompileCache(tmp_path / "local", shared)
        assert look_up({key_of(kernel): job}, cache)[0].kernels == {}
        cache.put(key_of(kernel), kernel)
    assert shared.written == 1 and len(caplog.records) == 1
    with SharedCache(SharedSettings(str(tmp_path / "shared"))) as shared:
        assert look_up({key_of(kernel): job}, CompileCache(tmp_path / "other", shared))[0].kernels
    assert shared.taken == 1 and len(caplog.records) == 1


def test_what_is_told_of_an_entry_is_one_line_without_control_characters(
    tmp_path: Path, job: CompileJob, kernel: CompiledKernel, caplog: pytest.LogCaptureFixture
):
    """The message names the kernels of a code object, whose names a forger can choose."""
    code = kernel.image.replace(b"every_type", b"e\x1b[2J\n\rpe\x07")
    entry = entry_below(tmp_path, kernel)
    entry.write_bytes(forged(changed(image=code, symbol="every_type"), kernel))
    assert look_up({key_of(kernel): job}, CompileCache(tmp_path))[0].kernels == {}
    (told,) = [record.message for record in caplog.records]
    assert "has no kernel 'every_type'" in told and told.isprintable()


def test_what_a_forger_may_say(tmp_path: Path, job: CompileJob, kernel: CompiledKernel):
    """Claims that the code does not contradict pass: which pointers are written to, say."""
    pointers = {"a": "w"} if "a" in kernel.accesses else {}
    other = replace(kernel, accesses=pointers, early=True)
    CompileCache(tmp_path).put(key_of(kernel), other)
    assert look_up({key_of(kernel): job}, CompileCache(tmp_path))[0].kernels == {key_of(kernel): other}
