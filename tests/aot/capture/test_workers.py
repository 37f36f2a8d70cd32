"""A worker's answers are not believed: its code objects are read back, and what its compiler printed counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aot.capture.environments import own_environment
from aot.capture.rebuilt import RebuiltCache, RebuiltKernel, fault_of, rebuild_job
from aot.capture.worker_process import WorkerProcess
from aot.capture.workers import Workers
from aot.errors import CompileError
from aot.targets import Target
from aot_capture.records import Capture, read_capture

from .conftest import Built

GFX942 = Target("gfx942")


@pytest.fixture(scope="module")
def capture(on_amd: Built) -> Capture:
    return read_capture(on_amd.file)


@pytest.fixture(scope="module")
def workers(capture: Capture) -> Iterator[Workers]:
    functions = {name: vars(record) for name, record in capture.functions.items()}
    session = {
        "kind": "session", "functions": functions, "aggregates": {}, "stated_key": None, "root": "/triton",
        "binary_only": True,
    }  # fmt: skip
    with Workers(own_environment(), session, 1, 60) as workers:
        yield workers


def _rebuilt(workers: Workers, capture: Capture) -> RebuiltKernel:
    kernel = next(kernel for kernel in capture.kernels if kernel.name == "scale")
    return workers.rebuild(rebuild_job(kernel, GFX942, capture, {}, ""))


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "an error that was only printed": (
        lambda answer: answer.update(native="k.py:33:5: error: operand is wrong"), "k.py:33: operand is wrong"
    ),
    "another symbol": (lambda answer: answer.update(symbol="other"), "has no kernel 'other'"),
    "an argument less": (lambda answer: answer["arguments"].pop(), "which is not passed|has a value|is a pointer"),
    "another type": (lambda answer: answer["arguments"][0].__setitem__(1, "i32"), "kernarg 'x' at offset 0 is a value"),
    "other warps": (lambda answer: answer.update(num_warps=8), "threads of a workgroup"),
    "another binary": (lambda answer: answer.update(binary="scale.json"), "read back|ELF|code object"),
    "a path": (lambda answer: answer["files"].append("../native"), "no name of a file"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_that_does_not_fit_fails_the_kernel(
    fault: str, workers: Workers, capture: Capture, monkeypatch: pytest.MonkeyPatch
):
    change, message = FAULTS[fault]
    ask = WorkerProcess.ask

    def changed(self: WorkerProcess, sent: dict[str, Any], limit_s: float) -> dict[str, Any]:
        answer = ask(self, sent, limit_s)
        if sent["kind"] == "kernel":
            change(answer)
        return answer

    monkeypatch.setattr(WorkerProcess, "ask", changed)
    with pytest.raises(CompileError, match=message):
        _rebuilt(workers, capture)


def test_a_kernel_from_the_cache_is_read_back_too(workers: Workers, capture: Capture, tmp_path: Path):
    kernel = _rebuilt(workers, capture)
    assert fault_of(kernel, GFX942) == "" and "its architecture" in fault_of(kernel, Target("gfx950"))
    cache = RebuiltCache(tmp_path)
    key = "0" * 64
    cache.put(key, kernel)
    assert cache.get(key) is None  # it is not what its name says


def test_a_kernel_that_does_not_fit_is_shipped_for_autotuners(
    workers: Workers, capture: Capture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Target, "lds_bytes", -1)
    (warning,) = _rebuilt(workers, capture).warnings
    assert warning.startswith("scale: Triton compiles it, and does not launch it: kernel 'scale' needs 0 bytes of LDS")
