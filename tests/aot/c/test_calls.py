"""Calls through the C dispatcher over the double of libamdhip64, beside the same calls through Python."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from aot_emulator import Options
from aot_runtime import ArgumentError, Bundle, DeviceError, open_bundle
from aot_runtime.bundle.reading import read_index
from tests.support.c_interface import calling
from tests.support.c_interface.calling import DTYPE_NAMES, OpenedInC, RefusedError, Tensor, tensor
from tests.support.emulated_launches import EmulatedLaunches
from tests.support.hip_double.double import Double, Launch, in_double

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 200)).astype(np.float32)
CALLS: tuple[tuple[str, dict[str, Any], dict[str, Any], tuple[str, ...]], ...] = (
    ("affine", {"x": X}, {}, ("out",)),
    ("affine", {"x": X[:, :64].astype(np.float16), "bias": X[:1, :64].astype(np.float16)}, {"scale": 0.5}, ("out",)),
    ("affine", {"x": X[:, 1:], "bias": X[:, 1:]}, {"mode": "negated", "shift": -3, "scale": 1e-3}, ("out",)),
    ("row_sums", {"x": X[:2, :70]}, {"offset": 7}, ("total",)),
    ("row_sums", {"x": X[:2, :20]}, {"return_largest": True}, ("total", "largest")),
    ("accumulate", {"x": X[0], "state": X[1].copy()}, {}, ()),
    ("scale_segments", {"x": X[:, :100], "starts": np.array([0, 1, 3], np.int32), "factors": X[0, :2]},
     {"return_largest": True}, ("out", "largest")),
    ("histogram", {"x": np.arange(-70, 90, dtype=np.int32) % 11 - 1}, {"bins": 9}, ("counts", "others")),
    ("relay", {"x": X[0]}, {}, ("out",)),
    ("relay", {"x": X[0].astype(np.float16)}, {}, ("out",)),
    *(("ramp", {}, {"n": 70, "start": start, "step": step}, ("numbers",)) for start, step in (
        (0.1, -0.3), (-0.0, 65519.0), (1e-40, 3e-8), (-3.38e38, 0), (float("inf"), 2**-24), (2, 0.1), (257, 2049),
        (float("nan"), float("-inf")), (259.0, 2051.0), (2**-133, 2**-25), (1.5 * 2**-133, 1.5 * 2**-24),
    )),
    ("copy", {"x": X[:, :7]}, {}, ("out",)),
    ("copy", {"x": X[:, :7].T}, {}, ("out",)),
)  # fmt: skip


def opened(library: Path, folder: Path, **options: Any) -> OpenedInC:
    return OpenedInC(library, read_index(folder), folder, **options)


def on_device(bundle: Bundle, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Put arrays where the tests want them, laid out as on the host, transposed ones too."""
    orders = {
        name: tuple(np.argsort([-step for step in value.strides], kind="stable")) for name, value in arrays.items()
    }
    return {name: bundle.device.array(value, order=orders[name]) for name, value in arrays.items()}


def of(array: Any) -> Tensor:
    return tensor(array.ptr, array.layout.dtype, array.shape, array.layout.strides)


def given_outputs(bundle: Bundle, c: OpenedInC, op: str, tensors: dict[str, Tensor], scalars: Any, names: Any) -> Any:
    """Allocate the outputs of a call as the C function `_outputs` lays them out."""
    args, _ = c.request(calling.OUTPUTS, op, tensors, scalars)
    laid = {name: getattr(args, name) for name in names}
    assert all(item.dtype and item.address == 0 for item in laid.values())
    made = {}
    for name, item in laid.items():
        shape, strides = tuple(item.shape[: item.rank]), tuple(item.strides[: item.rank])
        order = tuple(np.argsort([-step for step in strides], kind="stable"))
        made[name] = bundle.device.empty(shape, DTYPE_NAMES[item.dtype], order=order)
        assert made[name].layout.strides == strides
    return made


@in_double(HIP_DOUBLE_XCCS=4)
def test_the_same_launches_and_bytes_as_in_python(small_library: Path, small_bundle: Path):
    launches = EmulatedLaunches(Options())
    bundle, c = open_bundle(small_bundle), opened(small_library, small_bundle)
    stream = bundle.device.stream()
    for op, host, scalars, outputs in CALLS:
        arrays = on_device(bundle, host)
        expected = getattr(bundle, op)(**arrays, **scalars, stream=stream)
        expected = expected if isinstance(expected, tuple) else (expected,) if outputs else (arrays.pop("state"),)
        again = on_device(bundle, host)
        tensors = {name: of(array) for name, array in again.items()}
        made = given_outputs(bundle, c, op, tensors, scalars, outputs)
        tensors |= {name: of(array) for name, array in made.items()}
        count = len(launches.done)
        c.request(calling.CALL, op, tensors, scalars, stream.handle)
        results = tuple(made.values()) or (again["state"],)
        assert [item.layout.strides for item in results] == [item.layout.strides for item in expected]
        for found, wanted in zip(results, expected, strict=True):
            assert found.numpy(stream).tobytes() == wanted.numpy(stream).tobytes(), op
        ours = launches.done[count:]
        theirs = launches.done[count - len(ours) : count]
        assert ours and list(map(shape_of, ours)) == list(map(shape_of, theirs))
    c.close()
    assert launches.double.calls("hipFreeAsync") == 4, "the workspaces of row_sums and relay"


def shape_of(launch: Launch) -> tuple[Any, ...]:
    return launch.image, launch.kernel, launch.grid, launch.block, launch.lds_bytes, launch.stream, len(launch.kernargs)


WRONG: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dtype": ("affine", {"x": X.astype(np.float64)}, {}),
    "dtypes": ("affine", {"x": X, "bias": X.astype(np.float16)}, {}),
    "missing": ("affine", {"bias": X}, {}),
    "rank": ("affine", {"x": X[None]}, {}),
    "shape": ("affine", {"x": X, "bias": X[:, :100]}, {}),
    "strides": ("affine", {"x": X[:, ::2]}, {}),
    "range": ("affine", {"x": np.zeros((1, 5000), np.float32)}, {}),
    "number": ("affine", {"x": X}, {"shift": 2**31}),
    "float": ("affine", {"x": X}, {"scale": 1e300}),
    "not_built": ("affine", {"x": X.astype(np.float16)}, {"mode": "negated"}),
    "output": ("row_sums", {"x": X, "largest": X[:, 0].copy()}, {}),
    "output_shape": ("row_sums", {"x": X, "total": X[0]}, {}),
    "innermost": ("copy", {"x": np.zeros((40, 20, 2), np.float32)[:, :, 0]}, {}),
    "extent": ("copy", {"x": np.zeros((65, 2), np.float32)}, {}),
    "overlap": ("accumulate", {"x": X[0], "state": "x"}, {}),
    "half": ("ramp", {"numbers": X[0]}, {"n": 200, "step": 65520}),
    "bfloat16": ("ramp", {"numbers": X[0]}, {"n": 200, "start": 3.4e38}),
    "zeroed": ("histogram", {"x": np.zeros(5, np.int32), "counts": np.zeros(9, np.int32)}, {"bins": 5}),
}


@in_double()
def test_what_is_refused_is_refused_in_the_same_words(small_library: Path, small_bundle: Path):
    bundle, c, double = open_bundle(small_bundle), opened(small_library, small_bundle), Double()
    for case, (op, host, scalars) in WRONG.items():
        plain = {name: value for name, value in host.items() if not isinstance(value, str)}
        arrays = {name: bundle.device.array(value) for name, value in plain.items()}
        if case in ("strides", "innermost"):  # views, which a copy of the host's array would not be
            whole = bundle.device.array(np.zeros((*plain["x"].shape, 2), np.float32))
            arrays["x"] = whole[..., 0]
        if case == "zeroed":
            arrays["counts"] = arrays["counts"][::2]
        arrays |= {name: arrays[value] for name, value in host.items() if isinstance(value, str)}
        outputs = [t.name for t in read_op(small_bundle, op).tensors if t.role == "output" and not t.when]
        shape = {"row_sums": (3,), "histogram": ()}.get(op, (3, 200))
        dtype = {"not_built": np.float16, "zeroed": np.int32}.get(case, np.float32)
        made = {name: arrays.get(name, bundle.device.empty(shape, dtype)) for name in outputs}
        before = double.allocated(), double.calls("hipModuleLoadData")
        with pytest.raises(RefusedError) as refused:
            c.request(calling.CALL, op, {name: of(array) for name, array in (made | arrays).items()}, scalars)
        assert (double.allocated(), double.calls("hipModuleLoadData")) == before
        with pytest.raises((ArgumentError, TypeError)) as expected:
            getattr(bundle, op)(**arrays, **scalars)
        if case not in ("missing", "float", "half", "bfloat16"):
            assert refused.value.message == str(expected.value).partition("\n  advice: ")[0], case
        assert refused.value.code == (calling.NO_VARIANT if case == "not_built" else calling.ARGUMENT)
    assert double.calls("hipModuleLaunchKernel") == 0
    x = bundle.device.array(X)
    for given, text in (
        (Tensor(0, *list(struct_of(x))[1:]), "affine: argument 'x' has elements, but its address is 0"),
        (tensor(x.ptr, "absent", (3, 200), (200, 1)), "affine: argument 'x' is absent; allowed: float16, float32"),
        (tensor(x.ptr, "float32", (-3, 200), (200, 1)), "affine: argument 'x' has shape [-3, 200]; an extent is 0 or"),
        (tensor(x.ptr, "float32", (3, 200), (2**60, 1)), "affine: argument 'x' reaches further than 2**53 elements"),
    ):
        with pytest.raises(RefusedError, match=text.replace("*", r"\*").replace("[", r"\[")):
            c.request(calling.CALL, "affine", {"x": given, "out": of(x)}, {})


@in_double()
def test_outputs_are_zeroed_where_nothing_is_launched(small_library: Path, small_bundle: Path):
    bundle, c, double = open_bundle(small_bundle), opened(small_library, small_bundle), Double()
    counts = bundle.device.array(np.full((2, 3), 7, np.int32))
    others = bundle.device.array(np.int32(7))
    x = bundle.device.empty((0,), np.int32)
    tensors = {"x": of(x), "counts": of(counts[1]), "others": of(others)}
    c.request(calling.CALL, "histogram", tensors, {"bins": 3})
    assert counts.numpy().tolist() == [[7, 7, 7], [0, 0, 0]] and others.numpy() == 0
    tensors = {"x": of(x), "counts": of(counts[:1, :0].reshape(0)), "others": of(others)}
    c.request(calling.CALL, "histogram", tensors, {"bins": 0})
    assert double.calls("hipModuleLaunchKernel") == 0


def struct_of(array: Any) -> list[Any]:
    made = of(array)
    return [getattr(made, name) for name, _ in Tensor._fields_]


def read_op(folder: Path, name: str) -> Any:
    return next(op for op in read_index(folder).ops if op.name == name)


@in_double()
def test_what_a_call_would_do_is_told_and_not_done(small_library: Path, small_bundle: Path):
    c, double = opened(small_library, small_bundle), Double()
    given = {"x": tensor(0, "float16", (3, 208), (208, 1))}
    _, told = c.request(calling.EXPLAIN, "affine", given, {})
    assert told == "small_gfx942_affine_f16_aligned_wide, grid (3, 1, 1)"
    _, told = c.request(calling.EXPLAIN, "row_sums", {"x": tensor(4, "float32", (2, 65), (65, 1))}, {})
    assert told.splitlines() == [
        "small_gfx942_row_sums_partial_sums_general_config0, grid (2, 2, 1)",
        "small_gfx942_row_sums_add_partial_general_config0, grid (2, 1, 1)",
    ]
    assert double.calls("hipModuleLoadData") == double.calls("hipMallocFromPoolAsync") == 0


@in_double(HIP_DOUBLE_DEVICES=2)
def test_many_threads_on_two_devices_load_each_kernel_once(small_library: Path, small_bundle: Path):
    double = Double()
    seen: list[Launch] = []
    double.on_launch(lambda launch: seen.append(launch))
    bundles = [open_bundle(small_bundle, f"hip:{i}") for i in range(2)]
    both = [opened(small_library, small_bundle, device=i) for i in range(2)]
    x = [bundle.device.array(X) for bundle in bundles]
    outs = [[bundle.device.empty(X.shape, np.float32) for _ in range(8)] for bundle in bundles]
    barrier = Barrier(8)

    def work(i: int) -> None:
        barrier.wait(30)
        for call in range(40):
            which = (i + call) % 2
            tensors = {"x": of(x[which]), "out": of(outs[which][i])}
            both[which].request(calling.CALL, "affine", tensors, {"shift": i})
            assert current_device(double) == 0, "the thread's device is what it was"

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, i) for i in range(8)]:
            done.result()
    assert double.calls("hipModuleLoadData") == 2 and len(seen) == 320
    assert sorted(launch.device for launch in seen) == [0] * 160 + [1] * 160
    for address in (array.ptr for group in outs for array in group):  # of each thread its own
        assert sum(address.to_bytes(8, "little") in launch.kernargs for launch in seen) == 20
    for c in both:
        c.close()
    assert double.alive("module") == 0


def current_device(double: Double) -> int:
    current = ctypes.c_int(-1)
    double._library.hipGetDevice(ctypes.byref(current))
    return current.value


class _Allocator(ctypes.Structure):
    _fields_ = (("context", ctypes.c_void_p), ("allocate", ctypes.c_void_p), ("release", ctypes.c_void_p))


@in_double()
def test_scratch_memory_is_the_programs_if_it_wants(small_library: Path, small_bundle: Path):
    launches, events = EmulatedLaunches(), []
    bundle = open_bundle(small_bundle)
    room = bundle.device.empty((1 << 12,), np.uint8)

    def allocate(context: int, nbytes: int, stream: int | None, address: Any) -> int:
        events.append(("allocate", context, nbytes))
        address[0] = room.ptr
        return 0 if len(events) < 3 else 12

    def release(context: int, address: int, nbytes: int, stream: int | None) -> None:
        events.append(("release", address - room.ptr, nbytes))

    takes = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)
    )(allocate)
    gives = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p)(release)
    pointers = (ctypes.cast(item, ctypes.c_void_p).value for item in (takes, gives))
    allocator = _Allocator(77, *pointers)
    c = opened(small_library, small_bundle, allocator=ctypes.byref(allocator))
    x, total = bundle.device.array(X), bundle.device.empty((3,), np.float32)
    tensors = {"x": of(x), "total": of(total)}
    c.request(calling.CALL, "row_sums", tensors, {})
    np.testing.assert_allclose(total.numpy(), X.sum(1), rtol=1e-4, atol=1e-4)
    assert events == [("allocate", 77, 48), ("release", 0, 48)] and len(launches.done) == 2
    with pytest.raises(RefusedError, match="the program's allocator gives no 48 bytes: it returned 12") as refused:
        c.request(calling.CALL, "row_sums", tensors, {})
    assert refused.value.code == calling.MEMORY and len(launches.done) == 2


@in_double()
def test_a_first_call_may_be_captured_into_a_graph(small_library: Path, small_bundle: Path):
    """Its code object is loaded meanwhile. Scratch memory is the graph's, or an error if the pool gives none then."""
    launches = EmulatedLaunches(Options())
    bundle, c = open_bundle(small_bundle), opened(small_library, small_bundle)
    x, out, stream = bundle.device.array(X[:, :8]), bundle.device.empty((3, 8), np.float32), bundle.device.stream()
    out.fill(0)
    bundle.device.synchronize()
    with bundle.device.capture(stream) as graph:
        c.request(calling.CALL, "copy", {"x": of(x), "out": of(out)}, {}, stream.handle)
    assert not out.numpy(stream).any(), "recorded, not run"
    graph.launch(stream)
    assert (out.numpy(stream) == X[:, :8]).all()
    total = bundle.device.empty((3,), np.float32)
    tensors = {"x": of(x), "total": of(total)}
    if not launches.double.is_double:
        with bundle.device.capture(stream) as graph:
            c.request(calling.CALL, "row_sums", tensors, {}, stream.handle)
        for _ in range(3):
            total.fill(0xFF, stream)
            graph.launch(stream)
            np.testing.assert_allclose(total.numpy(stream), X[:, :8].sum(1), rtol=1e-4, atol=1e-4)
        return
    refusal = pytest.raises(RefusedError, match="hipMallocFromPoolAsync failed: hipErrorStreamCaptureUnsupported")
    with pytest.raises(DeviceError, match="capture"), bundle.device.capture(stream), refusal:
        c.request(calling.CALL, "row_sums", tensors, {}, stream.handle)


@in_double()
def test_a_failure_of_the_driver_is_told_and_leaves_nothing(small_library: Path, small_bundle: Path):
    double, bundle, c = Double(), open_bundle(small_bundle), opened(small_library, small_bundle)
    tensors = {"x": of(bundle.device.array(X)), "total": of(bundle.device.empty((3,), np.float32))}
    for function, status, code, text in (
        ("hipModuleLoadData", 209, calling.DEVICE, r"hipModuleLoadData failed: hipErrorNoBinaryForGpu \(209\)"),
        ("hipMallocFromPoolAsync", 2, calling.MEMORY, r"hipMallocFromPoolAsync failed: hipErrorOutOfMemory \(2\)"),
        ("hipModuleLaunchKernel", 719, calling.DEVICE, r"hipModuleLaunchKernel failed: .* \(launch 1 of 2, small_"),
    ):
        allocated = double.allocated()
        double.fail(function, status)
        with pytest.raises(RefusedError, match=text) as refused:
            c.request(calling.CALL, "row_sums", tensors, {})
        assert refused.value.code == code and double.allocated() == allocated
    c.request(calling.CALL, "row_sums", tensors, {})


@in_double(HIP_DOUBLE_DEVICES=2, HIP_DOUBLE_ARCH="gfx942,gfx90a")
def test_a_bundle_that_is_not_the_programs_is_refused(small_library: Path, small_bundle: Path, tmp_path: Path):
    for options, code, text in (
        ({"device": 1}, calling.ARCH_MISMATCH, "is for gfx942, but device 1 is gfx90a"),
        ({"device": 2}, calling.DEVICE, "there is no device 2; the driver has 2"),
        ({"folder": tmp_path / "none"}, calling.BUNDLE, "none/bundle.json cannot be read: No such file"),
    ):
        with pytest.raises(RefusedError, match=text) as refused:
            opened_at(small_library, small_bundle, **options)
        assert refused.value.code == code
    copy = Path(shutil.copytree(small_bundle, tmp_path / "copy"))
    for file in (copy / "code").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"!")
    c = opened_at(small_library, small_bundle, folder=copy)
    x = open_bundle(small_bundle, "hip:0").device.array(X)
    with pytest.raises(RefusedError, match="was altered: its size or sha256 is not what the index says"):
        c.request(calling.CALL, "copy", {"x": of(x[:, :8]), "out": of(x[:, 100:108])}, {})
    (copy / "bundle.json").write_text("{}")
    with pytest.raises(RefusedError, match=r"copy has another bundle than the one that the program's small\.c belongs"):
        opened_at(small_library, small_bundle, folder=copy)


def opened_at(library: Path, bundle: Path, folder: Path | None = None, device: int = 0) -> OpenedInC:
    return OpenedInC(library, read_index(bundle), folder or bundle, device)
