"""Scratch memory that compiled code asks for, over the double of libcuda."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import pytest

from aot_runtime import open_bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.records import GLOBAL_SCRATCH
from tests.support.cuda_double.double import CudaDouble, in_cuda_double
from tests.support.session_builds import build_once


@pytest.fixture(scope="session")
def scratch_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An op of a Gluon kernel for sm_90 that makes tensor maps in scratch memory. Read only."""
    folder = build_once(tmp_path_factory, "tests/support/gluon/manifest.yaml", "op=scale,dtype=float16", "sm_90")
    return folder / "gluon-sm_90"


@pytest.mark.slow
@in_cuda_double
def test_launches_that_may_run_at_once_share_none(scratch_bundle: Path):
    (variant,) = read_index(scratch_bundle).variants
    assert variant.global_scratch.bytes == 256 and variant.global_scratch.alignment == 128
    (at,) = (arg.offset for arg in variant.kernargs if arg.name == GLOBAL_SCRATCH)
    bundle, double = open_bundle(scratch_bundle, "cuda"), CudaDouble()
    x, out = (bundle.device.empty((640, 64), "float16") for _ in range(2))
    streams = [bundle.device.stream() for _ in range(4)]
    for _ in range(2):
        for stream in streams:
            bundle.scale(x, factor=2.0, out=out, stream=stream)
    found = [struct.unpack_from("<Q", launch.kernargs, at)[0] for launch in double.launches()]
    assert [launch.stream for launch in double.launches()] == 2 * [stream.handle for stream in streams]
    assert all(address and address % 128 == 0 for address in found)
    ends = sorted(found[:4])
    assert all(second - first >= 10 * 256 for first, second in pairwise(ends)), "10 programs each"
    assert found[4:] == found[:4], "on one stream they run one after the other"
