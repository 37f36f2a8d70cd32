"""Differences of captured kernels that no launch without a GPU can bring about."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from aot_capture.differences import kernel_differences, nearest
from aot_capture.installation import differences
from aot_capture.records import Kernel
from tests.aot_capture.conftest import Captured

PTXAS = "ptxas: NVIDIA (R) Ptx optimizing assembler\nCuda compilation tools, release 12.8, V12.8.93\nBuild x-90"
LIBRARIES = {"extern_libs": {"tuple": [{"tuple": ["ocml", "/a/ocml.bc"]}]}}


def changed(kernel: Kernel, part: int, text: str, **fields: Any) -> Kernel:
    key = [*kernel.key[:part], text, *kernel.key[part + 1 :]]
    return dataclasses.replace(kernel, key=key, **fields)


@pytest.fixture
def kernel(captured: Captured) -> Kernel:
    return next(kernel for kernel in captured.capture.kernels if kernel.name == "scale")


def told(was: Kernel, now: Kernel, captured: Captured) -> list[str]:
    functions = captured.capture.functions
    return list(kernel_differences(was, functions, now, functions))


def test_equal_kernels_have_none(captured: Captured, kernel: Kernel):
    assert told(kernel, kernel, captured) == []


def test_another_ptxas(captured: Captured, kernel: Kernel):
    one, other = (changed(kernel, 1, text) for text in (PTXAS, PTXAS.replace("V12.8.93", "V13.0.48")))
    assert told(one, other, captured) == ["ptxas: captured V12.8.93, now V13.0.48"]


def test_another_compiler(captured: Captured, kernel: Kernel):
    assert told(kernel, changed(kernel, 1, "other"), captured)[0].startswith("compiler backend: captured GPUTarget")


def test_another_path_of_libraries_where_it_is_hashed(captured: Captured, kernel: Kernel):
    """Triton before 3.9 hashes it for AMD GPUs, and later versions hash the contents."""
    one = dataclasses.replace(kernel, options={**kernel.options, **LIBRARIES})
    moved = {"extern_libs": {"tuple": [{"tuple": ["ocml", "/b/ocml.bc"]}]}}
    other = dataclasses.replace(one, options={**one.options, **moved})
    assert told(one, other, captured) == []
    (text,) = told(one, changed(other, 2, "another hash"), captured)
    assert text == "extern_libs: captured (('ocml', '/a/ocml.bc')), now (('ocml', '/b/ocml.bc'))"


def test_the_nearest_is_the_one_with_fewest_differences(captured: Captured, kernel: Kernel):
    far = dataclasses.replace(kernel, options={**kernel.options, "num_warps": 8, "num_stages": 7})
    near = dataclasses.replace(kernel, options={**kernel.options, "num_warps": 2})
    capture = dataclasses.replace(captured.capture, kernels=[far, near])
    found, texts, count = nearest(kernel, captured.capture.functions, capture)
    assert (found, texts, count) == (near, ["num_warps: captured 2, now 4"], 2)


def test_a_changed_function_is_never_without_a_difference(captured: Captured, kernel: Kernel):
    functions = captured.capture.functions
    changed = {**functions, kernel.function: dataclasses.replace(functions[kernel.function], key="other")}
    (text,) = kernel_differences(kernel, functions, kernel, changed)
    assert text == "scale: something that it reads has changed"


def test_installations(captured: Captured):
    (here,) = captured.capture.installations
    assert differences(here, here) == []
    other = dataclasses.replace(here, triton="3.6.0", ptxas=PTXAS, environment={"TRITON_X": "1"})
    assert differences(other, here) == [
        f"Triton: captured 3.6.0, now {here.triton}",
        "TRITON_X: captured 1, now not set",
    ]
    newer = dataclasses.replace(other, ptxas=PTXAS.replace("12.8.93", "13.0.48"), environment={})
    assert "ptxas: captured V12.8.93, now V13.0.48" in differences(other, newer)
