"""Calls of ops over the double: arrays in and out, cached plans, and refused calls."""

from __future__ import annotations

import gc
import inspect
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from aot_runtime import ArgumentError, DeviceArray, DeviceMemoryError, DriverCallError, get_device, open_bundle
from aot_runtime.call import op as op_module
from aot_runtime.call.planner import Planner
from tests.support.contracts import normal
from tests.support.hip_double.double import in_double
from tests.support.reference_launches import open_over_double


def check(found: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy() if isinstance(found, DeviceArray) else found, expected, rtol=1e-5)


class Foreign:
    """An object like torch's tensors: DLPack, and a `layout` of its own."""

    layout = "strided"

    def __init__(self, array: DeviceArray, device: tuple[int, int] = (10, 0)):
        self.array, self.device = array, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.array.__dlpack__(stream=stream)


@in_double()
def test_outputs_are_where_the_inputs_are(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    x, bias = normal(3, 5), normal(1, 5)
    out = small.affine(x, bias, scale=1)
    assert type(out) is np.ndarray and out.dtype == np.float32
    check(out, x + bias)
    for strided in (normal(6, 10)[::2, ::2], normal(5, 3).T):
        check(small.affine(strided, scale=2.0), strided * 2)
    on_device, waits = small.device.array, 0
    for given in ((on_device(x), bias), (x, on_device(bias)), (on_device(x), on_device(bias))):
        waits = launches.double.calls("hipStreamSynchronize")
        found = small.affine(*given, scale=1)
        assert type(found) is DeviceArray and found.device is small.device
    assert launches.double.calls("hipStreamSynchronize") == waits, "a call with device arrays waits for nothing"
    check(found, x + bias)
    assert launches.count == 6


@in_double()
def test_results_go_where_the_caller_says(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    host, device = normal(3, 5), small.device.array(normal(3, 5))
    wide = np.full((3, 10), np.nan, np.float32)
    on_device = small.device.empty((3, 64), "float32")[:, :5]
    for x, out in ((host, wide[:, ::2]), (device, on_device), (device, np.empty_like(host)), (host, on_device)):
        assert small.affine(x, out=out, scale=2) is out
        check(out, host * 2)
    assert launches.last.values["stride_out_rows"] == 64 and np.isnan(wide[:, 1::2]).all()
    into = small.device.empty((3, 5), "float32")
    small.affine(Foreign(device), out=Foreign(into), scale=3)
    check(into, host * 3)
    read_only, count = np.broadcast_to(np.float32(0), (3, 5)), launches.count
    with pytest.raises(ArgumentError, match="affine: argument 'out' is written to, but is read-only"):
        small.affine(host, out=read_only)
    assert launches.count == count


@in_double()
def test_several_outputs_are_a_named_tuple(small_bundle: Path):
    """An op with two outputs takes their names instead of `out`."""
    small, _ = open_over_double(small_bundle)
    x = normal(4, 100)
    assert type(small.row_sums(x)) is np.ndarray
    for given in (x, small.device.array(x)):
        result = small.row_sums(given, return_largest=True)
        assert type(result).__name__ == "row_sums_result" and result._fields == ("total", "largest")
        assert {type(value) for value in result} == {type(given)}
        check(result.total, x.sum(axis=1))
        check(result.largest, x.max(axis=1))
    total, largest = small.device.empty(4, "float32"), np.empty(4, np.float32)
    assert small.row_sums(x, total=total) is total
    result = small.row_sums(x, largest=largest, return_largest=True)
    assert result.largest is largest and (largest == x.max(axis=1)).all()
    assert "out" in inspect.signature(small.affine).parameters
    with pytest.raises(TypeError, match="out"):
        small.row_sums(x, out=total)


@in_double()
def test_a_tensor_updated_in_place(small_bundle: Path):
    small, _ = open_over_double(small_bundle)
    x, state = normal(300), normal(300)
    on_device, expected = small.device.array(state), state + x
    for given in (state, on_device):
        assert small.accumulate(x, state=given) is None
        check(given, expected)
    small.accumulate(small.device.array(x), on_device)
    check(on_device, expected + x)
    with pytest.raises(ArgumentError, match="'state'"):
        small.accumulate(x, np.broadcast_to(np.float32(0), 300))


@in_double()
def test_empty_extents_and_absent_outputs(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    x, starts, factors = normal(7, 12), np.array([0, 2, 2, 7], np.int32), normal(3)
    out = small.scale_segments(x, starts, factors)
    check(out, x * np.repeat(factors, [2, 0, 5])[:, None])
    assert launches.last.launch.grid == (3, 1, 1) and launches.last.values["largest"] == 0
    variant = launches.last.variant
    result = small.scale_segments(x, starts, factors, return_largest=True)
    assert launches.last.variant is variant, "the kernel looks whether the address is null"
    check(result.largest, out.max(axis=1))
    nothing = small.scale_segments(x[:0], np.zeros(4, np.int32), factors)
    assert nothing.shape == (0, 12) and launches.count == 3


@in_double()
def test_a_known_call_is_not_planned_again(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    x, y = small.device.array(normal(3, 32)), small.device.array(normal(3, 32))

    def planned(call: Callable[[], Any]) -> int:
        with mock.patch.object(Planner, "decide", autospec=True, side_effect=Planner.decide) as decide:
            call()
        return decide.call_count

    assert planned(lambda: [small.affine(array, scale=2.0, shift=1) for array in (x, y, x, y)]) == 1
    for scale, shift in ((3.0, -1), (np.float32(0.5), np.int64(2**31 - 1))):
        assert planned(partial(small.affine, x, scale=scale, shift=shift)) == 0
        assert (launches.last.values["scale"], launches.last.values["shift"]) == (scale, shift)
    assert planned(partial(small.affine, normal(3, 32), scale=1.0, shift=0)) == 0, "the same layouts, from numpy"
    assert planned(partial(small.affine, x, scale=1.0, shift=0, stream=small.device.stream())) == 0
    assert planned(partial(small.affine, x[:].reshape(96).reshape(3, 32), scale=1.0, shift=0)) == 0, "a view like it"
    for arguments, keywords in (
        ((x,), {}),  # the default scale
        ((x,), {"mode": "negated"}),
        ((x,), {"scale": 2.0, "shift": 1, "out": y}),
        ((x[:2],), {"scale": 2.0, "shift": 1}),
        ((x[:, 1:],), {"scale": 2.0, "shift": 1}),
        ((x, small.device.array(normal(1, 32))), {"scale": 2.0, "shift": 1}),
    ):
        call = partial(small.affine, *arguments, **keywords)
        assert [planned(call), planned(call)] == [1, 0]
    for cols in (4, 16, 4, 16):  # a default is computed for its own shape
        small.affine(small.device.array(normal(2, cols)))
        assert launches.last.values["scale"] == cols**-0.5


@in_double()
def test_a_known_call_is_checked_again(small_bundle: Path):
    """A call that differs in one thing gets its own plan, or an error: by address, stride, dtype, device or overlap."""
    small, launches = open_over_double(small_bundle)
    device, flat = small.device, small.device.array(normal(200))
    x, wide, out = flat[:96].reshape(3, 32), device.array(normal(3, 64)), device.empty((3, 32), "float32")
    call = partial(small.affine, scale=2.0, shift=1, out=out)
    for _ in range(3):
        call(x)
        assert launches.last.variant.aligned and launches.last.values["stride_x_rows"] == 32
    misaligned, strided = flat[1:97].reshape(3, 32), wide[:, :32]
    halves = device.array(normal(3, 32).astype(np.float16))
    for _ in range(2):
        call(misaligned)
        assert not launches.last.variant.aligned and launches.last.values["x"] == flat.ptr + 4
        call(strided)
        assert launches.last.values["stride_x_rows"] == 64 and launches.last.variant.aligned
        for array, named in ((halves, r"'out'"), (x[:2], r"'out'"), (x[0], r"'x'")):
            with pytest.raises(ArgumentError, match=f"affine: (argument )?{named}"):
                call(array)
        for overlapping in (out, out[:]):
            with pytest.raises(ArgumentError, match="arguments 'out' and 'x' may overlap in memory"):
                call(overlapping)
        with pytest.raises(ArgumentError, match=r"a scalar \(shift\) does not fit its type|a scalar"):
            call(x, shift=1 << 40)
    call(x)
    check(out, x.numpy() * 2 + 1)


@in_double()
def test_plans_have_a_limit(small_bundle: Path):
    op_module.MAX_PLANS = 4
    small, _ = open_over_double(small_bundle)
    for rows in (*range(1, 11), *range(1, 11)):
        check(small.affine(normal(rows, 3), scale=2), normal(rows, 3) * 2)
    assert 0 < len(inspect.getclosurevars(small.affine).globals["_plans"]) <= 4


@in_double()
def test_written_functions_and_their_failures(small_bundle: Path):
    """`linecache` has the source of a call and of its plan; they reach only names that they were given."""
    small, launches = open_over_double(small_bundle)
    x = small.device.array(normal(3, 5))
    small.affine(x)
    (run,) = small.affine.__globals__["_plans"].values()
    for function, line in ((small.affine, "return _run(stream, x"), (run, "if _status := _enqueue0()")):
        source = inspect.getsource(function)
        assert source.startswith("def ") and line in source
        assert function.__code__.co_filename.startswith("<aot_runtime: affine ")
        assert function.__globals__["__builtins__"] == {}
    double = launches.double
    double.fail("hipModuleLaunchKernel", 719)
    with pytest.raises(DriverCallError) as raised:
        small.affine(x)
    assert (raised.value.call, raised.value.code) == ("hipModuleLaunchKernel", "hipErrorLaunchFailure")
    shown = "".join(traceback.format_exception(raised.value))
    assert "].settle(_status)\n" in shown and "in affine\n" in shown
    small.device.memory.trim()
    double.fail("hipMallocFromPoolAsync", 2, -1)
    with pytest.raises(DeviceMemoryError):
        small.affine(x)
    double.fail("hipMallocFromPoolAsync", 0, 0)
    check(small.affine(x, scale=2), normal(3, 5) * 2)


@in_double(HIP_DOUBLE_DEVICES=2)
def test_wrong_calls_launch_nothing(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    device, other = small.device, get_device("hip:1")
    x, elsewhere = device.array(normal(3, 32)), other.array(normal(3, 32))
    host = normal(3, 32)
    calls: list[tuple[Any, str]] = [  # a call, and words of its error; what the planner refuses has its texts elsewhere
        (lambda: small.affine(None), "'x' is missing"),
        (lambda: small.affine(host.astype("complex64")), "'x': dtype complex64"),
        (lambda: small.affine(host.astype(">f4")), "in foreign byte order is not supported"),
        (lambda: small.affine(x, normal(2, 32)), "'bias'"),
        (lambda: small.affine(x.T), "'x'"),
        (lambda: small.affine(elsewhere), "affine: argument 'x' is on hip:1, the bundle was opened for hip:0"),
        (lambda: small.affine(Foreign(x, (2, 0))), "'x': the array is on DLPack device (2, 0)"),
        (lambda: small.affine([[1.0]]), "'x': list"),
        (lambda: small.affine(x, 3.0), "'bias': float"),
        (lambda: small.affine(host[:0]), "rows is 0"),
        (lambda: small.affine(host.astype("float16"), mode="negated"), ": nobody asks for it"),
        (lambda: small.affine(x, scale=1j), "'scale'"),
        (lambda: small.affine(x, scale=1e39), "scale"),
        (lambda: small.affine(x, shift=2**31), "'shift'"),
        (lambda: small.affine(x, mode=["plain"]), "'mode'"),
        (lambda: small.affine(x, stream="s"), "stream is str; a Stream, a stream of torch"),
        (lambda: small.affine(host, stream="s"), "stream is str; a Stream, a stream of torch"),
        (lambda: small.affine(x, stream=other.stream()), "the stream belongs to hip:1"),
        (lambda: small.affine(host, stream=other.stream()), "the stream belongs to hip:1"),
        (lambda: small.row_sums(x, largest=x[:, 0]), "'largest'"),
        (lambda: small.accumulate(x[0], None), "'state' is missing"),
    ]
    for turn in range(2):  # a wrong call is as wrong once its like is known
        count = launches.count
        for call, words in calls:
            with pytest.raises(ArgumentError) as raised:
                call()
            assert raised.value.__suppress_context__ or raised.value.__context__ is None
            text = str(raised.value)
            assert words in text or (turn and "does not fit its type" in text), (words, text)
        assert launches.count == count
        small.affine(x, scale=1.0, shift=1), small.affine(x), small.row_sums(x), small.row_sums(x, offset=3)
    gc.collect()
    device.memory.trim()
    assert launches.double.allocated() == x.owner.nbytes, "and nothing is left behind"


@in_double()
def test_a_scalar_that_does_not_fit_a_known_plan_launches_nothing(small_bundle: Path):
    """`offset` is an argument of the second kernel alone: the first must not have run."""
    small, launches = open_over_double(small_bundle)
    x = small.device.array(normal(3, 5))
    small.row_sums(x, offset=1)
    count = launches.count
    for offset in (2**31, -(2**31) - 1, 1.5, "1", None.__class__):
        with pytest.raises(ArgumentError, match=r"row_sums: a scalar \(offset\) does not fit its type"):
            small.row_sums(x, offset=offset)
    assert launches.count == count
    check(small.row_sums(x, offset=7), normal(3, 5).sum(axis=1) + 7)


@in_double()
def test_names_of_arguments_are_checked_by_python(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    x = normal(3, 5)
    for arguments, keywords in (((), {}), ((x, x, x), {}), ((x,), {"skale": 1}), ((x,), {"x": x})):
        with pytest.raises(TypeError, match=r"affine\(\)"):
            small.affine(*arguments, **keywords)
    assert launches.count == 0
    assert list(inspect.signature(small.affine).parameters) == ["x", "bias", "out", "scale", "shift", "mode", "stream"]
    assert "\n    scale: fp32, default cols ** (-0.5)." in small.affine.__doc__
    assert "\n    bias: float16 or float32 [rows|1, cols], optional." in small.affine.__doc__


def test_any_of_several_dims_is_the_innermost(small_bundle: Path):
    small = open_bundle(small_bundle, device="emulator")
    for shape in ((48, 32), (33, 21), (1, 32), (48, 1)):
        for x_order, out_order in ("CC", "CF", "FC", "FF"):
            x = np.asarray(normal(*shape), order=x_order)
            out = small.device.array(np.asarray(np.full(shape, np.nan), np.float32, order=out_order))
            small.copy(x, out=out)
            assert np.array_equal(out.numpy(), x), (shape, x_order, out_order)
    on_device = small.device.array(normal(48, 32))
    assert small.copy(on_device).strides == (4, 4 * 48), "a new output takes the first of its innermost dims"
    assert small.copy(on_device.transpose(1, 0)).strides == (4, 4 * 32)
    assert "x    float32[48, 32] strides [1, 48]" in small.explain("copy", np.asfortranarray(normal(48, 32)))
    with pytest.raises(ArgumentError, match=r"'x' has strides \[64, 2\]; that of dim 1 \(k\) or 0 \(m\) must be 1"):
        small.copy(small.device.array(normal(48, 64))[:, ::2])
