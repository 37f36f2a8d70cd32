"""Builds with a shared cache on a server of S3, over HTTP: the number of requests, and the cost of failures."""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.support.building.builds import Project, contents, figures
from tests.support.building.selftests import project
from tests.support.s3_server import S3Server, point_to, s3_server

pytest.importorskip("s3fs", reason="speaking to S3 needs s3fs")
pytest.importorskip("moto.server", reason="the server of S3 is moto's")

pytestmark = pytest.mark.slow

URL = "s3://team/builds"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(tmp_path) as found:
        point_to(found.endpoint, monkeypatch)
        yield found


def machine(tmp_path: Path, name: str) -> Project:
    return project(tmp_path / name)


def build(made: Project, *options: str, url: str = URL) -> tuple[int, int]:
    return figures(made.build("--shared-cache", url, *options))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return found


def test_a_cold_machine_reads_each_entry_with_one_request(tmp_path: Path, server: S3Server):
    first, second = machine(tmp_path, "first"), machine(tmp_path, "second")
    assert build(first) == (8, 0)
    written = server.requests("PUT")
    assert len(written) == len(set(written)) == 10 and len(server.requests("GET")) == 10
    with mock.patch("aot.build.compile_missing", side_effect=AssertionError("it compiles")):
        assert build(second) == (0, 8) == build(second)
    assert sorted(server.requests("GET")[10:]) == sorted(written) == sorted(server.requests("PUT"))
    assert server.requests("HEAD") == []
    assert contents(first.folder_of()) == contents(second.folder_of())


def test_damaged_objects_are_replaced(tmp_path: Path, server: S3Server, caplog: pytest.LogCaptureFixture):
    assert build(machine(tmp_path, "first")) == (8, 0)
    files = server.files
    names = sorted(files.find("team/builds/v2"))
    whole = [files.cat_file(name) for name in names]
    for name, content in zip(names, (b"", whole[1][:-9], whole[2] + b"x", whole[4]), strict=False):
        files.pipe_file(name, content)
    assert build(machine(tmp_path, "second")) == (4, 4)
    told = warnings(caplog)
    assert len(told) == 4 and all(any(name.rpartition("/")[2] in text for text in told) for name in names[:4])
    assert [server.files.cat_file(name) for name in names] == whole
    assert build(machine(tmp_path, "third")) == (0, 8) and warnings(caplog) == []


def test_buckets_that_are_not_there_are_not_made(tmp_path: Path, server: S3Server, caplog: pytest.LogCaptureFixture):
    for url in ("s3://taem", "s3://taem/builds"):
        assert build(machine(tmp_path, f"{len(url)}"), url=url) == (8, 0)
        (told,) = warnings(caplog)
        assert told.startswith(f"shared cache {url} cannot be written: ") and "bucket does not exist" in told
        assert build(machine(tmp_path, f"{len(url)}-reads"), "--shared-cache-readonly", url=url) == (8, 0)
        (told,) = warnings(caplog)
        assert told == f"shared cache {url} cannot be used: it is not there; the build continues without it"
    assert [path.rstrip("/") for path in server.files.ls("")] == ["team"]


def test_credentials_that_are_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    with s3_server(tmp_path, INITIAL_NO_AUTH_ACTION_COUNT="3") as server:
        point_to(server.endpoint, monkeypatch)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        server_files = server.files
        for _ in range(3):  # from then on the server asks who it is
            try:
                server_files.exists("team")
            except PermissionError:
                break
        started = time.monotonic()
        assert build(machine(tmp_path, "first")) == (8, 0)
        assert time.monotonic() - started < 20
        (told,) = warnings(caplog)
        assert told.startswith(f"shared cache {URL} cannot be read: PermissionError: ")
        failed = machine(tmp_path, "second").build("--shared-cache", URL, "--shared-cache-required")
        assert failed.exit_code == 1 and f"error: shared cache {URL} cannot be read: PermissionError" in failed.stderr


def test_a_server_that_went_away(tmp_path: Path, server: S3Server, caplog: pytest.LogCaptureFixture):
    server.process.kill()
    server.process.wait()
    started = time.monotonic()
    assert build(machine(tmp_path, "first")) == (8, 0)
    assert time.monotonic() - started < 25
    (told,) = warnings(caplog)
    assert told.startswith(f"shared cache {URL} ") and told.endswith("; the build continues without it")


def test_a_server_that_stops_while_a_build_runs(tmp_path: Path, server: S3Server, caplog: pytest.LogCaptureFixture):
    """The server answers reads only: what is compiled is kept on this machine."""
    made = machine(tmp_path, "first")
    from aot.workers.batch import compile_missing

    def stopping(*arguments: object, **options: object) -> None:
        server.process.send_signal(signal.SIGSTOP)
        compile_missing(*arguments, **options)  # type: ignore[arg-type]

    started = time.monotonic()
    with mock.patch("aot.build.compile_missing", stopping):
        assert build(made) == (8, 0)
    assert time.monotonic() - started < 25
    assert warnings(caplog) == [
        f"shared cache {URL} did not answer within 15 s; the build continues without it",
    ]
    assert figures(made.build()) == (0, 8)


def test_an_address_that_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        point_to(f"http://127.0.0.1:{silent.getsockname()[1]}", monkeypatch)
        started = time.monotonic()
        assert build(machine(tmp_path, "first")) == (8, 0)
    assert time.monotonic() - started < 25
    assert warnings(caplog) == [f"shared cache {URL} did not answer within 15 s; the build continues without it"]


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_two_processes_at_once(tmp_path: Path, server: S3Server, place: str, caplog: pytest.LogCaptureFixture):
    """Both compile everything and write the same whole entries, which a third machine takes."""
    url = URL if place == "s3" else str(tmp_path / "shared")
    both = [machine(tmp_path, name) for name in ("first", "second")]
    builds = [made.start("--shared-cache", url) for made in both]
    for running in builds:
        out, err = running.communicate(timeout=200)
        assert running.returncode == 0 and err == "", err
        compiled, cached = figures(out)
        assert compiled + cached == 8
    assert build(machine(tmp_path, "third"), url=url) == (0, 8) and warnings(caplog) == []
    assert contents(both[0].folder_of()) == contents(both[1].folder_of())
    assert not list(tmp_path.rglob("shared/**/.new-*"))
