"""Kernels given as assembly text: assembled, linked, and launched through the driver."""

from __future__ import annotations

import struct
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from aot_runtime.drivers.emulator import EmulatorDriver, Options

VECTORS = 64
"""Ordinary vector registers; there are as many accumulation registers."""
_METADATA = """
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--gfx942
amdhsa.kernels:
  - .name: test
    .symbol: test.kd
    .kernarg_segment_size: {kernarg_bytes}
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds_bytes}
    .private_segment_fixed_size: {scratch_bytes}
    .wavefront_size: 64
    .sgpr_count: 32
    .vgpr_count: 128
    .agpr_count: 64
    .max_flat_workgroup_size: 1024
    .args: {arguments}
.end_amdgpu_metadata
"""
_KERNEL = """
.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
.text
.globl test
.p2align 8
.type test,@function
test:
{body}
s_endpgm
.Lend:
.size test, .Lend-test
.rodata
.p2align 6
.amdhsa_kernel test
  .amdhsa_group_segment_fixed_size {lds_bytes}
  .amdhsa_private_segment_fixed_size {scratch_bytes}
  .amdhsa_kernarg_size {kernarg_bytes}
  .amdhsa_user_sgpr_count 2
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_next_free_vgpr {vectors}
  .amdhsa_next_free_sgpr 32
  .amdhsa_accum_offset {ordinary}
.end_amdhsa_kernel
"""


@cache
def assemble_kernel(body: str, pointers: int = 1, lds_bytes: int = 0, scratch_bytes: int = 0) -> bytes:
    """A gfx942 code object with the kernel `test`: s[0:1] points to its arguments, s2 is the workgroup, v0 the thread."""
    compiler = pytest.importorskip("triton.backends.amd.compiler", reason="assembling needs the extra `build`")
    arguments = "".join(
        f"\n      - {{.offset: {8 * i}, .size: 8, .value_kind: global_buffer, .address_space: global}}"
        for i in range(pointers)
    )
    values = {"lds_bytes": lds_bytes, "scratch_bytes": scratch_bytes, "kernarg_bytes": 8 * pointers, "body": body,
              "vectors": 2 * VECTORS, "ordinary": VECTORS, "arguments": arguments or "[]"}  # fmt: skip
    unlinked = compiler.assemble_amdgcn((_KERNEL + _METADATA).format(**values), "gfx942", "")
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.o"), Path(folder, "out.hsaco")
        source.write_bytes(unlinked)
        compiler.amd.link_hsaco(str(source), str(target))
        return target.read_bytes()


def run_assembly(
    body: str,
    *arrays: np.ndarray | int,
    wavefronts: int = 1,
    workgroups: int = 1,
    lds_bytes: int = 0,
    scratch_bytes: int = 0,
    options: Options | None = None,
) -> list[np.ndarray]:
    """Run a kernel's lines; returns the arrays after it. An int stands for so many bytes that nothing has written."""
    driver = EmulatorDriver(options or Options(strict=True))
    addresses = []
    for array in arrays:
        address = driver.allocate_now(0, array if isinstance(array, int) else array.nbytes)
        if not isinstance(array, int):
            driver.copy_to_device(0, address, array.ctypes.data, array.nbytes, 0)
        addresses.append(address)
    image = assemble_kernel(body, len(arrays), lds_bytes, scratch_bytes)
    function = driver.get_function(0, driver.load_module(0, image), "test", 0)
    kernargs = struct.pack(f"<{len(arrays)}Q", *addresses)
    driver.prepare(0, function, (workgroups, 1, 1), 64 * wavefronts, 0, kernargs).run(0)
    results = [np.empty_like(array) for array in arrays if not isinstance(array, int)]
    given = [address for address, array in zip(addresses, arrays, strict=True) if not isinstance(array, int)]
    for result, address in zip(results, given, strict=True):
        driver.copy_to_host(0, result.ctypes.data, address, result.nbytes, 0)
    return results
