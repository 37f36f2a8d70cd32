"""Programs as other people write them: Triton's JIT on torch's CPU tensors, and a kernel that prints."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from aot.compile.kernargs import kernarg_bytes, kernarg_layout
from tests.support.emulation.launching import compile_kernel

from .programs import emulate, script
from .session import inside

pytestmark = pytest.mark.on("rocm")

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
    import ctypes
    import sys
    sys.path[:0] = [sys.argv[1]]
    import torch
    import triton
    from triton.backends.amd.driver import HIPDriver, HIPLauncher, HIPUtils
    from kernel import softmax_kernel

    class Driver(HIPDriver):  # torch has no HIP here, so it is not asked for the device and the stream
        def __init__(self):
            self.utils, self.launcher_cls = HIPUtils(), HIPLauncher
            self.get_current_device = lambda: 0
            self.set_current_device = lambda device: None
            self.get_current_stream = lambda device: 0
            self.get_device_capability = lambda device=0: (9, 4)

    class OnDevice:
        def __init__(self, tensor):
            self.tensor, self.dtype, self.place = tensor.contiguous(), tensor.dtype, ctypes.c_void_p()
            assert hip.hipMalloc(ctypes.byref(self.place), ctypes.c_size_t(self.nbytes)) == 0
            self.copy(self.place, ctypes.c_void_p(self.tensor.data_ptr()), 1)
        def copy(self, to, source, kind):
            assert hip.hipMemcpy(to, source, ctypes.c_size_t(self.nbytes), kind) == 0
        @property
        def nbytes(self):
            return self.tensor.numel() * self.tensor.element_size()
        def data_ptr(self):
            return self.place.value
        def cpu(self):
            self.copy(ctypes.c_void_p(self.tensor.data_ptr()), self.place, 2)
            return self.tensor

    hip = ctypes.CDLL(sys.argv[2])
    triton.runtime.driver.set_active(Driver())
    torch.manual_seed(1)
    given = torch.randn(5, 300, dtype=torch.float16)
    x, out = OnDevice(given), OnDevice(torch.empty_like(given))
    softmax_kernel[(5,)](out, x, given.stride(0), given.stride(0), given.shape[1], BLOCK_SIZE=512)
    torch.testing.assert_close(out.cpu(), torch.softmax(given, 1))
    print(triton.runtime.driver.active.get_current_target().arch, "agrees with torch")
"""


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(("device", "arch"), [("mi300x", "gfx942"), ("8060s", "gfx1151")])
def test_triton_on_tensors_of_torch(device: str, arch: str, tmp_path: Path):
    (tmp_path / "kernel.py").write_text(SOFTMAX)
    (tmp_path / "libamdhip64.so").symlink_to(inside().hip)  # which hipGetProcAddress looks for
    variables = {"TRITON_LIBHIP_PATH": str(inside().hip), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = emulate(script(ON_TORCH, tmp_path, inside().hip, more=(tmp_path,)), "-d", device, "--strict", **variables)
    assert done.output == f"{arch} agrees with torch\n", done.output + done.errors


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
