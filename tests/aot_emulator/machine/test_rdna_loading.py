"""What the loader makes of code objects of RDNA: code, descriptor, initial registers."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

from aot_emulator import ARCHS
from aot_emulator.isa.decoding import decode
from aot_emulator.machine.loader import Module
from aot_emulator.state.device_memory import Memory
from aot_emulator.state.float_mode import FloatMode
from aot_emulator.state.wavefronts import Batch

from aot.compile.jobs import CompiledKernel
from aot_runtime.bundle.codeobject import read_loaded_image
from tests.support.emulation.launching import compile_kernel
from tests.support.emulation.registers import RDNA

every_rdna = pytest.mark.parametrize("arch", RDNA)


@cache
def compiled_matmul(arch: str) -> CompiledKernel:
    constants = (("BLOCK_M", 64), ("BLOCK_N", 64), ("BLOCK_K", 32), ("SPLIT_K", 1))
    signature = (("a", "*fp16"), ("b", "*fp16"), ("c", "*fp32"), ("m", "i32"), ("n", "i32"), ("k", "i32"))
    return compile_kernel("matmul", signature, constants, arch=arch).compiled


@every_rdna
def test_every_byte_of_the_code_is_decoded(arch: str):
    image = read_loaded_image(compiled_matmul(arch).image)
    (code,) = (segment for segment in image.segments if segment.executable)
    start, size = image.symbols["matmul"]
    start -= code.address
    instructions = decode(code.data, ARCHS[arch])
    pc = start
    while pc < start + size:
        pc = instructions[pc].next_pc
    assert pc == start + size


@every_rdna
def test_the_descriptor(arch: str):
    """As many registers as the metadata says, in granules of 8; the float mode, of which gfx12 has a part; no preload."""
    compiled = compiled_matmul(arch)
    kernel = Module(compiled.image, ARCHS[arch], Memory(1 << 20, 1 << 24)).kernel(compiled.symbol)
    descriptor, metadata = kernel.descriptor, compiled.metadata
    assert metadata.vgprs <= descriptor.vector_registers < metadata.vgprs + 8
    assert kernel.program.layout.accumulation == kernel.program.layout.total == descriptor.vector_registers
    mode = FloatMode.from_register(descriptor.mode)
    assert mode == FloatMode(), "nearest, denormals kept; clamp of NaN to 0"
    assert descriptor.preload == (0, 0) and kernel.entry(preload=True) == 0


@every_rdna
def test_where_a_workgroup_finds_its_place(arch: str):
    compiled = compiled_matmul(arch)
    kernel = Module(compiled.image, ARCHS[arch], Memory(1 << 20, 1 << 24)).kernel(compiled.symbol)
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
        first = kernel.descriptor.user_sgprs
        np.testing.assert_array_equal(batch.scalars[first : first + 3], workgroups.T)
