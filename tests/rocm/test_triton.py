"""Triton's own JIT and HIP driver, unmodified, on emulated GPUs; and a kernel that prints."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from aot.compile.kernargs import kernarg_bytes, kernarg_layout
from tests.support.emulation.launching import compile_kernel

from .programs import Done, emulate, script
from .session import inside

pytestmark = pytest.mark.on("rocm")

DRIVER = """
    import ctypes
    import sys
    sys.path[:0] = [sys.argv[1]]
    hip = ctypes.CDLL(sys.argv[2])
    import numpy as np
    import triton
    from triton.backends.amd.driver import HIPDriver, HIPLauncher, HIPUtils

    class Driver(HIPDriver):  # there is no torch with HIP, which tells the device and the stream
        def __init__(self):
            self.utils, self.launcher_cls = HIPUtils(), HIPLauncher
            self.get_current_device = lambda: 0
            self.set_current_device = lambda device: None
            self.get_current_stream = lambda device: 0
            self.get_device_capability = lambda device=0: (9, 4)

    class OnDevice:
        def __init__(self, array, dtype):
            self.array, self.dtype, self.place = array, dtype, ctypes.c_void_p()
            assert hip.hipMalloc(ctypes.byref(self.place), ctypes.c_size_t(array.nbytes)) == 0
            self.copy(self.place, self.address, 1)
        def copy(self, to, source, kind):
            assert hip.hipMemcpy(to, source, ctypes.c_size_t(self.array.nbytes), kind) == 0
        @property
        def address(self):
            return ctypes.c_void_p(self.array.ctypes.data)
        def data_ptr(self):
            return self.place.value
        def host(self):
            self.copy(self.address, self.place, 2)
            return self.array

    triton.runtime.driver.set_active(Driver())
    arch = triton.runtime.driver.active.get_current_target().arch
"""
ADD = """
import triton
import triton.language as tl

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)
"""
ON_NUMPY = """
    from kernel import add
    x, y, out = (np.random.default_rng(seed).standard_normal(1000).astype(np.float32) for seed in range(3))
    tensors = [OnDevice(array, "fp32") for array in (x, y, out)]
    add[(4,)](*tensors, 1000, BLOCK=256)
    assert (tensors[2].host() == x + y).all()
    print(arch, "is right")
"""
SOFTMAX = """
import triton
import triton.language as tl

@triton.jit
def softmax_kernel(output_ptr, input_ptr, input_row_stride, output_row_stride, n_cols, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK_SIZE)
    values = tl.load(input_ptr + row * input_row_stride + columns, mask=columns < n_cols, other=-float("inf"))
    numerator = tl.exp(values - tl.max(values, axis=0))
    out = output_ptr + row * output_row_stride + columns
    tl.store(out, numerator / tl.sum(numerator, axis=0), mask=columns < n_cols)
"""
ON_TORCH = """
    import torch
    from kernel import softmax_kernel
    torch.manual_seed(1)
    given = torch.randn(5, 300, dtype=torch.float16)
    x, out = (OnDevice(tensor.numpy(), tensor.dtype) for tensor in (given, torch.empty_like(given)))
    softmax_kernel[(5,)](out, x, given.stride(0), given.stride(0), given.shape[1], BLOCK_SIZE=512)
    torch.testing.assert_close(torch.from_numpy(out.host()), torch.softmax(given, 1))
    print(arch, "is right")
"""


def run(device: str, kernel: str, program: str, tmp_path: Path, **more: str) -> Done:
    """Run a program that imports kernels from `kernel`, in strict mode."""
    (tmp_path / "kernel.py").write_text(kernel)
    (tmp_path / "libamdhip64.so").symlink_to(inside().hip)  # which hipGetProcAddress looks for
    variables = {"TRITON_LIBHIP_PATH": str(inside().hip), "TRITON_CACHE_DIR": str(tmp_path / "cache"), **more}
    command = script(DRIVER + program, tmp_path, inside().hip, more=(tmp_path,))
    return emulate(command, "-d", device, "--strict", **variables)


@pytest.mark.parametrize(("device", "arch"), [("mi300x", "gfx942"), ("rx7900xtx", "gfx1100")])
def test_a_kernel_is_compiled_and_launched(device: str, arch: str, tmp_path: Path):
    done = run(device, ADD, ON_NUMPY, tmp_path)
    assert done.output == f"{arch} is right\n", done.output + done.errors


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(("device", "arch"), [("mi300x", "gfx942"), ("8060s", "gfx1151")])
def test_tensors_of_torch(device: str, arch: str, tmp_path: Path):
    done = run(device, SOFTMAX, ON_TORCH, tmp_path)
    assert done.output == f"{arch} is right\n", done.output + done.errors


PRINTS = """
    import struct
    import sys
    from aot_runtime.device.drivers import open_driver
    driver = open_driver("hip")
    function = driver.get_function(0, driver.load_module(0, open(sys.argv[1], "rb").read()), sys.argv[2], 0)
    address = driver.allocate_now(0, 4096)
    driver.fill(0, address, 0, 4096, 0)
    kernargs = struct.pack("<Q", address).ljust(int(sys.argv[4]), bytes(1))
    driver.prepare(0, function, (1, 1, 1), int(sys.argv[3]), 0, kernargs).run(0)
    driver.synchronize(0, 0)
    print("the end", flush=True)
"""


def test_a_kernel_prints(tmp_path: Path):
    """By HIP's own calls of the host, for which the kernel waits while the program's thread serves them."""
    kernel = compile_kernel("printing", (("x", "*fp32"),), (("BLOCK", 64),))
    compiled, nbytes = kernel.compiled, kernarg_bytes(kernarg_layout(kernel.signature))
    (tmp_path / "code").write_bytes(compiled.image)
    threads = compiled.num_warps * compiled.warp_size
    done = emulate(script(PRINTS, tmp_path / "code", compiled.symbol, str(threads), str(nbytes)))
    lines = done.output.splitlines()
    assert "the end" in lines, done.output + done.errors
    assert sum(bool(re.match(r"pid \(0, 0, 0\) idx \(\s*\d+\) x: 0\.0", line)) for line in lines) >= 64, lines[:3]
