"""Kernels given as assembly text: whole code objects, made with LLVM's assembler and linker, and run."""

from __future__ import annotations

import struct
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from aot_emulator import ARCHS, EmulatorDriver, Options, Order, Statistics

LDS_BYTES, VECTORS, SCALARS, ACCUMULATION = 4096, 64, 32, 64
_DESCRIPTOR = f"""
.rodata
.p2align 6
.amdhsa_kernel kernel
  .amdhsa_group_segment_fixed_size {LDS_BYTES}
  .amdhsa_private_segment_fixed_size 64
  .amdhsa_enable_private_segment 1
  .amdhsa_user_sgpr_count 2
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_next_free_vgpr {VECTORS + ACCUMULATION}
  .amdhsa_next_free_sgpr {SCALARS}
  %s
.end_amdhsa_kernel
"""
_OF_ISA = {"cdna": f".amdhsa_accum_offset {VECTORS}"}
_METADATA = """
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: kernel
    .symbol: kernel.kd
    .kernarg_segment_size: 16
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: 64
    .kernarg_segment_align: 8
    .wavefront_size: {lanes}
    .sgpr_count: {scalars}
    .vgpr_count: {vectors}
    .max_flat_workgroup_size: 1024
    .args:
      - {{.name: input, .size: 8, .offset: 0, .value_kind: global_buffer, .address_space: global}}
      - {{.name: output, .size: 8, .offset: 8, .value_kind: global_buffer, .address_space: global}}
...
.end_amdgpu_metadata
"""


@cache
def link(lines: tuple[str, ...], arch: str = "gfx942") -> bytes:
    """A code object with one kernel of these instructions; it ends behind them."""
    compiler = pytest.importorskip("triton.backends.amd.compiler", reason="assembling needs the extra `build`")
    lanes, descriptor = ARCHS[arch].lanes, _DESCRIPTOR % _OF_ISA.get(ARCHS[arch].isa, ".amdhsa_wavefront_size32 1")
    metadata = _METADATA.format(lds=LDS_BYTES, scalars=SCALARS, vectors=VECTORS + ACCUMULATION, lanes=lanes)
    text = "\n".join(
        [f'.amdgcn_target "amdgcn-amd-amdhsa--{arch}"', ".text", ".globl kernel", ".p2align 8",
         ".type kernel,@function", "kernel:", *lines, "s_endpgm", "end:", ".size kernel, end-kernel", descriptor,
         metadata]
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "in", Path(folder) / "out"
        before.write_bytes(compiler.assemble_amdgcn(text, arch, ""))
        compiler.amd.link_hsaco(str(before), str(after))
        return after.read_bytes()


@dataclass(frozen=True)
class Assembled:
    """What is there after a launch. input, output: uint32."""

    driver: EmulatorDriver
    threads: int
    input: np.ndarray
    output: np.ndarray


def assembled(
    lines: tuple[str, ...],
    options: Options,
    wavefronts: int = 2,
    workgroups: int = 1,
    input_bytes: int = 4096,
    output_bytes: int = 4096,
    dynamic_lds_bytes: int = 0,
) -> Assembled:
    """Run a kernel on pointers to an input that holds random bytes and an output that was never written."""
    driver = EmulatorDriver(options)
    content = np.random.default_rng(0).integers(0, 256, input_bytes, np.uint8)
    addresses = [driver.allocate_now(0, nbytes) for nbytes in (input_bytes, output_bytes)]
    driver.copy_to_device(0, addresses[0], content.ctypes.data, content.nbytes, 0)
    kernel = driver.get_function(0, driver.load_module(0, link(lines)), "kernel", dynamic_lds_bytes)
    block = 64 * wavefronts
    kernargs = struct.pack("<QQ", *addresses)
    driver.prepare(0, kernel, (workgroups, 1, 1), block, dynamic_lds_bytes, kernargs).run(0)
    output = np.empty(output_bytes, np.uint8)
    driver.copy_to_host(0, output.ctypes.data, addresses[1], output.nbytes, 0)
    whole = input_bytes // 4 * 4
    return Assembled(driver, block * workgroups, content[:whole].view(np.uint32), output.view(np.uint32))


def counted(
    *lines: str, workgroups: int = 1, wavefronts: int = 1, profile: bool = True, order: Order = Order.LOCKSTEP
) -> Statistics:
    """What a launch did that has the address of 64 KiB in s[0:1], which a scalar load and a wait have put there."""
    prologue = ("s_load_dwordx2 s[0:1], s[0:1], 0x0", "s_waitcnt lgkmcnt(0)")
    launch = {"workgroups": workgroups, "wavefronts": wavefronts, "input_bytes": 1 << 16, "dynamic_lds_bytes": 8192}
    return assembled((*prologue, *lines), Options(profile=profile, order=order), **launch).driver.last
