"""Calls that reach the double of libamdhip64: kernargs, grids, streams, workspaces, graphs, and releases."""

from __future__ import annotations

import gc
import struct
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import ArgumentError, CaptureError
from aot_runtime.call.launches import kernarg_image
from tests.support.contracts import decide, layout, normal, planner
from tests.support.hip_double.double import Double, in_double
from tests.support.reference_launches import ReferenceLaunches, open_over_double


def test_kernarg_image():
    """The image has the values of kernargs in their places, and 0 for addresses and for what changes from call to
    call."""
    planned = planner(
        "x: int8[rows, cols]; scale: fp32 = 0.5; shift: i16 = -2; on: flag = True",
        "x: *int8; rows: i32; scale: fp32; shift: i16; on: i1; big: u64 = cols * 4294967296; half: fp64 = cols / 2; "
        "end: u8 = 3",
        wide_offsets=True,
    )
    launched = decide(planned, x=layout(258, 5, dtype="int8")).launches[0]
    for free in ((), ("scale", "shift")):
        expected = struct.pack("<8xifhB5xQdB", 258, 0 if free else 0.5, 0 if free else -2, True, 5 << 32, 2.5, 3)
        assert kernarg_image(planned.op, launched.variant, launched.values, frozenset(free)) == expected
    narrow = planner("x: int8[rows, cols]", "product: i32 = rows * cols; rows: i32", wide_offsets=True)
    launched = decide(narrow, x=layout(2**16, 2**15, dtype="int8")).launches[0]
    with pytest.raises(ArgumentError, match=r"op: rows \* cols is 2147483648; the kernel takes it as i32 \('product'"):
        kernarg_image(narrow.op, launched.variant, launched.values, frozenset())


@in_double()
def test_what_is_launched(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    x, bias = small.device.array(normal(6, 256)), small.device.array(normal(1, 256))
    out = small.affine(x, bias, scale=0.5, shift=-3, mode="negated")
    found = launches.last
    assert found.variant.aligned and found.variant.axis_values == {"T": "float32", "HAS_BIAS": True, "NEGATED": True}
    assert found.launch.grid == (6, 1, 1) and found.launch.block == (256, 1, 1) and found.launch.stream == 0
    kernargs = {name: value for name, value in found.values.items() if not name.startswith(".")}
    names = ("x", "bias", "out", "cols", "stride_x_rows", "stride_bias_rows", "stride_out_rows", "scale", "shift")
    assert kernargs == dict(zip(names, (x.ptr, bias.ptr, out.ptr, 256, 256, 0, 256, 0.5, -3), strict=True))
    small.affine(x[:, :99])  # by its columns the narrow config; not aligned, since its output is not
    found = launches.last
    assert found.launch.grid == (6, 2, 1) and found.launch.block == (64, 1, 1)
    assert not found.variant.aligned and found.values["stride_x_rows"] == 256
    assert abs(found.values["scale"] - 99**-0.5) < 1e-8 and found.values["shift"] == 0
    for view in (x[::-1], x[:, 1:17], x[::2, :128], x[:, 4:20]):
        out = small.affine(view, scale=3)
        np.testing.assert_array_equal(out.numpy(), view.numpy() * 3)
        assert launches.last.values["stride_x_rows"] == view.layout.strides[0]
        assert launches.last.variant.aligned == (view.ptr % 16 == 0 and view.layout.strides[0] > 0)


@in_double(only="no references are computed over it")
def test_the_record_itself_notices_a_wrong_launch(small_bundle: Path):
    """The references are no rubber stamp: a launch that differs from the index in one byte fails."""
    small, launches = open_over_double(small_bundle)
    small.affine(small.device.array(normal(3, 5)), scale=2.0)
    good, record = launches.last.launch, ReferenceLaunches(small.path, Double())
    record(good)
    changes: list[dict[str, Any]] = [{"block": (128, 1, 1)}, {"grid": (3, 2, 1)}, {"lds_bytes": 16}, {"kernel": "f"}]
    changes += [{"kernargs": bytes} for bytes in (good.kernargs[:-1], good.kernargs + b"\0", good.kernargs[:-1] + b"1")]
    for change in (*changes, {"image": good.image[:-1] + b"\1"}):
        with pytest.raises((AssertionError, KeyError)):
            record(replace(good, **change))


@in_double()
def test_memory_waits_for_every_stream_that_used_it(small_bundle: Path):
    """Arrays, outputs and views of both, used on streams, however they are named, that are dropped before them."""
    small, launches = open_over_double(small_bundle)
    device, double = small.device, launches.double
    x = device.array(normal(600, 600))
    events = double.alive("event")
    streams = [device.stream() for _ in range(3)]
    handles = [stream.handle for stream in streams]
    torch = SimpleNamespace(cuda_stream=handles[2])
    outs = [small.affine(x[1:], stream=stream) for stream in (streams[0], handles[1], torch)]
    assert [item.launch.stream for item in launches.launches] == [out.owner.stream for out in outs] == handles
    small.affine(outs[0], stream=streams[1], out=outs[2])
    del streams
    gc.collect()
    assert double.alive("stream") == 3
    waits = double.calls("hipStreamWaitEvent")
    del x
    assert double.calls("hipStreamWaitEvent") == waits + 3
    outs.clear()
    gc.collect()
    device.memory.trim()
    assert (double.alive("stream"), double.alive("event"), double.allocated()) == (0, events, 0)


@in_double()
def test_several_launches_share_a_zeroed_workspace(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    x, double = small.device.array(normal(4, 200)), launches.double
    small.device.memory.trim()
    before = double.allocated()
    for turn in range(3):  # the workspace is a kept block: it must be zeroed each time
        out = small.row_sums(x, offset=turn)
        np.testing.assert_allclose(out.numpy(), normal(4, 200).sum(axis=1) + turn, rtol=1e-4)
    assert [item.launch.kernel for item in launches.launches] == ["partial_sums", "add_partial"] * 3
    first, second = launches.launches[-2:]
    assert first.values["partial"] == second.values["partial"] not in (0, x.ptr, out.ptr)
    assert first.launch.grid == (4, 4, 1) and second.launch.grid == (4, 1, 1)
    del out
    gc.collect()
    small.device.memory.trim()
    assert double.allocated() == before


@in_double(HIP_DOUBLE_DEVICES=2)
def test_launches_go_to_the_bundles_device(small_bundle: Path):
    """Launches go there, whichever device is current in the thread."""
    first, _ = open_over_double(small_bundle)
    second, launches = open_over_double(small_bundle, "hip:1")
    x, y = first.device.array(normal(3, 5)), second.device.array(normal(3, 5))
    for _ in range(2):
        a, b = first.affine(x, scale=2), second.affine(y, scale=3)
        assert [item.launch.device for item in launches.launches[-2:]] == [0, 1]
        assert (a.device, b.device) == (first.device, second.device)
        np.testing.assert_allclose(a.numpy() * 3, b.numpy() * 2, rtol=1e-6)
    second.row_sums(y, stream=second.device.stream())
    assert launches.last.launch.device == 1
    np.testing.assert_allclose(second.affine(normal(2, 2), scale=1), normal(2, 2))
    assert launches.double.alive("module") == 1 + 3


@in_double()
def test_a_captured_sequence_is_replayed(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    device, double = small.device, launches.double
    stream = device.stream()
    x, y = device.array(normal(4, 200)), device.empty((4, 200), "float32")
    total = device.empty(4, "float32")
    small.affine(x, scale=1.0, out=y)  # one plan is known, the other is made during the capture, and its code loaded
    total.fill(0xFF)
    count, memory = launches.count, double.alive("memory")
    with device.capture(stream) as graph:
        small.affine(x, scale=3.0, out=y, stream=stream)
        small.row_sums(y, total=total, offset=5, stream=stream)
    assert launches.count == count + 3 and np.isnan(total.numpy()).all(), "recorded, not run"
    assert double.alive("memory") == memory + 1, "the graph's workspace"
    for seed in (1, 2, 3):
        fresh = np.random.default_rng(seed).standard_normal((4, 200)).astype(np.float32)
        x.copy_from(fresh)
        graph.launch(stream)
        np.testing.assert_allclose(total.numpy(), 3 * fresh.sum(axis=1) + 5, rtol=1e-3, atol=1e-3)
    small.affine(x, scale=7.0, out=y)  # the same plan, outside: the graph keeps its own arguments
    graph.launch()
    np.testing.assert_allclose(total.numpy(), 3 * fresh.sum(axis=1) + 5, rtol=1e-3, atol=1e-3)
    del graph
    gc.collect()
    assert double.alive("memory") == memory and double.alive("executable") == 0


@in_double()
def test_zeroed_outputs(small_bundle: Path):
    """Both allocated and given outputs are zeroed, also where nothing is launched, and in a graph each time."""
    small, _ = open_over_double(small_bundle)
    device, stream = small.device, small.device.stream()
    host = np.arange(-3, 90, dtype=np.int32) % 7
    x, expected = device.array(host), np.bincount(host)[:5]
    counts, others = (device.array(np.full(size, 9, np.int32)) for size in (5, ()))
    both = {"counts": counts, "others": others}
    for _ in range(2):
        for result in (small.histogram(x, bins=5), small.histogram(x, bins=5, **both), small.histogram(host, bins=5)):
            np.testing.assert_array_equal(np.asarray(result.counts), expected)
            assert np.asarray(result.others) == np.count_nonzero(host > 4)
    with device.capture(stream) as graph:
        small.histogram(x, bins=5, **both, stream=stream)
    graph.launch(stream), graph.launch(stream)
    np.testing.assert_array_equal(counts.numpy(stream), expected)
    small.histogram(x[:0], bins=5, **both)
    assert not counts.numpy().any() and not others.numpy()
    with pytest.raises(ArgumentError, match=r"'counts' has strides \[2\] for shape \[5\]; it is zeroed before the la"):
        small.histogram(x, bins=5, counts=device.empty(10, np.int32)[::2], others=others)


@in_double()
def test_scalars_of_16_bits(small_bundle: Path):
    """Such scalars are arguments or part of a plan; an op without tensors gives what is on the device."""
    small, launches = open_over_double(small_bundle)
    for start, step in ((0.1, 0.3), (-7, 0.1), (0.1, 0.2)):
        out = small.ramp(n=40, start=start, step=step)
        assert launches.last.values["start"] == int(np.array(start, ml_dtypes.bfloat16).view(np.uint16))
        assert launches.last.values["step"] == np.float16(step) and out.shape == (40,)
    with pytest.raises(ArgumentError, match=r"a scalar \(start\) does not fit its type: 1e\+39 is too large for a bfl"):
        small.ramp(n=40, start=1e39)
    with pytest.raises(ArgumentError, match=r"step is 65520.0; the kernel takes it as fp16 \('step'\)"):
        small.ramp(n=40, step=65520)


@in_double()
def test_outputs_must_be_given_to_a_captured_call(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    device, double = small.device, launches.double
    stream = device.stream()
    x, total = device.array(normal(3, 200)), device.empty(3, "float32")
    for _ in range(2):  # with new plans, and with known ones
        count = launches.count
        with device.capture(stream) as graph:
            alive = double.alive("memory")
            for call in (
                lambda: small.affine(x, scale=1.0, stream=stream),
                lambda: small.row_sums(x, stream=stream),
                lambda: small.row_sums(x, total=total, return_largest=True, stream=stream),
            ):
                with pytest.raises(CaptureError, match="pass out="):
                    call()
            for on_host, call in (
                ("x", lambda: small.affine(normal(3, 200), out=x, stream=stream)),
                ("out", lambda: small.affine(x, out=normal(3, 200), stream=stream)),
            ):
                with pytest.raises(CaptureError, match=f"affine: argument '{on_host}' is in host memory, which cannot"):
                    call()
            assert double.alive("memory") == alive
        graph.launch()  # of nothing
        assert launches.count == count
        small.affine(x, scale=1.0), small.row_sums(x), small.row_sums(x, total=total, return_largest=True)


@in_double()
def test_a_repeated_call_is_few_python_frames(small_bundle: Path):
    small, _ = open_over_double(small_bundle)
    x = small.device.array(np.ones((3, 5), np.float32))
    small.affine(x, scale=2.0, out=small.device.empty(x.shape, x.dtype))
    out, frames = small.device.empty(x.shape, x.dtype), []
    sys.setprofile(lambda frame, event, _: frames.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        small.affine(x, scale=2.0, out=out)
    finally:
        sys.setprofile(None)
    own = frames[: frames.index("Double.on_launch.<locals>.launched")]  # then the double computes the kernel's result
    assert 0 < len(own) <= 6, own
