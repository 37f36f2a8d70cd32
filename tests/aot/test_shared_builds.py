"""Builds of several machines with one shared cache: each kernel is compiled by only one."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from click.testing import CliRunner

from aot.cache.layered_cache import sealed
from aot.cache.stores import FolderStore
from aot.cli import main
from tests.support import faulty_stores
from tests.support.building.builds import Project, contents, figures
from tests.support.building.selftests import project

SMALL = ("--filter", "block=16,dtype=float16")
"""Two kernels and one selftest case."""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared"


def machine(tmp_path: Path, name: str) -> Project:
    return project(tmp_path / name)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_a_cold_machine_compiles_nothing(tmp_path: Path, shared: Path, caplog: pytest.LogCaptureFixture):
    first, second, third = (machine(tmp_path, name) for name in ("first", "second", "third"))
    options = (*SMALL, "--shared-cache", str(shared))
    made = first.build(*options)
    assert figures(made) == (2, 0) and f"\nshared cache {shared}: 0 entries read, 3 written\n" in made.stdout
    with (
        mock.patch("aot.build.compile_missing", side_effect=AssertionError("it compiles")),
        mock.patch("aot.write.vectors._computed", side_effect=AssertionError("it computes")),
    ):
        found = second.build(*options)
        assert figures(found) == (0, 2) and f"\nshared cache {shared}: 3 entries read, 0 written\n" in found.stdout
        again = second.build(*options)
        assert figures(again) == (0, 2) and "shared cache" not in again.stdout, "nothing is asked of it"
    assert contents(first.folder_of()) == contents(second.folder_of())

    damaged = sorted(shared.glob("v2/*/*"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    mended = third.build(*options)
    assert figures(mended) == (1, 1) and "2 entries read, 1 written" in mended.stdout
    (told,) = warnings(caplog)
    assert f"entry v2/{damaged.parent.name}/{damaged.name} is damaged" in told
    assert contents(third.folder_of()) == contents(first.folder_of())


def test_a_store_that_cannot_be_used_stops_no_build(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Its folder has no parent, as where a disk is not mounted."""
    place = tmp_path / "not" / "mounted"
    first = machine(tmp_path, "first")
    assert figures(first.build(*SMALL, "--shared-cache", str(place))) == (2, 0)
    (told,) = warnings(caplog)
    assert told.startswith(f"shared cache {place} cannot be written: FileNotFoundError: ")
    other = machine(tmp_path, "other")
    failed = other.build(*SMALL, "--shared-cache", str(place), "--shared-cache-required")
    assert failed.exit_code == 1 and f"aotbuild: error: shared cache {place} cannot be written" in failed.stderr


def test_the_environment_says_what_the_options_say(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "key").write_text("0123456789abcdef" * 4)
    monkeypatch.setenv("AOTBUILD_SHARED_CACHE", str(shared))
    monkeypatch.setenv("AOTBUILD_SHARED_CACHE_KEY", str(tmp_path / "key"))
    assert figures(machine(tmp_path, "first").build(*SMALL)) == (2, 0)
    assert figures(machine(tmp_path, "second").build(*SMALL)) == (0, 2)
    monkeypatch.delenv("AOTBUILD_SHARED_CACHE_KEY")
    monkeypatch.setenv("AOTBUILD_SHARED_CACHE_READONLY", "1")
    stranger = machine(tmp_path, "stranger").build(*SMALL)
    assert figures(stranger) == (2, 0) and "0 entries read, 0 written" in stranger.stdout
    told = "is damaged, or was written with a key; it is made again here"
    assert [told in text for text in warnings(caplog)] == [True] * 3
    monkeypatch.setenv("AOTBUILD_SHARED_CACHE", str(tmp_path / "none"))
    monkeypatch.setenv("AOTBUILD_SHARED_CACHE_REQUIRED", "1")
    failed = machine(tmp_path, "last").build(*SMALL)
    assert failed.exit_code == 1 and failed.stderr.endswith("cannot be used: it is not there\n")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--shared-cache", "s4://x"), "s4://x cannot be opened: Protocol not known: s4"),
        (("--shared-cache", ""), "is empty; expected a folder or a URL"),
        (("--shared-cache-key", "short"), "short must have 16 to 4096 bytes"),
        (("--shared-cache-key", "none"), "none cannot be read: No such file or directory"),
    ],
)
def test_wrong_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, str], told: str):
    monkeypatch.chdir(tmp_path)
    Path("short").write_text(" " * 100 + "short\n")
    failed = machine(tmp_path, "first").build(*options)
    assert failed.exit_code == 2 and told in " ".join(failed.stderr.split())


# aotbuild cache


def run(*words: str) -> str:
    result = CliRunner().invoke(main, ["cache", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_commands_of_the_cache_speak_of_the_shared_one(tmp_path: Path, shared: Path):
    first = machine(tmp_path, "first")
    assert figures(first.build(*SMALL)) == (2, 0)
    caches = ("--cache-dir", str(first.cache), "--shared-cache", str(shared))
    sorted(first.cache.glob("v2/*/*"))[0].write_bytes(b"damaged")
    assert run("push", *caches) == f"{shared}: 2 entries written, 0 were there\n"
    assert run("push", *caches) == f"{shared}: 0 entries written, 2 were there\n"
    listed = json.loads(run("ls", "--json", *caches))
    counts = [{kind: found["entries"] for kind, found in item["kinds"].items()} for item in (listed, listed["shared"])]
    assert counts == [{"kernels": 2, "selftest vectors": 1}, {"kernels": 1, "selftest vectors": 1}]
    assert run("ls", *caches).count("kernels") == 2 and "shared" not in json.loads(run("ls", "--json", *caches[:2]))
    assert figures(machine(tmp_path, "second").build(*SMALL, "--shared-cache", str(shared))) == (1, 1)
    assert run("prune", "--all", *caches).startswith("removed 3 of 3") and len(list(shared.glob("*/*/*"))) == 3
    assert run("prune", "--all", "--shared", "--dry-run", *caches).startswith("would remove 3 of 3")
    assert run("prune", "--all", "--shared", *caches).startswith("removed 3 of 3") and list(shared.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("prune", "--shared"), 2, "no shared cache: pass --shared-cache, or set AOTBUILD_SHARED_CACHE"),
        (("push",), 2, "no shared cache:"),
        (("push", "--shared-cache", "x", "--shared-cache-readonly"), 2, "the shared cache is read-only"),
        (("prune", "--shared", "--shared-cache", "x", "--shared-cache-readonly"), 2, "the shared cache is read-only"),
        (("push", "--shared-cache", "not/there"), 1, "error: shared cache not/there cannot be written: FileNotFound"),
        (
            ("ls", "--shared-cache", "denying://x"),
            1,
            "error: cache denying://x cannot be listed: PermissionError: Access Denied",
        ),
    ],
)
def test_commands_of_the_cache_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], status: int, told: str
):
    monkeypatch.chdir(tmp_path)
    faulty_stores.register()
    key = "ab" * 32
    FolderStore(tmp_path / "cache").write(f"v2/ab/{key}", sealed(key, b"a kernel"))
    result = CliRunner().invoke(main, ["cache", *words, "--cache-dir", "cache"])
    assert result.exit_code == status and told in result.output


@pytest.mark.parametrize("accesses", [{}, {"x": "rw", "out": "w"}])
def test_what_a_forger_says_of_accesses_ends_no_build(
    tmp_path: Path, shared: Path, accesses: dict[str, str], caplog: pytest.LogCaptureFixture
):
    """The code does not show that it is false: where it is a fault, kernels are compiled again and replaced."""
    first, second, third = (machine(tmp_path, name) for name in ("first", "second", "third"))
    options = (*SMALL, "--shared-cache", str(shared))
    assert figures(first.build(*options)) == (2, 0)
    for entry in shared.glob("v2/*/*"):
        kernel = msgspec.msgpack.decode(entry.read_bytes()[32:])
        assert kernel["accesses"].keys() == {"x", "out"}
        entry.write_bytes(sealed(entry.name, msgspec.msgpack.encode(kernel | {"accesses": accesses})))
    assert figures(second.build(*options)) == (2, 0)
    (told,) = warnings(caplog)
    assert told == f"shared cache {shared}: accesses of 2 kernels contradict the manifest; compiled again"
    assert contents(second.folder_of()) == contents(first.folder_of())
    assert figures(second.build(*SMALL)) == figures(third.build(*options)) == (0, 2) and len(warnings(caplog)) == 1
