"""Devices by name, and streams as callers name them, over the double of libamdhip64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aot_runtime import ArgumentError, DeviceError, get_device, open_bundle
from tests.support.hip_double.double import in_double


@in_double(HIP_DOUBLE_DEVICES=2)
def test_devices_are_found_by_name():
    first = get_device("hip:0")
    assert get_device("hip") is first is get_device() is get_device(None, arch="gfx942") is get_device(first)
    assert (repr(first), repr(get_device("hip:1"))) == ("hip:0", "hip:1")
    assert first.arch == "gfx942" and first.properties.num_cus == 304
    for name, words in (
        ("hip:2", "device hip:2 does not exist; hip has 2 device"),
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


class Odd:
    """A stream whose library gives something odd as its handle."""

    def __init__(self, said: object):
        self.said = said

    def __cuda_stream__(self) -> Any:
        """Return the handle, or raise it."""
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


@in_double()
def test_odd_streams(small_bundle: Path):
    device, small = get_device("hip:0"), open_bundle(small_bundle, "hip:0")
    x = device.array(np.ones((3, 5), np.float32))
    small.affine(x)  # a plan is known
    uses: tuple[Callable[[Any], object], ...] = (
        lambda odd: small.affine(x, stream=odd), lambda odd: small.affine(x[1:], stream=odd), x.numpy,
        lambda odd: device.empty(3, "int8", stream=odd), device.synchronize, device.event,
        lambda odd: device.capture(odd).__enter__(),
    )  # fmt: skip
    for odd in (
        1 << 64, -1, True, "0", Odd(5), Odd(()), Odd((0, 1, 2)), Odd((0, "7")), Odd((0, True)), Odd((0, -1)),
        Odd((0, 1 << 64)), Odd(None), Odd(RuntimeError("gone")), SimpleNamespace(cuda_stream=None),
        SimpleNamespace(ptr=1 << 70),
    ):  # fmt: skip
        for use in uses:
            with pytest.raises(ArgumentError, match="stream is ") as raised:
                use(odd)
            assert "scalar" not in str(raised.value)
    for odd in (1 << 64, -2, "0", Odd(5)):
        with pytest.raises(ArgumentError, match="stream is "):
            x.__dlpack__(stream=odd)
