"""A shared cache behind the local one: its entries are verified, and its failures do not stop a build."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from aot.cache import shared_cache
from aot.cache.layered_cache import CacheError, CompileCache, sealed, unsealed
from aot.cache.shared_cache import BATCH, SharedCache, SharedSettings
from aot.compile.compiler import compile_job
from aot.compile.jobs import CompiledKernel
from aot.compile.keys import recipe_key
from tests.support import faulty_stores
from tests.support.building import jobs

SECRET = b"a secret of thirty-two bytes----"


@pytest.fixture(scope="module")
def kernel() -> CompiledKernel:
    return compile_job(jobs.scalars("sm_90"))


def keyed(kernel: CompiledKernel, number: int = 0) -> tuple[str, CompiledKernel]:
    """Return a kernel with its own recipe, and its key."""
    recipe = f'{{"number": {number}}}'
    return recipe_key(recipe), replace(kernel, recipe=recipe)


@pytest.fixture
def settings(tmp_path: Path) -> SharedSettings:
    return SharedSettings(str(tmp_path / "shared"))


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[SharedCache], CompileCache]:
    """Makes the cache of a machine that has built nothing yet."""
    count = iter(range(100))
    return lambda shared: CompileCache(tmp_path / f"machine-{next(count)}", shared)


Machine = Callable[[SharedCache], CompileCache]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings since the last call."""
    found = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return found


def fill(settings: SharedSettings, machine: Machine, kernel: CompiledKernel, count: int = 1) -> list[str]:
    """Let a machine store kernels. Returns their keys."""
    with SharedCache(settings) as shared:
        cache = machine(shared)
        for number in range(count):
            cache.put(*keyed(kernel, number))
    assert shared.written == count
    return [keyed(kernel, number)[0] for number in range(count)]


def test_a_second_machine_gets_what_the_first_made(settings: SharedSettings, machine: Machine, kernel: CompiledKernel):
    keys = fill(settings, machine, kernel, BATCH + 5)
    with SharedCache(settings) as shared:
        cache = machine(shared)
        found = cache.get_many([*reversed(keys), "ab" * 32])
        assert list(found) == keys[::-1] and found[keys[3]] == keyed(kernel, 3)[1]
        assert (shared.taken, shared.written) == (len(keys), 0)
        assert cache.get_many(keys) == found and shared.taken == len(keys), "now they are in the local one"
    assert CompileCache(cache.path).get_many(keys) == found


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda entry: b"",
    "truncated": lambda entry: entry[:-1],
    "padded": lambda entry: entry + b"\0",
    "altered": lambda entry: entry[:100] + bytes([entry[100] ^ 1]) + entry[101:],
    "its digest alone": lambda entry: entry[:32],
    "foreign": lambda entry: b"#!/bin/sh\n" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_refused_by_name_and_replaced(
    settings: SharedSettings, machine: Machine, kernel: CompiledKernel, damage: str, caplog: pytest.LogCaptureFixture
):
    (key,) = fill(settings, machine, kernel)
    entry = Path(settings.url) / "v2" / key[:2] / key
    whole = entry.read_bytes()
    entry.write_bytes(DAMAGES[damage](whole))
    with SharedCache(settings) as shared:
        cache = machine(shared)
        assert cache.get(key) is None and shared.taken == 0
        cache.put(*keyed(kernel))
    place = f"shared cache {settings.url}: entry v2/{key[:2]}/{key}"
    assert warnings(caplog) == [f"{place} is damaged, or was written with a key; it is made again, and replaced"]
    assert entry.read_bytes() == whole


def test_swapped_and_misnamed_entries_are_refused(
    settings: SharedSettings, machine: Machine, kernel: CompiledKernel, caplog: pytest.LogCaptureFixture
):
    """The second entry has a digest that fits, but its content is not what its name says."""
    first, second, third = fill(settings, machine, kernel, 3)
    paths = [Path(settings.url) / "v2" / key[:2] / key for key in (first, second, third)]
    paths[0].write_bytes(paths[2].read_bytes())
    body = msgspec.msgpack.encode(keyed(kernel, 2)[1])
    paths[1].write_bytes(sealed(second, body))
    with SharedCache(replace(settings, readonly=True)) as shared:
        assert list(machine(shared).get_many([first, second, third])) == [third]
    told = warnings(caplog)
    assert [text.partition("entry ")[2].partition(" ")[2] for text in told] == [
        "is damaged, or was written with a key; it is made again here",
        "is not what it is named as; it is made again here",
    ]


def test_many_damaged_entries_give_few_warnings(
    settings: SharedSettings, machine: Machine, kernel: CompiledKernel, caplog: pytest.LogCaptureFixture
):
    keys = fill(settings, machine, kernel, 10)
    for path in Path(settings.url).glob("v2/*/*"):
        path.write_bytes(b"")
    with SharedCache(settings) as shared:
        assert machine(shared).get_many(keys) == {}
    told = warnings(caplog)
    assert len(told) == 4 and told[-1].endswith("7 more entries were refused; -v lists them")


def test_entries_that_are_no_files(
    settings: SharedSettings, machine: Machine, kernel: CompiledKernel, caplog: pytest.LogCaptureFixture
):
    """Only these entries are refused; the others are read."""
    first, second = fill(settings, machine, kernel, 2)
    path = Path(settings.url) / "v2" / first[:2] / first
    path.unlink()
    path.mkdir()
    with SharedCache(settings) as shared:
        assert list(machine(shared).get_many([first, second])) == [second]
    (told,) = warnings(caplog)
    assert f"entry v2/{first[:2]}/{first} cannot be read (" in told


@pytest.mark.parametrize("scheme", ["", "simplecache::file://"])
def test_large_entries_are_not_shared(
    settings: SharedSettings, machine: Machine, kernel: CompiledKernel, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, scheme: str,
):  # fmt: skip
    Path(settings.url).mkdir()
    settings = replace(settings, url=f"{scheme}{settings.url}")
    fill(settings, machine, kernel)
    key, large = keyed(replace(kernel, image=bytes(50_000)), 7)
    with SharedCache(settings) as shared:
        machine(shared).put(key, large)
    monkeypatch.setattr(shared_cache, "MAX_SHARED_BYTES", 50_000)
    with SharedCache(settings) as shared:
        cache = machine(shared)
        assert list(cache.get_many([key, keyed(kernel)[0]])) == [keyed(kernel)[0]]
        cache.put(key, large)
        assert shared.written == 0 and cache.get(key) == large
    assert f"entry v2/{key[:2]}/{key} " in warnings(caplog)[0]


def test_with_a_secret_only_its_owners_are_believed(
    settings: SharedSettings, machine: Machine, kernel: CompiledKernel, caplog: pytest.LogCaptureFixture
):
    own = replace(settings, secret=SECRET)
    (key,) = fill(own, machine, kernel)
    for other in (settings, replace(settings, secret=SECRET[::-1])):
        with SharedCache(replace(other, readonly=True)) as shared:
            assert machine(shared).get(key) is None
        assert "is damaged" in warnings(caplog)[0]
    with SharedCache(own) as shared:
        assert machine(shared).get(key) == keyed(kernel)[1]
    body = msgspec.msgpack.encode(replace(keyed(kernel)[1], image=b"forged"))
    path = Path(settings.url) / "v2" / key[:2] / key
    path.write_bytes(sealed(key, body))
    with SharedCache(settings) as shared:
        forged = machine(shared).get(key)
        assert forged is not None and forged.image == b"forged", "who may write without a secret can forge"
    assert warnings(caplog) == []
    with SharedCache(own) as shared:
        assert machine(shared).get(key) is None
    assert "is damaged, or was not written with this key" in warnings(caplog)[0]
    assert unsealed(key, sealed(key, body, SECRET), SECRET) == body and repr(SECRET) not in repr(own)


def test_one_that_is_only_read_is_not_written(
    settings: SharedSettings, machine: Machine, kernel: CompiledKernel, caplog: pytest.LogCaptureFixture
):
    readonly = replace(settings, readonly=True)
    for _ in range(2):
        with SharedCache(readonly) as shared:
            cache = machine(shared)
            assert cache.get("ab" * 32) is None
            cache.put(*keyed(kernel))
        told = "cannot be used: it is not there; the build continues without it"
        assert warnings(caplog) == ([] if Path(settings.url).exists() else [f"shared cache {settings.url} {told}"])
        assert shared.written == 0 and not list(Path(settings.url).rglob("v*"))
        Path(settings.url).mkdir(exist_ok=True)


# Stores that are out of order


@pytest.mark.parametrize(
    ("protocol", "told"),
    [
        ("hanging", "did not answer within 0.3 s"),
        ("unreachable", "cannot be read: ConnectionRefusedError: [Errno 111] Connection refused"),
        ("denying", "cannot be read: PermissionError: Access Denied"),
        ("crashing", "cannot be used: the process that ran it exited with code 3"),
    ],
)
def test_a_store_that_cannot_be_used_costs_one_warning_and_little_time(
    machine: Machine, kernel: CompiledKernel, caplog: pytest.LogCaptureFixture, protocol: str, told: str
):
    faulty_stores.register()
    settings = SharedSettings(f"{protocol}://user:word@x/y")
    limit_s = 0.3 if protocol == "hanging" else 4.0  # the others answer, on a busy machine late
    started = time.monotonic()
    with SharedCache(settings, limit_s=limit_s) as shared:
        cache = machine(shared)
        for number in range(BATCH + 1):
            key, own = keyed(kernel, number)
            assert cache.get(key) is None
            cache.put(key, own)
            assert cache.get(key) == own
    assert warnings(caplog) == [f"shared cache {protocol}://x/y {told}; the build continues without it"]
    assert time.monotonic() - started < 5
    with pytest.raises(CacheError) as raised, SharedCache(replace(settings, required=True), limit_s=limit_s) as shared:
        machine(shared).get("ab" * 32)
    assert str(raised.value) == f"shared cache {protocol}://x/y {told}"


class Clock:
    """A `time` module and the process that talks to a store, in which each batch takes a given time."""

    def __init__(self, batch_s: float):
        self.now, self.batch_s = 0.0, batch_s

    def monotonic(self) -> float:
        return self.now

    def run(self, function: object, settings: SharedSettings, batch: Sequence[object]) -> list[None]:
        self.now += self.batch_s
        return [None] * len(batch)

    def close(self) -> None:
        pass


def test_what_waits_to_be_written_does_not_wait_long(
    machine: Machine, kernel: CompiledKernel, monkeypatch: pytest.MonkeyPatch
):
    clock = Clock(0)
    monkeypatch.setattr(shared_cache, "time", clock)
    monkeypatch.setattr(shared_cache, "ForkedProcess", lambda limit_s: clock)
    with SharedCache(SharedSettings("memory://x")) as shared:
        cache, written = machine(shared), []
        for number in range(10):
            clock.now += 4
            cache.put(*keyed(kernel, number))
            written.append(shared.written)
    assert written == [0, 0, 3, 3, 3, 6, 6, 6, 9, 9] and shared.written == 10


@pytest.mark.parametrize(("batch_s", "batches"), [(14, 2), (4, 7), (1.5, 20)])
def test_a_slow_store_that_has_nothing_is_given_up(
    machine: Machine, kernel: CompiledKernel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    batch_s: float, batches: int,
):  # fmt: skip
    """32 entries are worth 1.6 s of a store's time, so one that answers in 1.5 s may be asked forever."""
    clock = Clock(batch_s)
    monkeypatch.setattr(shared_cache, "time", clock)
    monkeypatch.setattr(shared_cache, "ForkedProcess", lambda limit_s: clock)
    with SharedCache(SharedSettings("memory://x")) as shared:
        assert machine(shared).get_many(f"{number:064}" for number in range(20 * BATCH)) == {}
    assert clock.now == batches * batch_s <= 30 + 20 * BATCH * 0.05
    given_up = f"is too slow: 0 entries read, 0 written in {clock.now:.0f} s; the build continues without it"
    assert warnings(caplog) == ([f"shared cache memory://x {given_up}"] if batches < 20 else [])


def test_one_that_is_full_is_still_read(machine: Machine, kernel: CompiledKernel, caplog: pytest.LogCaptureFixture):
    faulty_stores.register()
    settings = SharedSettings("full://x")
    with SharedCache(settings) as shared:
        cache = machine(shared)
        for number in range(2 * BATCH):
            cache.put(*keyed(kernel, number))
        assert cache.get("ab" * 32) is None
    fault = "cannot be written: OSError: [Errno 28] No space left on device"
    assert warnings(caplog) == [f"shared cache full://x {fault}; the build will only read from it"]
    with pytest.raises(CacheError, match="No space left"), SharedCache(replace(settings, required=True)) as shared:
        machine(shared).put(*keyed(kernel))


def test_nothing_is_asked_where_the_local_cache_has_all(machine: Machine, kernel: CompiledKernel):
    faulty_stores.register()
    with SharedCache(SharedSettings("crashing://x", required=True)) as shared:
        cache = machine(shared)
        key, own = keyed(kernel)
        CompileCache(cache.path).put(key, own)
        assert cache.get(key) == own and shared.use == ""


def test_what_is_left_is_not_written_where_the_build_failed(
    settings: SharedSettings, machine: Machine, kernel: CompiledKernel
):
    with pytest.raises(KeyboardInterrupt), SharedCache(settings) as shared:
        machine(shared).put(*keyed(kernel))
        raise KeyboardInterrupt
    assert not Path(settings.url).exists()
