"""`aotbundle bench memory`: measurements, output and errors. Times are not checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aot_bundle.command.bandwidth import MOVED, measure, parse_size
from aot_bundle.command.main import main
from aot_runtime import Bundle
from aot_runtime.errors import ArgumentError, DeviceMemoryError
from tests.support.op_bundles import OpBundles


@pytest.fixture(scope="module")
def memory(op_bundles: OpBundles) -> Bundle:
    return op_bundles.with_vectors("memory")


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", "memory", *map(str, arguments)], catch_exceptions=False)


def on_its_device(memory: Bundle, *arguments: object) -> str:
    result = bench(memory.path, "--device", memory.device.driver.name, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.on("emulator")
def test_text(memory: Bundle):
    text = on_its_device(memory, "--size", "16KiB", "--size", "100", "--rounds", 2)
    head, _, columns, *lines = text.splitlines()
    assert head.startswith("bundle memory for gfx942, id ") and columns.split() == ["GB/s", *MOVED]
    assert [line.split()[:2] for line in lines[:2]] == [["16", "KiB"], ["100", "B"]]
    assert all(float(number) >= 0 for line in lines[:2] for number in line.split()[2:])
    assert "medians of 2 rounds" in lines[3] and lines[4] == "The emulator ran them: these times mean nothing."


def test_json(memory: Bundle):
    found = json.loads(on_its_device(memory, "--size", "10001", "--rounds", 3, "--json"))
    emulated = memory.device.driver.name == "emulator"
    assert (found["meaningful"], found["rounds"], found["skipped"]) == (not emulated, 3, [])
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


def test_wrong_usage(memory: Bundle, tmp_path: Path):
    for size in ("1TB", "-5", "0", "GiB"):
        result = bench(memory.path, "--size", size)
        assert result.exit_code == 2 and "is not a size" in result.stderr
    assert bench(memory.path, "--device", "emulator:gfx90a").exit_code == 2
    assert bench(tmp_path / "none").exit_code == 1


def test_another_bundle(op_bundles: OpBundles):
    with pytest.raises(ArgumentError, match=r"bundle 'rows' has no op 'copy'; a bundle of manifests/memory\.yaml is"):
        measure(op_bundles.open("rows"), (4096,), 1)


def test_sizes():
    assert [parse_size(text) for text in ("7", "3KiB", "64MiB", "2GiB")] == [7, 3072, 1 << 26, 1 << 31]
