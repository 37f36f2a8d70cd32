"""A Llama-family model on the emulator, from the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

pytest.importorskip("safetensors", reason="the example needs the extra `llama`")
pytest.importorskip("tokenizers", reason="the example needs the extra `llama`")

from llama import main
from llama_random import write_checkpoint

from aot_runtime import Bundle
from tests.aot_emulator.llama_over_hip import continue_text
from tests.ops.llama.llama_suite import *  # noqa: F403 -- its tests
from tests.ops.llama.llama_suite import CASES, check_case, tiny
from tests.support.emulation.bundling import ROOT, built, on_demand
from tests.support.hip_double.double import DoubleLibrary

FEW = (
    "T=bfloat16,HEAD_DIM=64,HEAD_DIM_V=64,BLOCK=128,PADDED=false,SPLIT=false,EPILOGUE=none|any,PAIRS=32,MULTIPLY=false"
)
"""Of 236 variants the 46 that the tests need."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return built(tmp_path_factory, "llama", FEW)


def test_the_benchmark_runs_to_its_end(llama: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = importlib.import_module("benchmarks.llama")
    shape = ["--size", "tiny", "--batches", "2", "--prompt", "3", "--tokens", "4"]
    command = [str(llama.path), *shape, "--no-transformers", "--no-gptq", "--rounds", "1"]
    heading, *rows = benchmark.report(llama, tmp_path, benchmark.options_of(command)).splitlines()
    assert [row.split("  ")[0] for row in rows] == ["dense, batch 2"]
    assert all(float(number) >= 0 for row in rows for number in row.split()[3:-1]) and "tokens/s" in heading
    _, *rows = benchmark.report_by_op(llama, tmp_path, benchmark.options_of(command)).splitlines()
    calls = {row.split(": ")[1].rsplit(maxsplit=3)[0]: row.split()[-3] for row in rows}
    assert calls["advance 2x7"] == "1" and calls["matmul 128x512"] == "4" and calls["paged_attention 2x64x2x64"] == "2"


def test_the_command_over_hip(
    llama: Bundle, hip_double: DoubleLibrary, tmp_path: Path, capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    """hip-python's calls, kernargs and graphs are those that give the emulator's texts."""
    write_checkpoint(tmp_path, *tiny(num_hidden_layers=1))
    command = [str(tmp_path), str(llama.path), "Once", "A longer text", "--tokens", "5"]
    main([*command, "--device", "emulator"])
    *wanted, _ = capsys.readouterr().out.splitlines()
    *texts, _, graphs = hip_double.run(continue_text, *command).splitlines()
    assert texts == wanted and graphs == "3 graphs"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_other_models(name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    check_case(on_demand(tmp_path_factory, "llama"), tmp_path, name)
