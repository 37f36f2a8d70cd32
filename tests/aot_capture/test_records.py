"""The capture file: read back as written, torn by killed processes, or malformed."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import random
from contextlib import suppress
from pathlib import Path

import pytest

from aot_capture.records import CaptureError, Unrecorded, append, line_of, parse, read_capture
from tests.aot_capture.conftest import Captured


def test_records_are_read_as_they_were_written(captured: Captured):
    for line in captured.file.read_text().splitlines():
        assert line_of(parse(line, "f:1")) == line


def test_every_cut_of_a_file_is_readable(captured: Captured, tmp_path: Path):
    """A killed process leaves any prefix of its last record."""
    data = captured.file.read_bytes()
    whole = data.rstrip(b"\n").rfind(b"\n") + 1
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(data[:whole])
    before = read_capture(torn)
    for end in range(whole + 1, len(data) - 1, 97):
        torn.write_bytes(data[:end])
        capture = read_capture(torn)
        assert len(capture.notes) == 1 and "half a record" in capture.notes[0]
        assert dataclasses.replace(capture, notes=[]) == before


def test_a_torn_record_before_another_process_one_is_skipped(captured: Captured, tmp_path: Path):
    first, *lines = captured.file.read_text().splitlines()
    torn = tmp_path / "torn.jsonl"
    torn.write_text("\n".join([first, lines[-1][:200] + lines[0], *lines[1:]]) + "\n")
    capture = read_capture(torn)
    assert len(capture.kernels) == len(captured.capture.kernels)
    assert capture.notes == [f"{torn}:2: a killed process left half a record, which is ignored"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda record: [], "unknown kind of record None"),
        (lambda record: {"kind": "kernels"}, "unknown kind of record 'kernels'"),
        (lambda record: {"kind": []}, "unknown kind of record []"),
        (lambda record: {**record, "format": 2}, "format 2; this version reads format 1"),
        (lambda record: {**record, "pid": "1"}, "installation's 'pid' is not of type int"),
        (lambda record: {**record, "files": {"a": 1}}, "installation's 'files' is not of type"),
        (lambda record: {**record, "more": 1}, "installation has the unknown field 'more'"),
        (lambda record: {k: v for k, v in record.items() if k != "root"}, "installation lacks 'root'"),
    ],
)
def test_malformed_records_are_told_with_their_line(captured: Captured, tmp_path: Path, change, told: str):
    lines = captured.file.read_text().splitlines()
    bad = tmp_path / "bad.jsonl"
    bad.write_text("\n".join([json.dumps(change(json.loads(lines[0]))), *lines[1:]]) + "\n")
    with pytest.raises(CaptureError) as error:
        read_capture(bad)
    assert str(error.value).startswith(f"{bad}:1: ") and told in str(error.value)


def test_incomplete_files_are_refused(captured: Captured, tmp_path: Path):
    lines = captured.file.read_text().splitlines()
    file = tmp_path / "k.jsonl"
    file.write_text("\n".join(lines[1:]))
    with pytest.raises(CaptureError, match="no installation is recorded"):
        read_capture(file)
    file.write_text("\n".join(line for line in lines if '"kind": "function"' not in line))
    with pytest.raises(CaptureError, match="refers to the function"):
        read_capture(file)
    with pytest.raises(CaptureError, match="No such file"):
        read_capture(tmp_path / "none")


def test_damaged_files_are_read_or_refused(captured: Captured, tmp_path: Path):
    generator = random.Random(40)
    data = captured.file.read_bytes()
    file = tmp_path / "k.jsonl"
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(generator.randint(1, 4)):
            start = generator.randrange(len(damaged))
            damaged[start : start + generator.choice([0, 1, 50])] = generator.randbytes(generator.choice([0, 1, 30]))
        file.write_bytes(damaged)
        with suppress(CaptureError):
            read_capture(file)
    file.write_text('{"kind": "kernel", "x": ' + "[" * 100_000)
    assert read_capture(file).notes


def _append_many(path: str, name: str) -> None:
    for _ in range(50):
        append(path, Unrecorded(name, "x" * 20_000, 1))


def test_processes_append_whole_lines(tmp_path: Path):
    path = tmp_path / "k.jsonl"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append_many, args=(str(path), str(n))) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [parse(line, "f").reason for line in path.read_text().splitlines()] == ["x" * 20_000] * 200
