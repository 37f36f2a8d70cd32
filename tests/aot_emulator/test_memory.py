"""Copying, reading and writing memory: the shipped gfx942 code objects in strict mode, and `aotbundle bench memory`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aot_runtime import Bundle
from aot_runtime.command.bandwidth import MOVED, measure, parse_size
from aot_runtime.command.main import main
from aot_runtime.errors import DeviceMemoryError
from tests.ops.memory.memory_suite import *  # noqa: F403 -- its tests
from tests.support.emulation.bundling import built

pytestmark = pytest.mark.sampled(5)


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return built(tmp_path_factory, "memory")


@pytest.mark.parametrize(
    "op, options, wanted",
    (
        ("copy", ("--dim=n=65536",), {"global_load", "global_store"}),
        ("read", ("--dim=n=65536",), {"global_load"}),
        ("write", ("--dim=n=65536", "--set=value=3"), {"global_store"}),
    ),
)
def test_whole_blocks_move_16_bytes_a_lane(memory: Bundle, op: str, options: tuple[str, ...], wanted: set[str]):
    result = CliRunner().invoke(main, ["profile", str(memory.path), op, *options, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (launch,) = json.loads(result.stdout)["launches"]
    moved = {kind: counts for kind, counts in launch["accesses"].items() if counts["bytes"] >= 4 * 65536}
    assert moved.keys() == wanted
    assert all(counts["bytes"] == 4 * 65536 == 16 * counts["lanes"] for counts in moved.values())


# The command


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", "memory", *map(str, arguments)], catch_exceptions=False)


def test_bench(memory: Bundle):
    result = bench(memory.path, "--device", "emulator", "--size", "16KiB", "--size", "100", "--rounds", 2)
    assert result.exit_code == 0, result.output
    head, _, columns, *lines = result.stdout.splitlines()
    assert head.startswith("bundle memory for gfx942, id ") and columns.split() == ["GB/s", *MOVED]
    assert [line.split()[:2] for line in lines[:2]] == [["16", "KiB"], ["100", "B"]]
    assert all(float(number) >= 0 for line in lines[:2] for number in line.split()[2:])
    assert "medians of 2 rounds" in lines[3] and lines[4] == "The emulator ran them: these times mean nothing."


def test_bench_json(memory: Bundle):
    result = bench(memory.path, "--device", "emulator", "--size", "10001", "--rounds", 3, "--json")
    found = json.loads(result.stdout)
    assert (found["meaningful"], found["rounds"], found["skipped"]) == (False, 3, [])
    assert [item["op"] for item in found["results"]] == list(MOVED)
    for item in found["results"]:
        assert item["nbytes"] == 10004 and item["spread"] >= 1
        assert item["gb_per_s"] == pytest.approx(MOVED[item["op"]] * 10004 / item["seconds"] / 1e9)


def test_what_does_not_fit_is_skipped(memory: Bundle, monkeypatch: pytest.MonkeyPatch):
    device, empty = memory.device, type(memory.device).empty

    def small(self: object, shape: object, dtype: object, **options: object) -> object:
        if shape == (1 << 20,):
            raise DeviceMemoryError("hipMallocAsync", 2, "hipErrorOutOfMemory", "out of memory")
        return empty(device, shape, dtype, **options)

    monkeypatch.setattr(type(device), "empty", small)
    measured = measure(memory, (4096, 4 << 20), 1)
    assert measured.skipped == (4 << 20,) and {result.nbytes for result in measured.results} == {4096}


def test_another_bundle(tmp_path_factory: pytest.TempPathFactory):
    path = built(tmp_path_factory, "rows", "op=softmax,T=float32,BLOCK=512").path
    result = bench(path, "--device", "emulator")
    assert result.exit_code == 1 and "bundle 'rows' has no op 'copy'" in result.stderr


def test_wrong_usage(memory: Bundle, tmp_path: Path):
    for size in ("1TB", "-5", "0", "GiB"):
        result = bench(memory.path, "--size", size)
        assert result.exit_code == 2 and "is no size" in result.stderr
    assert bench(memory.path, "--device", "emulator:gfx90a").exit_code == 2
    assert bench(tmp_path / "none").exit_code == 1


def test_sizes():
    assert [parse_size(text) for text in ("7", "3KiB", "64MiB", "2GiB")] == [7, 3072, 1 << 26, 1 << 31]
