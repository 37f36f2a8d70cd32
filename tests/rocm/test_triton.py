"""Triton's own JIT and HIP driver, unmodified, compile and launch a kernel on an emulated GPU, in strict mode too."""

from __future__ import annotations

from pathlib import Path

import pytest

from .programs import emulate, script
from .session import inside

pytestmark = pytest.mark.on("rocm")

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)
"""
PROGRAM = """
    import ctypes
    import sys
    import numpy as np
    sys.path[:0] = [sys.argv[1]]
    hip = ctypes.CDLL(sys.argv[2])
    import triton
    from triton.backends.amd.driver import HIPDriver, HIPLauncher, HIPUtils
    from kernel import add

    class Driver(HIPDriver):  # without torch, which tells the device and the stream
        def __init__(self):
            self.utils, self.launcher_cls = HIPUtils(), HIPLauncher
            self.get_current_device = lambda: 0
            self.set_current_device = lambda device: None
            self.get_current_stream = lambda device: 0
            self.get_device_capability = lambda device=0: (9, 4)

    class Tensor:
        dtype = "fp32"
        def __init__(self, array):
            self.array, self.pointer = array, ctypes.c_void_p()
            assert hip.hipMalloc(ctypes.byref(self.pointer), ctypes.c_size_t(array.nbytes)) == 0
            self.copy(self.pointer, array.ctypes.data, 1)
        def copy(self, to, source, kind):
            nbytes = ctypes.c_size_t(self.array.nbytes)
            assert hip.hipMemcpy(ctypes.c_void_p(getattr(to, "value", to)), ctypes.c_void_p(source), nbytes, kind) == 0
        def data_ptr(self):
            return self.pointer.value
        def host(self):
            self.copy(self.array.ctypes.data, self.pointer.value, 2)
            return self.array

    triton.runtime.driver.set_active(Driver())
    x, y, out = (np.random.default_rng(seed).standard_normal(1000).astype(np.float32) for seed in range(3))
    tensors = [Tensor(array) for array in (x, y, out)]
    add[(4,)](*tensors, 1000, BLOCK=256)
    assert hip.hipDeviceSynchronize() == 0
    print(triton.runtime.driver.active.get_current_target().arch, (tensors[2].host() == x + y).all())
"""


@pytest.mark.parametrize(("device", "arch"), [("mi300x", "gfx942"), ("rx7900xtx", "gfx1100")])
def test_a_kernel_is_compiled_and_launched(device: str, arch: str, tmp_path: Path):
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "libamdhip64.so").symlink_to(inside().hip)  # which hipGetProcAddress looks for
    variables = {"TRITON_LIBHIP_PATH": str(inside().hip), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = emulate(script(PROGRAM, tmp_path, inside().hip, more=(tmp_path,)), "-d", device, "--strict", **variables)
    assert done.output.split() == [arch, "True"], done.output + done.errors
