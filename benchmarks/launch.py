"""Host time of a call of a tiny kernel: softmax of [1, 256] through this runtime, and its peers.

    aotbuild --arch sm_90 manifests/rows.yaml && python benchmarks/launch.py dist/rows-sm_90

`--decode` adds a call with two launches and scratch memory: attention of a query over keys in four parts.

A round enqueues a number of calls and then waits for the device. "host" is the time per call before the wait, and
"done" the time after it. A round is shorter than a device's queue, so that no call waits for a free slot. All
candidates take turns, and their results are checked. Peers that are not installed are omitted.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from kernargs import kernarg_segment
from measure import ROOT, interleaved, median, table
from on_gpu import heading

from aot_runtime import AotError, Bundle, DeviceArray, open_bundle
from aot_runtime.call.choosing import LaunchDecision

COLS = 256
BASE = "raw ctypes loop"


@dataclass(frozen=True)
class Way:
    """A way to make the call. `result` returns the last call's result, `expected` the right one."""

    name: str
    call: Callable[[], Any]
    result: Callable[[], np.ndarray]
    expected: np.ndarray


@dataclass(frozen=True)
class Setting:
    """State that the ways share: arrays, and the launch of the call, with every kernarg filled in."""

    bundle: Bundle
    host: np.ndarray
    x: DeviceArray
    out: DeviceArray
    launch: LaunchDecision
    kernargs: bytes

    @classmethod
    def of(cls, bundle: Bundle) -> Setting:
        host = np.linspace(-1, 1, COLS, dtype=np.float32)[None]
        x, out = bundle.device.array(host), bundle.device.empty(host.shape, host.dtype)
        (launch,) = bundle.softmax.decide({"x": x.layout, "out": out.layout}, {}).launches
        return cls(bundle, host, x, out, launch, kernarg_segment(launch, {"x": x.ptr, "out": out.ptr}))

    @property
    def threads(self) -> int:
        return self.launch.variant.num_warps * self.launch.variant.warp_size

    @property
    def code_object(self) -> Path:
        return self.bundle.path / self.bundle.index.blobs[self.launch.variant.code].file

    @property
    def softmax(self) -> np.ndarray:
        p = np.exp(self.host - self.host.max())
        return p / p.sum()

    def way(self, name: str, call: Callable[[], Any]) -> Way:
        """Return a way that writes to `out`, which is poisoned first."""
        self.out.fill(0xFF)
        return Way(name, call, self.out.numpy, self.softmax)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/rows.yaml for this GPU")
    parser.add_argument("--decode", type=Path, metavar="BUNDLE", help="that of manifests/decode.yaml (default: none)")
    parser.add_argument("--calls", type=int, default=500, help="calls of a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of each way (default: %(default)s)")
    options = parser.parse_args()
    try:
        setting = Setting.of(open_bundle(options.bundle))
        decode = open_bundle(options.decode, setting.bundle.device) if options.decode else None
    except AotError as error:
        sys.exit(f"launch.py: {error}")
    print(heading(setting.bundle.device))
    print(f"softmax of float32[1, {COLS}], {options.rounds} rounds of {options.calls} calls\n")
    print(report(setting.bundle, available_ways(setting), options.calls, options.rounds))
    if decode is not None:
        print("\nflash_decode of float16 q[1, 8, 1, 128], k[1, 1, 1024, 128], in four parts: two launches\n")
        print(report(decode, several_launches(decode), options.calls // 2, options.rounds))


def report(bundle: Bundle, found: Iterator[Way], calls: int, rounds: int) -> str:
    ways = {way.name: way for way in found}
    host: dict[str, list[float]] = {name: [] for name in ways}

    def one_round(name: str) -> float:
        """Return the seconds per call until the device is done; `host` gets those before the wait."""
        call, synchronize = ways[name].call, bundle.device.synchronize
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        host[name].append((time.perf_counter() - start) / calls)
        synchronize()
        return (time.perf_counter() - start) / calls

    done = interleaved({name: partial(one_round, name) for name in ways}, rounds)
    base = median(host[BASE][1:])  # [0] is the round that was thrown away
    rows = [
        [
            name,
            *(f"{1e6 * value:.2f}" for value in (median(host[name][1:]), min(host[name][1:]), median(done[name]))),
            f"{median(host[name][1:]) / base:.2f}",
        ]
        for name in ways
    ]
    return table(("us per call", "host", "host, least", "done", f"host / {BASE}"), rows)


def available_ways(setting: Setting) -> Iterator[Way]:
    """Return every way that works here; print why others do not."""
    for make in (with_out, allocating, prepared, raw_ctypes, triton_jit, torch_add, cupy_raw_kernel, cupy_function):
        name = make.__name__
        try:
            way = make(setting)
            way.call()
            setting.bundle.device.synchronize()
            found = way.result()
        except ImportError as error:
            print(f"left out: {name}: {error}")
        except Exception as error:  # a peer may fail in any way, and the others are still worth measuring
            print(f"left out: {name}: {type(error).__name__}: {error}")
        else:
            if not np.allclose(found, way.expected, atol=1e-6):
                sys.exit(f"launch.py: {way.name} gave a wrong result")
            yield way


# This runtime


def with_out(setting: Setting) -> Way:
    softmax, x, out = setting.bundle.softmax, setting.x, setting.out
    return setting.way("aot_runtime, out=", lambda: softmax(x, out=out))


def allocating(setting: Setting) -> Way:
    softmax, x = setting.bundle.softmax, setting.x
    return Way("aot_runtime, allocating", lambda: softmax(x), lambda: softmax(x).numpy(), setting.softmax)


def prepared(setting: Setting) -> Way:
    """Launch by the driver's own call, with no dispatch and no packing."""
    device, variant = setting.bundle.device, setting.launch.variant
    launch = device.driver.prepare(
        device.index, setting.bundle.load(variant), setting.launch.grid, setting.threads, variant.lds_bytes,
        setting.kernargs,
    )  # fmt: skip
    return setting.way("driver.prepare(...).run", partial(launch.run, 0))


def raw_ctypes(setting: Setting) -> Way:
    """Launch by hand: the API's function through ctypes, with all arguments made beforehand."""
    return setting.way(BASE, raw_launches(setting.bundle, [setting.launch], [setting.kernargs]))


def raw_launches(
    bundle: Bundle, launches: Sequence[LaunchDecision], segments: Sequence[bytes], *needed: object
) -> Callable[[], None]:
    """Return the calls as raw launches. `needed` keeps the memory of their arguments alive."""
    name, library, end = {
        "cuda": ("cuLaunchKernel", "libcuda.so", 0),
        "hip": ("hipModuleLaunchKernel", "libamdhip64.so", 3),
    }[bundle.device.driver.name]
    function, keep, made = getattr(ctypes.CDLL(loaded_library(library)), name), [], []
    for launch, kernargs in zip(launches, segments, strict=True):
        segment, size = ctypes.create_string_buffer(kernargs, len(kernargs)), ctypes.c_size_t(len(kernargs))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(segment), 2, ctypes.addressof(size), end)
        variant = launch.variant
        keep.append((segment, size))
        made.append((
            ctypes.c_void_p(bundle.load(variant)), *launch.grid, variant.num_warps * variant.warp_size, 1, 1,
            variant.lds_bytes, None, None, extra,
        ))  # fmt: skip
    first, *others = made

    def call(_keep: object = (keep, needed)) -> None:
        if status := function(*first):
            raise RuntimeError(f"{name}: status {status}")
        for arguments in others:
            if status := function(*arguments):
                raise RuntimeError(f"{name}: status {status}")

    return call


def several_launches(bundle: Bundle) -> Iterator[Way]:
    """Return the ways of one call that is two launches."""
    rng, device = np.random.default_rng(0), bundle.device
    shapes = {"q": (1, 8, 1, 128), "k": (1, 1, 1024, 128), "v": (1, 1, 1024, 128)}
    host = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    p = np.exp(host["q"][0, :, 0].astype(np.float32) @ host["k"][0, 0].T.astype(np.float32) * 128**-0.5)
    expected = (p / p.sum(-1, keepdims=True) @ host["v"][0, 0].astype(np.float32))[None, :, None]
    q, k, v = (device.array(array) for array in host.values())
    out, decode = device.empty(shapes["q"], np.float16), bundle.flash_decode
    arrays = {"q": q, "k": k, "v": v, "out": out}
    absent = dict.fromkeys(tensor.name for tensor in decode.planner.op.tensors)
    scalars = dict.fromkeys(scalar.name for scalar in decode.planner.op.scalars) | {"num_splits": 4}
    decision = decode.decide(absent | {name: array.layout for name, array in arrays.items()}, scalars)
    assert len(decision.launches) == 2
    scratch = {name: device.empty(nbytes, np.uint8) for name, nbytes, _ in decision.workspaces}
    addresses = {name: array.ptr for name, array in (arrays | scratch).items()}
    segments = [kernarg_segment(launch, addresses) for launch in decision.launches]
    raw = raw_launches(bundle, decision.launches, segments, scratch)
    for name, call in (
        ("aot_runtime, out=", lambda: decode(q, k, v, num_splits=4, out=out)),
        ("aot_runtime, allocating", lambda: decode(q, k, v, num_splits=4)),
        (BASE, raw),
    ):
        out.fill(0xFF)
        found = call()
        result = (out if found is None else found).numpy()
        if not np.allclose(result, expected, atol=2e-3):
            sys.exit(f"launch.py: {name} gave a wrong result")
        yield Way(name, call, out.numpy, expected)


def loaded_library(name: str) -> str:
    """Return the path of a library that this process has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(path for path in (line.split()[-1] for line in lines) if Path(path).name.startswith(name))


# Peers


def triton_jit(setting: Setting) -> Way:
    """Launch the same kernel by Triton's JIT."""
    torch = _torch()
    sys.path.insert(0, str(ROOT))  # the kernel imports others
    spec = importlib.util.spec_from_file_location("softmax_kernel", ROOT / "kernels/rows/softmax.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = torch.from_numpy(setting.host).cuda()
    out = torch.empty_like(x)
    kernel, matrix = module.softmax_rows, module.Matrix

    def call() -> None:
        tensors = matrix(x, COLS, 1), matrix(None, 0, 0), matrix(out, COLS, 1)
        no_heat = module.Vector(None, 0)
        kernel[(1,)](*tensors, 1, COLS, 1.0, no_heat, BLOCK=COLS, ROWS=1, HAS_OPTIONS=False, num_warps=4)

    return Way("Triton's JIT, same kernel", call, lambda: out.cpu().numpy(), setting.softmax)


def torch_add(setting: Setting) -> Way:
    torch = _torch()
    x = torch.from_numpy(setting.host).cuda()
    out = torch.empty_like(x)
    return Way("torch.add, out=", partial(torch.add, x, x, out=out), lambda: out.cpu().numpy(), 2 * setting.host)


def cupy_raw_kernel(setting: Setting) -> Way:
    """Launch the same code object as a `RawKernel`."""
    import cupy

    module = cupy.RawModule(path=str(setting.code_object))
    return _cupy(setting, "cupy RawKernel, same code", module)


def cupy_function(setting: Setting) -> Way:
    """Launch the same code object as a `cupy.cuda.Function`, which a `RawKernel` wraps."""
    import cupy

    module = cupy.cuda.Module()
    module.load(setting.code_object.read_bytes())
    return _cupy(setting, "cupy.cuda.Function, same code", module)


def _cupy(setting: Setting, name: str, module: Any) -> Way:
    import cupy

    variant = setting.launch.variant
    x = cupy.asarray(setting.host)
    out = cupy.empty_like(x)
    arrays = {"x": x, "out": out}
    types = {"i32": np.int32, "i64": np.int64, "fp32": np.float32}
    arguments = tuple(
        arrays.get(arg.value, np.uint64(0))
        if arg.type.startswith("*")  # a tensor that is absent, or no scratch: null
        else types[arg.type](setting.launch.values[arg.value])
        for arg in variant.kernargs
    )
    function = module.get_function(variant.symbol)
    call = partial(function, setting.launch.grid, (setting.threads, 1, 1), arguments, shared_mem=variant.lds_bytes)
    return Way(name, call, lambda: cupy.asnumpy(out), setting.softmax)


def _torch() -> Any:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")
    return torch


if __name__ == "__main__":
    main()
