"""Capture files are untrusted: faults are reported with their lines, and code in them runs in a confined worker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot.capture.environments import own_environment
from aot.capture.rebuilt import RebuildJob, rebuild_job
from aot.capture.workers import Workers
from aot.errors import CompileError
from aot.forked_process import TimeLimitError, WorkerDiedError
from aot.targets import Target
from aot_capture.records import Capture, CaptureError, read_capture

from .conftest import Built

KERNEL, FUNCTION = "kernel", "function"
Change = Callable[[dict[str, Any]], object]
MALFORMED: dict[str, tuple[str, Change, str]] = {
    "an unknown kind": (KERNEL, lambda it: it.update(kind="shell"), "unknown kind of record 'shell'"),
    "an unknown field": (KERNEL, lambda it: it.update(run="x"), "unknown field 'run'"),
    "a path as a hash": (KERNEL, lambda it: it.update(hash="../../x"), "'hash' is not a SHA-256"),
    "a list as a name": (KERNEL, lambda it: it.update(name=["x"]), "'name' is not of type str"),
    "a target of texts": (KERNEL, lambda it: it.update(target=["hip", "gfx942", "64"]), "'target' is not"),
    "constants without paths": (KERNEL, lambda it: it.update(constants=[3]), "'constants' are not pairs"),
    "a key of three parts": (KERNEL, lambda it: it["key"].pop(), "'key' has 3 parts"),
    "deep nesting": (KERNEL, lambda it: it.update(tensordesc=_nested(150)), "nested more than 100 deep"),
    "a function of another file": (KERNEL, lambda it: it.update(function="os:system:1:0"), "refers to the function"),
}


def _nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = {"tuple": [value]}
    return value


@pytest.mark.parametrize("fault", MALFORMED)
def test_malformed_records_are_told_with_their_line(fault: str, on_amd: Built, tmp_path: Path):
    kind, change, message = MALFORMED[fault]
    records = on_amd.records()
    line = next(number for number, record in enumerate(records) if record["kind"] == kind)
    change(records[line])
    file = tmp_path / "kernels.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(CaptureError, match=message) as raised:
        read_capture(file)
    assert str(raised.value).startswith(f"{file}:{line + 1}:" if "refers" not in message else f"{file}:")


def test_a_number_without_end_is_refused(on_amd: Built, tmp_path: Path):
    file = tmp_path / "kernels.jsonl"
    file.write_text(on_amd.file.read_text().replace('"kind": "kernel"', f'"kind": "kernel", "x": {"9" * 5000}', 1))
    with pytest.raises(CaptureError, match=r"kernels\.jsonl:\d+: not JSON"):
        read_capture(file)


# What a worker refuses, a kernel at a time


@pytest.fixture(scope="module")
def capture(on_amd: Built) -> Capture:
    return read_capture(on_amd.file)


def _job(capture: Capture, **values: Any) -> RebuildJob:
    kernel = next(kernel for kernel in capture.kernels if kernel.name == "scale")
    return rebuild_job(replace(kernel, **values), Target("gfx942"), capture, {}, "")


def _workers(capture: Capture, limit_s: float = 60, **function: Any) -> Workers:
    """A worker for a capture whose kernel `scale` has another function record."""
    functions = {name: dict(vars(record)) for name, record in capture.functions.items()}
    name = next(name for name, record in capture.functions.items() if record.name == "scale")
    functions[name] |= function
    session = {
        "kind": "session", "functions": functions, "aggregates": {}, "stated_key": None, "root": "/triton",
        "binary_only": True,
    }  # fmt: skip
    return Workers(own_environment(), session, 1, limit_s)


def _evil(capture: Capture, code: str) -> dict[str, Any]:
    """A function record whose source runs code when the function is defined: as its default argument."""
    source = next(record.source for record in capture.functions.values() if record.name == "scale")
    assert source is not None
    changed = source.replace("BLOCK: tl.constexpr", f"BLOCK: tl.constexpr = {code}")
    assert changed != source
    return {"source": changed}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ({"source": "import os\ndef scale(): pass"}, "is not the definition of this function alone"),
        ({"source": "@print\ndef scale(): pass"}, "is not the definition of this function alone"),
        ({"name": "other"}, "is not the definition of this function alone"),
        ({"type": "shell"}, "no functions of type 'shell'"),
        ({"source": None}, "--no-source"),
    ],
)
def test_a_function_that_is_no_plain_definition_is_refused(function: dict[str, Any], message: str, capture: Capture):
    with _workers(capture, **function) as workers, pytest.raises(CompileError, match=message):
        workers.rebuild(_job(capture))


@pytest.fixture(scope="module")
def workers(capture: Capture) -> Iterator[Workers]:
    with _workers(capture) as workers:
        yield workers


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ({"environment": {"LLVM_PASS_PLUGIN_PATH": "/tmp/x.so"}}, "the file is not in the capture"),
        ({"environment": {"LD_PRELOAD": "x.so"}}, "LD_PRELOAD is not a variable that changes code"),
        ({"constants": [[[3], {"import": ["os", "system"]}]]}, "neither Triton's nor math's"),
        ({"constants": [[[3], {"import": ["triton.runtime.build", "subprocess"]}]]}, "belongs to subprocess"),
        ({"constants": [[[3], {"__class__": "x"}]]}, "unknown tag '__class__'"),
        ({"constants": [[[3], {"opaque": ["torch.Size", "x"]}]]}, "cannot be made without the program"),
        ({"options": {"ir_override": "/etc/passwd"}}, "ir_override"),
        ({"options": {"extern_libs": {"tuple": [{"tuple": ["x", "/tmp/x.bc"]}]}}}, "library of the program's own"),
        ({"constants": [[[3], 1 << 40]]}, "."),
    ],
)
def test_what_a_kernel_must_not_need_is_refused(
    kernel: dict[str, Any], message: str, workers: Workers, capture: Capture
):
    with pytest.raises(CompileError, match=message):
        workers.rebuild(_job(capture, **kernel))


@pytest.mark.parametrize("code", ["__import__('os').getpid()", "open('/etc/passwd')", "exec('1')"])
def test_a_definition_cannot_reach_for_files_and_modules(code: str, capture: Capture):
    with _workers(capture, **_evil(capture, code)) as workers, pytest.raises(CompileError, match=r"Import|NameError"):
        workers.rebuild(_job(capture))


def test_a_worker_that_hangs_or_dies_fails_its_job_alone(capture: Capture):
    forever = _evil(capture, "[x for x in iter(int, 1)]")
    with _workers(capture, 2, **forever) as workers, pytest.raises(TimeLimitError, match="timed out after 2 s"):
        workers.rebuild(_job(capture))
    crash = _evil(capture, "__build_class__.__self__.__dict__['__import__']('os').abort()")
    with _workers(capture, **crash) as workers:
        with pytest.raises(WorkerDiedError, match="was killed by SIGABRT"):
            workers.rebuild(_job(capture))
        assert workers.ask({"kind": "describe", "targets": []})["triton"]


def test_an_interrupted_build_leaves_no_process(capture: Capture):
    with pytest.raises(KeyboardInterrupt), _workers(capture, **_evil(capture, "[x for x in iter(int, 1)]")) as workers:
        future = workers.executor.submit(workers.rebuild, _job(capture))
        while not workers._all:
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert not any(worker.is_alive for worker in workers._all)
    assert isinstance(future.exception(), WorkerDiedError)
