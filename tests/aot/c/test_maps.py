"""Tensor maps in the C interface, over the double of libcuda."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aot_runtime import open_bundle
from aot_runtime.bundle.reading import read_index
from tests.support.c_interface import calling
from tests.support.c_interface.calling import OpenedInC, RefusedError, Tensor, compile_library, tensor
from tests.support.cuda_double.double import CudaDouble, in_cuda_double


def of(array: Any) -> Tensor:
    return tensor(array.ptr, array.layout.dtype, array.shape, array.layout.strides)


@pytest.mark.slow
@pytest.mark.parametrize("language", calling.LANGUAGES)
def test_the_source_compiles(maps_bundle: Path, tmp_path: Path, language: str):
    compile_library(tmp_path, maps_bundle / "src/gluon.c", language=language)


@pytest.mark.slow
@in_cuda_double
def test_the_same_kernargs_as_in_python(maps_bundle: Path, tmp_path: Path):
    bundle, double = open_bundle(maps_bundle, "cuda"), CudaDouble()
    c = OpenedInC(compile_library(tmp_path, maps_bundle / "src/gluon.c"), read_index(maps_bundle), maps_bundle)
    empty = bundle.device.empty
    for x in (empty((1000, 200), "float16", order=(1, 0)), empty((64, 64), "float16", order=(1, 0)),
              empty((64, 9), "float16", order=(1, 0))[:, ::9]):  # fmt: skip
        out = empty(x.shape[::-1], "float16")
        if x.shape[0] % 16:
            x, out = (empty((1008, 200), "float16", order=(1, 0))[:1000], empty((200, 1008), "float16")[:, :1000])
        bundle.scale_columns(x, factor=0.25, out=out)
        c.request(calling.CALL, "scale_columns", {"x": of(x), "out": of(out)}, {"factor": 0.25})
        ours, theirs = double.launches()[-2:]
        assert ours == theirs
    for wrong in (empty((72, 64), "float16", order=(1, 0))[4:68], empty((64, 64), "float16", order=(1, 0))[:, ::-1]):
        out = empty(wrong.shape[::-1], "float16")
        with pytest.raises(RefusedError, match="no variant of this bundle fits the call"):
            c.request(calling.CALL, "scale_columns", {"x": of(wrong), "out": of(out)}, {"factor": 0.25})
    assert double.encoded == 12 and len(double.launches()) == 6
    c.close()
