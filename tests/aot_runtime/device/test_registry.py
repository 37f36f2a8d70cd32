"""Devices by name, and streams as callers name them, over the double of libamdhip64."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from aot_runtime import ArgumentError, DeviceError, get_device
from tests.support.hip_double.double import in_double


@in_double(HIP_DOUBLE_DEVICES=2)
def test_devices_are_found_by_name():
    first = get_device("hip:0")
    assert get_device("hip") is first is get_device() is get_device(None, arch="gfx942") is get_device(first)
    assert (repr(first), repr(get_device("hip:1"))) == ("hip:0", "hip:1")
    assert first.arch == "gfx942" and first.properties.num_cus == 304
    for name, words in (
        ("hip:2", "there is no device hip:2; hip shows 2 device"),
        ("hip:-1", "'hip:-1' is not a device; write hip, hip:0"),
        ("hip:x", "'hip:x' is not a device"),
        ("hip:²", "'hip:²' is not a device"),
        ("rocm:0", "there is no driver named 'rocm'"),
        ("", "there is no driver named ''"),
    ):
        with pytest.raises(DeviceError) as raised:
            get_device(name)
        assert words in str(raised.value)
    with pytest.raises(DeviceError, match="no driver runs code for 'riscv'"):
        get_device(None, arch="riscv")


@in_double(HIP_DOUBLE_DEVICES=2)
def test_streams_as_callers_name_them():
    device, other = get_device("hip:0"), get_device("hip:1")
    stream, torch, cupy = device.stream(), SimpleNamespace(cuda_stream=12345), SimpleNamespace(ptr=678)
    handles = [device.handle(value) for value in (None, 0, 77, torch, cupy, stream)]
    assert handles == [0, 0, 77, 12345, 678, stream.handle]
    assert device.handle(SimpleNamespace(__cuda_stream__=lambda: (0, 91))) == 91
    assert stream.__cuda_stream__() == (0, stream.handle)
    with pytest.raises(ArgumentError, match="the stream belongs to hip:1, the arrays are on hip:0"):
        device.handle(other.stream())
    for junk in ("0", 1.0, True, object(), [stream], type(stream)):
        with pytest.raises(ArgumentError, match=f"stream is {type(junk).__name__}; a Stream, a stream of torch or "):
            device.handle(junk)
