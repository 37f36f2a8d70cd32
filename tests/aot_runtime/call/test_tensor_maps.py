"""Tensor maps from the call to the library: encoded values, caching, and calls without maps."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from aot_bundle.verification import verify_bundle
from aot_runtime import NoVariantError, open_bundle
from tests.support.cuda_double.double import CudaDouble, EncodedMap, encoded_map, in_cuda_double

FLOAT16, BY_128_BYTES, PROMOTED, NAN, ZERO = 6, 3, 2, 1, 0
ALL_ONES, UNMARKED = 2**64 - 1, 2**64 - 1 - 2**21


@in_cuda_double
def test_what_is_launched(maps_bundle: Path):
    """x is [cols, rows] with stride 1 along cols, and its map counts dims from there. One kernarg lies where its
    address is a multiple of 64, as hardware wants."""
    assert verify_bundle(maps_bundle) == []
    bundle, double = open_bundle(maps_bundle, "cuda"), CudaDouble()
    rows, cols = 200, 1000
    x = bundle.device.empty((1024, rows), "float16", order=(1, 0))[:cols]
    out = bundle.device.empty((rows, 1008), "float16")[:, :cols]
    bundle.scale_columns(x, factor=0.5, out=out)
    (launch,) = double.launches()
    assert (launch.kernel, launch.grid, launch.block) == ("scale_by_maps", (4, 1, 1), 256)
    maps = [encoded_map(launch.kernargs[at : at + 128]) for at in (48, 240)]
    numbers = (FLOAT16, BY_128_BYTES, PROMOTED)
    assert maps == [
        EncodedMap(*numbers, NAN, ALL_ONES, x.ptr, (cols, rows), (2 * 1024,), (64, 64)),
        EncodedMap(*numbers, ZERO, ALL_ONES, out.ptr, (cols, rows), (2 * 1008,), (64, 64)),
    ]
    segment = bytearray(416)
    for at, stride in ((48, 1024), (240, 1008)):
        segment[at : at + 128] = launch.kernargs[at : at + 128]
        struct.pack_into("<2i2q", segment, at + 128, rows, cols, stride, 1)
    struct.pack_into("<if", segment, 392, cols, 0.5)
    assert launch.kernargs == bytes(segment)
    explained = bundle.explain("scale_columns", x, factor=0.5, out=out)
    assert "48  x.map " in explained and "map of x, in boxes of [64, 64], swizzled by 128 bytes" in explained


@pytest.mark.slow
@in_cuda_double
def test_maps_are_kept(maps_bundle: Path):
    """Maps are kept by address, however many there are. The driver's mark on the map of a small tensor is cleared."""
    bundle, double = open_bundle(maps_bundle, "cuda"), CudaDouble()
    arrays = [bundle.device.empty((64, 64), "float16", order=(1, 0)) for _ in range(3)]
    out = bundle.device.empty((64, 64), "float16")
    for turn in range(4):
        for x in arrays:
            bundle.scale_columns(x, factor=float(turn), out=out)
    assert double.encoded == 4, "three inputs and the output"
    for i, launch in enumerate(double.launches()):
        x_map, out_map = (encoded_map(launch.kernargs[at : at + 128]) for at in (48, 240))
        assert (x_map.address, out_map.address) == (arrays[i % 3].ptr, out.ptr)
        assert x_map.word == UNMARKED
    bundle.scale_columns(bundle.device.empty((64, 64), "float16", order=(1, 0)), factor=1.0, out=out)
    assert double.encoded == 4 + 1, "the same layout at a new address"


@pytest.mark.slow
@in_cuda_double
def test_what_no_map_holds(maps_bundle: Path):
    """The call launches nothing, and its error says why. A dim with one element may have any stride. A newer driver
    marks all maps rightly."""
    double = CudaDouble()
    double.be_version(13020)
    bundle = open_bundle(maps_bundle, "cuda")
    x = bundle.device.empty((256, 64), "float16", order=(1, 0))
    for wrong, message in (
        (x[8:250][1:], "the address of 'x' is not a multiple of 16"),
        (x[:, ::-1], "bytes or has a negative stride"),
        (bundle.device.empty((68, 64), "float16", order=(1, 0)), "stride 68 of 'x' in dim 1 is not a multiple of"),
    ):
        with pytest.raises(NoVariantError) as raised:
            bundle.scale_columns(wrong, factor=1)
        assert message in str(raised.value), str(raised.value)
    assert double.launches() == []
    bundle.scale_columns(bundle.device.empty((64, 9), "float16", order=(1, 0))[:, ::9], factor=1)
    found = encoded_map(double.launches()[0].kernargs[48:176])
    assert (found.strides, found.word) == ((16,), ALL_ONES)
