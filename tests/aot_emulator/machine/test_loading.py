"""What the loader makes of code objects: code, descriptor, initial registers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

from aot_emulator import ARCHS
from aot_emulator.isa.decoding import decode
from aot_emulator.machine.loader import Kernel, Module
from aot_emulator.state.device_memory import Memory
from aot_emulator.state.float_mode import FloatMode
from aot_emulator.state.wavefronts import Batch

from aot.compile.jobs import CompiledKernel
from aot_runtime.bundle.codeobject import read_loaded_image
from tests.support.emulation.assembled import run
from tests.support.emulation.launching import compile_kernel
from tests.support.emulation.machine import every_rdna


@cache
def compiled_matmul(arch: str) -> CompiledKernel:
    constants = (("BLOCK_M", 32), ("BLOCK_N", 32), ("BLOCK_K", 32))
    signature = (("a", "*fp16"), ("b", "*fp16"), ("c", "*fp32"), ("m", "i32"), ("n", "i32"), ("k", "i32"))
    return compile_kernel("matmul_blocks", signature, constants, arch=arch).compiled


def loaded(arch: str) -> Kernel:
    compiled = compiled_matmul(arch)
    return Module(compiled.image, ARCHS[arch], Memory(1 << 20, 1 << 24)).kernel(compiled.symbol)


@every_rdna
def test_every_byte_of_the_code_is_decoded(arch: str):
    image = read_loaded_image(compiled_matmul(arch).image)
    (code,) = (segment for segment in image.segments if segment.executable)
    start, size = image.symbols["matmul_blocks"]
    start -= code.address
    instructions, pc = decode(code.data, ARCHS[arch]), start
    while pc < start + size:
        pc = instructions[pc].next_pc
    assert pc == start + size


@every_rdna
def test_the_descriptor(arch: str):
    """As many registers as the metadata says, in granules of 8; the float mode, of which gfx12 has a part; no preload."""
    kernel, metadata = loaded(arch), compiled_matmul(arch).metadata
    descriptor = kernel.descriptor
    assert metadata.vgprs <= descriptor.vector_registers < metadata.vgprs + 8
    assert kernel.program.layout.accumulation == kernel.program.layout.total == descriptor.vector_registers
    assert FloatMode.from_register(descriptor.mode) == FloatMode(), "nearest, denormals kept; clamp of NaN to 0"
    assert descriptor.preload == (0, 0) and kernel.entry(preload=True) == 0


@every_rdna
def test_where_a_workgroup_finds_its_place(arch: str):
    kernel = loaded(arch)
    batch = Batch(kernel.program.layout.total, 8, 32)
    workgroups = np.array([[x, 3, 2] for x in (5, 5, 5, 5, 6, 6, 6, 6)])
    kernel.start(batch, workgroups, 128, 1 << 32 | 64, b"", preload=True)
    assert (batch.scalars[0] == 64).all() and (batch.scalars[1] == 1).all()
    assert batch.vectors[0, 5].tolist() == list(range(32, 64)) and (batch.scalars[126] == 0xFFFFFFFF).all()
    if arch == "gfx1201":
        assert batch.scalars[108 + 9].tolist() == workgroups[:, 0].tolist()
        assert (batch.scalars[108 + 7] == (3 | 2 << 16)).all()
        assert batch.scalars[108 + 8].tolist() == [wave << 25 for wave in (0, 1, 2, 3) * 2]
    else:
        first = kernel.descriptor.user_sgprs  # the kernel asks for two coordinates
        np.testing.assert_array_equal(batch.scalars[first : first + 2], workgroups.T[:2])


def test_start_of_a_kernel_with_scratch_on_gfx90a():
    """Its resource is in the first user SGPRs, and where the wavefront's scratch begins in the last of the system's."""
    body = """s_add_u32 s0, s0, s9
s_addc_u32 s1, s1, 0
s_load_dwordx2 s[10:11], s[4:5], 0x0
v_lshlrev_b32 v1, 2, v0
buffer_store_dword v1, off, s[0:3], 0 offset:60
s_waitcnt vmcnt(0)
buffer_load_dword v2, off, s[0:3], 0 offset:60
s_waitcnt vmcnt(0) lgkmcnt(0)
global_store_dword v1, v2, s[10:11]"""
    after = run(body, np.zeros(128, np.uint32), wavefronts=2, arch="gfx90a")
    np.testing.assert_array_equal(after, 4 * np.arange(128))
