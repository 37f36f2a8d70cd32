"""Calls of ops of real bundles over the double: plans, arrays in and out, streams, captures, memory, errors."""

from __future__ import annotations

import gc
import inspect
import traceback
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from aot_runtime import (
    ArgumentError,
    CaptureError,
    DeviceArray,
    DeviceMemoryError,
    DriverCallError,
    NoVariantError,
    get_device,
)
from aot_runtime.call.planner import Planner
from tests.support.hip_double.double import Double
from tests.support.reference_launches import ReferenceLaunches, open_over_double, with_bundles


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def affine(x: np.ndarray, scale: float, shift: int = 0) -> np.ndarray:
    return (x * np.float32(scale) + shift).astype(x.dtype)


@contextmanager
def planning(expected: int):
    """Count how often a planner is asked."""
    count = 0
    original = Planner.decide

    def decide(self: Planner, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        return original(self, *arguments)

    Planner.decide = decide
    try:
        yield
    finally:
        Planner.decide = original
    assert count == expected


# Arrays in and out.


@with_bundles()
def test_numpy_in_numpy_out(folder: str):
    small, launches = open_over_double(folder)
    x = normal(3, 5)
    out = small.affine(x)
    assert type(out) is np.ndarray and out.dtype == np.float32
    np.testing.assert_allclose(out, affine(x, 5**-0.5), rtol=1e-6)
    strided = normal(6, 10)[::2, ::2]
    np.testing.assert_allclose(small.affine(strided, scale=2.0), strided * 2, rtol=1e-6)
    np.testing.assert_allclose(small.affine(normal(5, 3).T, scale=2.0), normal(5, 3).T * 2, rtol=1e-6)
    assert launches.count == 3


@with_bundles()
def test_device_in_device_out(folder: str):
    small, launches = open_over_double(folder)
    x = small.device.array(normal(3, 5))
    before = launches.double.calls("hipStreamSynchronize")
    out = small.affine(x, scale=3)
    assert type(out) is DeviceArray and out.device is small.device
    assert launches.double.calls("hipStreamSynchronize") == before
    np.testing.assert_allclose(out.numpy(), normal(3, 5) * 3, rtol=1e-6)


@with_bundles()
def test_any_device_array_makes_the_outputs_device_arrays(folder: str):
    small, _ = open_over_double(folder)
    x, bias = normal(3, 5), normal(1, 5)
    expected = x + bias
    for a, b in ((small.device.array(x), bias), (x, small.device.array(bias))):
        out = small.affine(a, b, scale=1)
        assert type(out) is DeviceArray
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(small.affine(x, bias=bias, scale=1), expected, rtol=1e-6)


@with_bundles()
def test_foreign_arrays(folder: str):
    small, _ = open_over_double(folder)
    x = small.device.array(normal(3, 32))

    class Foreign:
        """What torch's tensors are: DLPack, and a `layout` of their own."""

        layout = "strided"

        def __dlpack_device__(self) -> tuple[int, int]:
            return x.__dlpack_device__()

        def __dlpack__(self, stream: Any = None) -> Any:
            return x.__dlpack__(stream=stream)

    out = small.affine(Foreign(), scale=2)
    np.testing.assert_allclose(out.numpy(), normal(3, 32) * 2, rtol=1e-6)
    into = small.device.empty((3, 32), "float32")
    x, source = into, x
    small.affine(source, out=Foreign(), scale=2)
    np.testing.assert_allclose(into.numpy(), normal(3, 32) * 2, rtol=1e-6)


@with_bundles()
def test_out(folder: str):
    small, launches = open_over_double(folder)
    x = normal(3, 5)
    host = np.full((3, 10), np.nan, np.float32)[:, ::2]
    assert small.affine(x, out=host, scale=2) is host
    np.testing.assert_allclose(host, x * 2, rtol=1e-6)
    device_x, given = small.device.array(x), small.device.empty((3, 64), "float32")[:, :5]
    assert small.affine(device_x, out=given, scale=2) is given
    np.testing.assert_allclose(given.numpy(), x * 2, rtol=1e-6)
    assert launches.last.values["stride_out_rows"] == 64
    mixed = np.empty((3, 5), np.float32)
    assert small.affine(device_x, out=mixed, scale=4) is mixed
    np.testing.assert_allclose(mixed, x * 4, rtol=1e-6)
    into = small.device.empty((3, 5), "float32")
    assert small.affine(x, out=into, scale=2) is into
    np.testing.assert_allclose(into.numpy(), x * 2, rtol=1e-6)
    read_only = np.empty((3, 5), np.float32)
    read_only.flags.writeable = False
    count = launches.count
    with pytest.raises(ArgumentError, match="affine: argument 'out' is written to, but is read-only"):
        small.affine(x, out=read_only)
    assert launches.count == count


@with_bundles()
def test_a_single_output_is_also_called_out(folder: str):
    """`row_sums` has two outputs, so only their own names are taken."""
    small, _ = open_over_double(folder)
    x, total = small.device.array(normal(3, 5)), small.device.empty(3, "float32")
    assert small.row_sums(x, total=total) is total
    with pytest.raises(TypeError, match="out"):
        small.row_sums(x, out=total)
    assert "out" in inspect.signature(small.affine).parameters


@with_bundles()
def test_several_outputs_are_a_named_tuple(folder: str):
    small, launches = open_over_double(folder)
    x = normal(4, 100)
    alone = small.row_sums(x)
    assert type(alone) is np.ndarray
    for give in (lambda a: a, small.device.array):
        result = small.row_sums(give(x), return_largest=True)
        assert type(result).__name__ == "row_sums_result" and result._fields == ("total", "largest")
        total, largest = (v if isinstance(v, np.ndarray) else v.numpy() for v in result)
        np.testing.assert_allclose(total, x.sum(axis=1), rtol=1e-5)
        np.testing.assert_array_equal(largest, x.max(axis=1))
    host = np.empty(4, np.float32)
    result = small.row_sums(x, largest=host, return_largest=True)
    assert result.largest is host and (host == x.max(axis=1)).all()
    with pytest.raises(ArgumentError, match="argument 'largest' is given, but exists only when return_largest"):
        small.row_sums(x, largest=host)
    assert launches.count == 8


@with_bundles()
def test_a_tensor_updated_in_place(folder: str):
    small, _ = open_over_double(folder)
    x, state = normal(300), normal(300)
    expected = state + x
    device_state = small.device.array(state)
    assert small.accumulate(small.device.array(x), device_state) is None
    np.testing.assert_array_equal(device_state.numpy(), expected)
    small.accumulate(x, state=state)
    np.testing.assert_array_equal(state, expected)
    small.accumulate(x, device_state)
    np.testing.assert_array_equal(device_state.numpy(), expected + x)
    with pytest.raises(ArgumentError, match="'state' is written to, but is read-only"):
        small.accumulate(x, np.broadcast_to(np.float32(0), 300))


@with_bundles()
def test_solved_dims_and_empty_extents(folder: str):
    small, launches = open_over_double(folder)
    x, starts, factors = normal(7, 12), np.array([0, 2, 2, 7], np.int32), normal(3)
    out = small.scale_segments(x, starts, factors)
    np.testing.assert_allclose(out, x * np.repeat(factors, [2, 0, 5])[:, None], rtol=1e-6)
    assert launches.last.launch.grid == (3, 1, 1)
    nothing = small.scale_segments(x[:0], np.zeros(4, np.int32), factors)
    assert nothing.shape == (0, 12) and launches.count == 2
    with pytest.raises(ArgumentError, match=r"argument 'factors' has shape \[4\]: dim 0 \(batch\)|'starts'"):
        small.scale_segments(x, starts, normal(4))


# Kernargs, grids, variants.


@with_bundles()
def test_what_is_launched(folder: str):
    small, launches = open_over_double(folder)
    x, bias = small.device.array(normal(6, 256, dtype="float16")), small.device.array(normal(1, 256, dtype="float16"))
    out = small.affine(x, bias, scale=0.5, shift=-3, mode="negated")
    found = launches.last
    assert found.variant.aligned and found.variant.axis_values == {"T": "float16", "HAS_BIAS": True, "NEGATED": True}
    assert found.launch.grid == (6, 1, 1) and found.launch.block == (256, 1, 1) and found.launch.stream == 0
    kernargs = {name: value for name, value in found.values.items() if not name.startswith(".")}
    assert kernargs == {
        "x": x.ptr, "bias": bias.ptr, "out": out.ptr, "cols": 256, "stride_x_rows": 256, "stride_bias_rows": 0,
        "stride_out_rows": 256, "scale": 0.5, "shift": -3,
    }  # fmt: skip
    small.affine(x[:, :100])  # by its columns the narrow config; not aligned, since its output is not
    found = launches.last
    assert found.launch.grid == (6, 2, 1) and found.launch.block == (64, 1, 1)
    assert not found.variant.aligned and found.values["stride_x_rows"] == 256
    assert abs(found.values["scale"] - 0.1) < 1e-8 and found.values["shift"] == 0
    small.affine(x[::-1])
    assert not launches.last.variant.aligned and launches.last.values["stride_x_rows"] == -256
    small.affine(x[:, 1:17])
    assert not launches.last.variant.aligned


@with_bundles()
def test_general_and_aligned_give_the_same(folder: str):
    small, launches = open_over_double(folder)
    x = normal(5, 64)
    wide = small.device.array(np.zeros((10, 65), np.float32))
    results = []
    for view in (small.device.array(x), wide[:5, :64], wide[:5, 1:], wide[9:4:-1, 1:], wide[::2, :64]):
        view_host = np.array(view.numpy())
        for row in range(5):
            view[row].copy_from(x[row])
        results.append(small.affine(view, scale=3).numpy())
        assert view_host.shape == x.shape
    assert [item.variant.aligned for item in launches.launches] == [True, False, False, False, False]
    for result in results:
        np.testing.assert_array_equal(result, results[0])


@with_bundles()
def test_several_launches_share_a_zeroed_workspace(folder: str):
    small, launches = open_over_double(folder)
    x = small.device.array(normal(4, 200))
    double = launches.double
    small.device.memory.trim()
    before = double.allocated()
    for turn in range(3):  # the workspace is a kept block: it must be zeroed each time
        out = small.row_sums(x, offset=turn)
        np.testing.assert_allclose(out.numpy(), normal(4, 200).sum(axis=1) + turn, rtol=1e-4)
    assert [item.launch.kernel for item in launches.launches] == ["partial_sums", "add_partial"] * 3
    first, second = launches.launches[-2:]
    assert first.values["partial"] == second.values["partial"] != 0
    assert first.values["partial"] not in (x.ptr, out.ptr)
    assert first.launch.grid == (4, 4, 1) and second.launch.grid == (4, 1, 1)
    del out
    gc.collect()
    small.device.memory.trim()
    assert double.allocated() == before


# Plans.


@with_bundles()
def test_a_known_call_is_not_planned_again(folder: str):
    small, launches = open_over_double(folder)
    x, y = small.device.array(normal(3, 32)), small.device.array(normal(3, 32))
    with planning(1):
        for array in (x, y, x, y):
            out = small.affine(array, scale=2.0, shift=1)
    with planning(0):
        for scale, shift in ((3.0, -1), (np.float32(0.5), np.int64(2**31 - 1))):
            out = small.affine(x, scale=scale, shift=shift)
            np.testing.assert_allclose(out.numpy(), normal(3, 32) * scale + shift, rtol=1e-6)
            assert (launches.last.values["scale"], launches.last.values["shift"]) == (scale, shift)
        small.affine(normal(3, 32), scale=1.0, shift=0)  # the same layouts, from numpy
        small.affine(x, scale=1.0, shift=0, stream=small.device.stream())
    for planned in (
        lambda: small.affine(x),  # the default scale
        lambda: small.affine(x, mode="negated"),
        lambda: small.affine(x, scale=2.0, shift=1, out=y),
        lambda: small.affine(x[:2], scale=2.0, shift=1),
        lambda: small.affine(x[:, 1:], scale=2.0, shift=1),
        lambda: small.affine(x, small.device.array(normal(1, 32)), scale=2.0, shift=1),
    ):
        with planning(1):
            planned()
        with planning(0):
            planned()


@with_bundles()
def test_a_default_is_computed_for_its_own_shape(folder: str):
    small, launches = open_over_double(folder)
    for cols in (4, 16, 4, 16):
        small.affine(small.device.array(normal(2, cols)))
        assert launches.last.values["scale"] == cols**-0.5


@with_bundles()
def test_plans_have_a_limit(folder: str):
    from aot_runtime.call import op as op_module

    op_module.MAX_PLANS = 4
    small, _ = open_over_double(folder)
    for rows in (*range(1, 11), *range(1, 11)):
        np.testing.assert_allclose(small.affine(normal(rows, 3), scale=2), normal(rows, 3) * 2, rtol=1e-6)
    plans = inspect.getclosurevars(small.affine).globals["_plans"]
    assert 0 < len(plans) <= 4


# What is wrong with a call, and that nothing is launched then.


@with_bundles(HIP_DOUBLE_DEVICES=2)
def test_wrong_calls_launch_nothing(folder: str):
    small, launches = open_over_double(folder)
    device, other = small.device, get_device("hip:1")
    x, elsewhere = device.array(normal(3, 32)), other.array(normal(3, 32))
    host = normal(3, 32)

    class Foreign:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **_: Any) -> Any: ...

    calls: list[tuple[Any, str]] = [  # what the planner refuses has its texts in test_planner.py
        (lambda: small.affine(None), "affine: argument 'x' is missing"),
        (lambda: small.affine(x.reshape(3, 8, 4)), "argument 'x' has 3 dims"),
        (lambda: small.affine(host.astype("complex64")), "argument 'x': dtype complex64 is not supported"),
        (lambda: small.affine(host.astype(">f4")), "argument 'x': cannot copy >f4[3, 32]"),
        (lambda: small.affine(x, host.astype("float16")), "argument 'bias' is float16"),
        (lambda: small.affine(x, normal(2, 32)), "argument 'bias' has shape [2, 32]"),
        (lambda: small.affine(x.T), "argument 'x' has stride 32"),
        (lambda: small.affine(elsewhere), "argument 'x' is on hip:1, the bundle was opened for hip:0"),
        (lambda: small.affine(x, out=elsewhere), "argument 'out' is on hip:1, the bundle was"),
        (lambda: small.affine(Foreign()), "argument 'x': the array is on DLPack device (2, 0), not on hip:0"),
        (lambda: small.affine([[1.0]]), "argument 'x': list is no array"),
        (lambda: small.affine(x, 3.0), "argument 'bias': float is no array"),
        (lambda: small.affine(host[:0]), "rows is 0"),
        (lambda: small.affine(normal(1, 4097)), "cols is 4097"),
        (lambda: small.affine(x, out=host[:, :31]), "argument 'out' has shape [3, 31]"),
        (lambda: small.affine(x, scale=1j), "argument 'scale' is 1j"),
        (lambda: small.affine(x, scale=1e39), "scale"),
        (lambda: small.affine(x, shift=2**31), "argument 'shift' is 2147483648"),
        (lambda: small.affine(x, mode=["plain"]), "argument 'mode' is ['plain']"),
        (lambda: small.affine(x, stream="0"), "stream is str; a Stream, an integer handle or None is allowed"),
        (lambda: small.affine(x, stream=other.stream()), "the stream belongs to hip:1, the arrays are on hip:0"),
        (lambda: small.affine(host, stream=other.stream()), "the stream belongs to hip:1"),
        (lambda: small.row_sums(x, largest=x[:, 0]), "argument 'largest' is given"),
        (lambda: small.accumulate(x[0], None), "argument 'state' is missing"),
    ]
    for turn in range(2):  # a wrong call is as wrong once its like is known
        count = launches.count
        for call, words in calls:
            with pytest.raises(ArgumentError) as raised:
                call()
            text = str(raised.value)
            assert raised.value.__suppress_context__ or raised.value.__context__ is None
            assert words in text or (turn and "does not fit its type" in text), (words, text)
        assert launches.count == count
        small.affine(x, scale=1.0, shift=1), small.affine(x), small.row_sums(x), small.row_sums(x, offset=3)
    gc.collect()
    device.memory.trim()
    assert launches.double.allocated() == GRANULE_OF_X


GRANULE_OF_X = 512


@with_bundles()
def test_a_scalar_that_does_not_fit_a_known_plan_launches_nothing(folder: str):
    """`offset` is an argument of the second kernel alone: the first must not have run."""
    small, launches = open_over_double(folder)
    x = small.device.array(normal(3, 5))
    small.row_sums(x, offset=1)
    count = launches.count
    for offset in (2**31, -(2**31) - 1, 1.5, "1", None.__class__):
        with pytest.raises(ArgumentError, match=r"row_sums: a scalar \(offset\) does not fit its type"):
            small.row_sums(x, offset=offset)
    assert launches.count == count
    out = small.row_sums(x, offset=7)
    np.testing.assert_allclose(out.numpy(), normal(3, 5).sum(axis=1) + 7, rtol=1e-5)


@with_bundles()
def test_names_of_arguments_are_checked_by_python(folder: str):
    small, launches = open_over_double(folder)
    x = normal(3, 5)
    for call in (
        lambda: small.affine(),
        lambda: small.affine(x, x, x),
        lambda: small.affine(x, skale=1),
        lambda: small.affine(x, x=x),
    ):
        with pytest.raises(TypeError, match=r"affine\(\)"):
            call()
    assert launches.count == 0
    parameters = inspect.signature(small.affine).parameters
    assert list(parameters) == ["x", "bias", "out", "scale", "shift", "mode", "stream"]
    assert "scale: fp32, default cols ** (-0.5)." in small.affine.__doc__ or "scale: fp32" in small.affine.__doc__


@with_bundles()
def test_no_variant(folder: str):
    attention, launches = open_over_double(folder, "attention")
    good = [normal(1, 2, 8, 64, dtype="float16") for _ in range(3)]
    attention.flash_attention(*good)
    count = launches.count
    for shape, dtype in (((1, 2, 8, 128), "float16"), ((1, 2, 8, 64), "bfloat16")):
        import ml_dtypes

        wanted = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        with pytest.raises(NoVariantError) as raised:
            attention.flash_attention(*(normal(*shape).astype(wanted) for _ in range(3)))
        text = str(raised.value)
        assert "flash_attention: no variant of this bundle fits the call" in text
        assert f"T={dtype}, " in text and f"HEAD_DIM={shape[-1]}" in text
        assert "built: T: float16; " in text and " HEAD_DIM: 64;" in text
    with pytest.raises(ArgumentError, match="head_dim is 257; allowed: 1 to 256"):
        attention.flash_attention(*(normal(1, 2, 8, 257, dtype="float16") for _ in range(3)))
    with pytest.raises(ArgumentError, match="requires heads % heads_kv == 0; given: heads=3, heads_kv=2"):
        attention.flash_attention(normal(1, 3, 8, 64, dtype="float16"), *good[1:])
    assert launches.count == count


@with_bundles()
def test_failures_of_the_driver_are_passed_on(folder: str):
    small, launches = open_over_double(folder)
    double = launches.double
    x = small.device.array(normal(3, 5))
    small.affine(x)
    double.fail("hipModuleLaunchKernel", 719)
    with pytest.raises(DriverCallError) as raised:
        small.affine(x)
    assert (raised.value.call, raised.value.code) == ("hipModuleLaunchKernel", "hipErrorLaunchFailure")
    np.testing.assert_allclose(small.affine(x).numpy(), affine(normal(3, 5), 5**-0.5), rtol=1e-6)
    small.device.memory.trim()
    double.fail("hipMallocFromPoolAsync", 2, -1)
    with pytest.raises(DeviceMemoryError):
        small.affine(x)
    double.fail("hipMallocFromPoolAsync", 0, 0)
    small.affine(x)


# Streams.


@with_bundles()
def test_streams(folder: str):
    small, launches = open_over_double(folder)
    device = small.device
    stream = device.stream()

    class Torch:
        cuda_stream = stream.handle

    x = device.array(normal(3, 5))
    for given, handle in (
        (None, 0),
        (stream, stream.handle),
        (stream.handle, stream.handle),
        (Torch(), stream.handle),
        (0, 0),
    ):
        out = small.affine(x, stream=given)
        assert launches.last.launch.stream == handle
        assert out.owner.stream == handle
    host = small.affine(normal(3, 5), stream=stream)
    np.testing.assert_array_equal(host, out.numpy())
    assert launches.last.launch.stream == stream.handle
    small.row_sums(x, stream=stream)
    assert {item.launch.stream for item in launches.launches[-2:]} == {stream.handle}


@with_bundles()
def test_memory_waits_for_every_stream_that_used_it(folder: str):
    """Arrays, outputs and views of both, used on streams that are dropped before them."""
    small, launches = open_over_double(folder)
    device, double = small.device, launches.double
    x = device.array(normal(600, 600))
    streams = [device.stream() for _ in range(3)]
    outs = [small.affine(x[1:], stream=stream) for stream in streams]
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
    assert (double.alive("stream"), double.alive("event"), double.allocated()) == (0, 0, 0)


@with_bundles(HIP_DOUBLE_DEVICES=2)
def test_the_second_device(folder: str):
    """Launches go to the bundle's device, whatever is current in the thread."""
    first, launches = open_over_double(folder)
    second, launches = open_over_double(folder, device="hip:1")
    x, y = first.device.array(normal(3, 5)), second.device.array(normal(3, 5))
    for turn in range(2):
        a = first.affine(x, scale=2)
        b = second.affine(y, scale=3)
        assert [item.launch.device for item in launches.launches[-2:]] == [0, 1]
        np.testing.assert_allclose(a.numpy(), normal(3, 5) * 2, rtol=1e-6)
        np.testing.assert_allclose(b.numpy(), normal(3, 5) * 3, rtol=1e-6)
        assert (a.device, b.device) == (first.device, second.device), turn
    second.row_sums(y, stream=second.device.stream())
    assert launches.last.launch.device == 1
    np.testing.assert_allclose(second.affine(normal(2, 2), scale=1), normal(2, 2))
    assert launches.double.alive("module") == 1 + 3


# Captures.


@with_bundles()
def test_a_captured_sequence_is_replayed(folder: str):
    small, launches = open_over_double(folder)
    device, double = small.device, launches.double
    stream = device.stream()
    x, y = device.array(normal(4, 200)), device.empty((4, 200), "float32")
    total = device.empty(4, "float32")
    small.affine(x, scale=1.0, out=y, stream=stream), small.row_sums(y, total=total, offset=2)  # plans and code loaded
    count, memory = launches.count, double.alive("memory")
    ran = len(launches.launches)
    with device.capture(stream) as graph:
        small.affine(x, scale=3.0, out=y, stream=stream)
        small.row_sums(y, total=total, offset=5, stream=stream)
    assert launches.count == count + 3 and len(launches.launches) == ran  # recorded, not run
    assert double.alive("memory") == memory + 1  # the graph's workspace
    for seed in (1, 2, 3):
        fresh = np.random.default_rng(seed).standard_normal((4, 200)).astype(np.float32)
        x.copy_from(fresh)
        graph.launch(stream)
        np.testing.assert_allclose(total.numpy(), 3 * fresh.sum(axis=1) + 5, rtol=1e-3, atol=1e-3)
    small.affine(x, scale=7.0, out=y)  # the same plan, outside: the graph keeps its own arguments
    graph.launch()
    np.testing.assert_allclose(total.numpy(), 3 * fresh.sum(axis=1) + 5, rtol=1e-3, atol=1e-3)
    assert len(launches.launches) == ran + 4 * 3 + 1
    del graph
    gc.collect()
    assert double.alive("memory") == memory and double.alive("executable") == 0


@with_bundles()
def test_a_first_call_may_be_captured(folder: str):
    """Plans are made and code objects loaded during a capture, without breaking it."""
    small, launches = open_over_double(folder)
    stream = small.device.stream()
    x, out = small.device.array(normal(3, 5)), small.device.empty((3, 5), "float32")
    with small.device.capture(stream) as graph:
        small.affine(x, scale=2.0, out=out, stream=stream)
    assert not launches.launches
    graph.launch()
    np.testing.assert_allclose(out.numpy(), normal(3, 5) * 2, rtol=1e-6)


@with_bundles()
def test_outputs_must_be_given_to_a_captured_call(folder: str):
    small, launches = open_over_double(folder)
    device, double = small.device, launches.double
    stream = device.stream()
    x, total = device.array(normal(3, 200)), device.empty(3, "float32")
    for _ in range(2):  # with new plans, and with known ones
        count = launches.count
        with device.capture(stream) as graph:
            alive = double.alive("memory")
            for call in (
                lambda: small.affine(x, scale=1.0, stream=stream),
                lambda: small.affine(normal(3, 200), out=x, stream=stream),
                lambda: small.row_sums(x, stream=stream),
                lambda: small.row_sums(x, total=total, return_largest=True, stream=stream),
            ):
                with pytest.raises(CaptureError, match="pass out="):
                    call()
            assert double.alive("memory") == alive
        assert launches.count == count
        graph.launch()  # of nothing
        assert launches.count == count
        small.affine(x, scale=1.0), small.row_sums(x), small.row_sums(x, total=total, return_largest=True)


@with_bundles()
def test_dropping_arrays_during_a_capture(folder: str):
    small, launches = open_over_double(folder)
    device, double = small.device, launches.double
    stream = device.stream()
    x, y = device.array(normal(600, 600)), device.empty((600, 600), "float32")
    temporary = small.affine(x, scale=1.0, stream=stream)
    with device.capture(stream) as graph:
        small.affine(x, scale=2.0, out=y, stream=stream)
        del temporary
        gc.collect()
    graph.launch()
    np.testing.assert_allclose(y.numpy(), normal(600, 600) * 2, rtol=1e-6)
    del x, y, graph
    gc.collect()
    device.memory.trim()
    assert double.allocated() == 0


# Memory.


@with_bundles()
def test_a_thousand_calls_leak_nothing(folder: str):
    small, launches = open_over_double(folder)
    device, double = small.device, launches.double
    stream = device.stream()
    x, host = device.array(normal(3, 5)), normal(3, 5)

    def turn() -> None:
        small.affine(x, scale=2.0)
        small.affine(x, scale=2.0, stream=stream)
        small.row_sums(x, return_largest=True)
        small.affine(host)
        with pytest.raises(ArgumentError):
            small.affine(host[0])

    kinds = ("memory", "host_memory", "stream", "event", "module", "function", "graph", "executable")
    for _ in range(3):
        turn()
    alive = {kind: double.alive(kind) for kind in kinds}
    allocated = double.allocated()
    for _ in range(250):
        turn()
    gc.collect()
    assert {kind: double.alive(kind) for kind in kinds} == alive
    assert double.allocated() == allocated


@with_bundles()
def test_the_record_itself_notices_a_wrong_launch(folder: str):
    """The references are no rubber stamp: a launch that differs from the index in one byte fails."""
    small, launches = open_over_double(folder)
    x = small.device.array(normal(3, 5))
    small.affine(x, scale=2.0)
    good = launches.last.launch
    double = Double()
    record = ReferenceLaunches(small.path, double)
    from dataclasses import replace

    record(good)
    for change in (
        {"block": (128, 1, 1)}, {"lds_bytes": 16}, {"kernargs": good.kernargs[:-1]},
        {"kernargs": good.kernargs + b"\0"},
        {"kernargs": good.kernargs[:-1] + b"\1"}, {"image": good.image[:-1] + b"\1"}, {"kernel": "affine"},
        {"grid": (3, 2, 1)},
    ):  # fmt: skip
        with pytest.raises((AssertionError, KeyError)):
            record(replace(good, **change))


# The functions that are written for an op and its plans.


@with_bundles()
def test_written_functions_are_seen_in_tracebacks_and_see_no_builtins(folder: str):
    """The source of a call and of its plan is in `linecache`; only names that they were given are in their reach."""
    small, launches = open_over_double(folder)
    x = small.device.array(normal(3, 5))
    small.affine(x)
    (run,) = small.affine.__globals__["_plans"].values()
    for function, line in ((small.affine, "return _run(stream, x"), (run, "_launch0.run(_stream)")):
        source = inspect.getsource(function)
        assert source.startswith("def ") and line in source
        assert function.__code__.co_filename.startswith("<aot_runtime: affine ")
        assert function.__globals__["__builtins__"] == {}
    launches.double.fail("hipModuleLaunchKernel", 719)
    with pytest.raises(DriverCallError) as raised:
        small.affine(x)
    shown = "".join(traceback.format_exception(raised.value))
    assert "_launch0.run(_stream)\n" in shown and "in affine\n" in shown
