"""What gfx90a encodes and does otherwise than gfx942; MFMA's operands are in `test_mfma`."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from aot_emulator.isa.archs import ARCHS
from aot_emulator.isa.decoding import Instruction, decode
from aot_emulator.isa.disassembly import disassemble, operands_of
from aot_emulator.isa.gfx90a import MATRIX_OPCODES
from aot_emulator.isa.matrix import matrix_op
from aot_emulator.isa.memory.buffer import scratch_resource
from aot_emulator.isa.wait_counters import is_coherent, returns_value

from aot_runtime.errors import MemoryAccessError, UnsupportedInstructionError
from tests.support.emulation.machine import Machine, assemble, edge_floats


def gfx90a(**given: int) -> Machine:
    return Machine(arch="gfx90a", **given)


def decoded(text: str, arch: str = "gfx90a") -> Instruction:
    """The one instruction of a line."""
    instructions = decode(assemble(text, arch), ARCHS[arch])
    assert list(instructions) == [0], text
    return instructions[0]


# Decoding


@pytest.mark.parametrize("opcode,name", MATRIX_OPCODES.items())
def test_matrix_encodings(opcode: int, name: str):
    op = matrix_op.matrix_ops("gfx90a")[name]

    def block(letter: str, first: int, count: int) -> str:
        return f"{letter}[{first}:{first + count - 1}]" if count > 1 else f"{letter}{first}"

    d, a, b = (
        block(*given) for given in (("a", 0, op.d_registers), ("v", 2, op.a_registers), ("a", 40, op.b_registers))
    )
    text = f"{name} {d}, {a}, {b}, {d}"
    instruction = decoded(text)
    assert instruction.mnemonic == name and instruction.size == 8
    assert int.from_bytes(assemble(text, "gfx90a")[:4], "little") >> 16 & 0x7F == opcode
    words = {operand.name: (operand.words, operand.accumulation) for operand in operands_of(instruction)}
    assert words == {"vdst": (op.d_registers, True), "src0": (op.a_registers, False), "src1": (op.b_registers, True),
                     "src2": (op.d_registers, True)}  # fmt: skip
    assert disassemble(instruction) == text


@pytest.mark.parametrize("text", (
    "v_mac_f32_e32 v0, v1, v2", "v_mac_f32_e64 v0, v1, v2", "v_mad_f32 v0, v1, v2, v3", "v_mad_legacy_f32 v0, v1, v2, v3",
    "v_madmk_f32 v0, v1, 0x41200000, v2", "v_madak_f32 v0, v1, v2, 0x41200000",
    "buffer_wbinvl1", "buffer_wbinvl1_vol", "buffer_wbl2", "buffer_invl2",
    "v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[6:7]", "v_dot2c_f32_f16_e32 v0, v1, v2", "v_accvgpr_read_b32 v0, a1",
    "v_fma_f32 v0, v1, v2, v3", "v_fmac_f32_e32 v0, v1, v2", "global_atomic_add_f64 v[0:1], v[2:3], off",
    "ds_add_f64 v0, v[2:3]",
))  # fmt: skip
def test_names(text: str):
    name = text.split()[0].removesuffix("_e32").removesuffix("_e64")
    assert decoded(text).mnemonic in (name, name.removesuffix("_b32"))


def test_names_of_other_archs_stay():
    assert decoded("v_dot2c_f32_bf16 v0, v1, v2", "gfx950").mnemonic == "v_dot2c_f32_bf16"
    assert decoded("v_fmamk_f32 v0, v1, 0x41200000, v2", "gfx942").mnemonic == "v_fmamk_f32"
    assert decoded("v_mfma_f32_16x16x32_f16 v[0:3], v[4:7], v[8:11], v[0:3]", "gfx950").mnemonic.endswith("x32_f16")


@pytest.mark.parametrize("plain,returning,load", (
    ("global_atomic_add v[2:3], v1, off", "global_atomic_add v0, v[2:3], v1, off", "global_load_dword v1, v[2:3], off"),
    ("flat_atomic_add v[2:3], v1", "flat_atomic_add v0, v[2:3], v1", "flat_load_dword v1, v[2:3]"),
    ("buffer_atomic_add v1, v2, s[4:7], 0 offen",) * 2 + ("buffer_load_dword v1, v2, s[4:7], 0 offen",),
))  # fmt: skip
def test_cache_policy(plain: str, returning: str, load: str):
    assert not returns_value(decoded(plain)) and returns_value(decoded(f"{returning} glc"))
    instruction = decoded(f"{load} glc slc")
    assert instruction.field("glc") and instruction.field("slc") and not instruction.field("scc")
    assert is_coherent(instruction) and "glc slc" in disassemble(instruction)


def test_scaled_matrix_instructions_are_told_from_what_precedes_others():
    """The tables take any eight bytes before v_mfma_…_f8f6f4 for the first half of its scaled form."""
    code = assemble(
        "v_add3_u32 v0, v1, v2, v3\nv_mfma_f32_16x16x128_f8f6f4 v[0:3], v[4:11], v[12:19], v[0:3]", "gfx950"
    )
    names = [instruction.mnemonic for instruction in decode(code, ARCHS["gfx950"]).values()]
    assert names == ["v_add3_u32", "v_mfma_f32_16x16x128_f8f6f4"]


# Arithmetic


@pytest.mark.parametrize("text,order", (
    ("v_mad_f32 v2, v8, v9, v10", (0, 1, 2)), ("v_mac_f32 v2, v8, v9", (0, 1, 3)),
    ("v_madmk_f32 v2, v8, 0x3f99999a, v9", (0, 4, 1)), ("v_madak_f32 v2, v8, v9, 0x3f99999a", (0, 1, 4)),
))  # fmt: skip
def test_multiply_and_add(text: str, order: tuple[int, int, int]):
    """The product is rounded, and denormals are zeros, whatever MODE says."""
    machine = gfx90a()
    values = np.stack([*edge_floats(0, (4, 4, 64), np.float32), np.full((4, 64), 1.2, np.float32)])
    values[:3, 0, 0] = 1 + 2.0**-12, 1 + 2.0**-12, -1 - 2.0**-11  # 0 unless fused
    values[:3, 0, 1] = 2.0**-126, 0.5, 0.0  # the product is denormal
    machine.v[8:11], machine.v[2] = values[:3].view(np.uint32), values[3].view(np.uint32)
    machine.execute(text)
    tiny = np.finfo(np.float32).tiny

    def flushed(x: np.ndarray) -> np.ndarray:
        return np.where(np.abs(x) < tiny, np.copysign(np.float32(0), x), x)

    with np.errstate(all="ignore"):
        a, b, c = (flushed(values[i]) for i in order)
        want = flushed(flushed(a * b) + c)
    np.testing.assert_array_equal(machine.v[2].view(np.float32), want)
    if order == (0, 1, 2):
        assert machine.v[2, 0, 0] == 0 and machine.v[2, 0, 1] == 0


def test_returning_atomic():
    machine = gfx90a()
    address = machine.allocate(np.arange(256, dtype=np.uint32))
    machine.set_pair(4, address)
    machine.v[1] = np.arange(256, dtype=np.uint32).reshape(4, 64) * 4
    machine.v[2] = 7
    machine.v[3] = machine.v[4] = 99
    machine.execute("global_atomic_add v3, v1, v2, s[4:5] glc", "global_atomic_add v1, v2, s[4:5]")
    np.testing.assert_array_equal(machine.v[3].ravel(), np.arange(256))
    np.testing.assert_array_equal(machine.read(address, np.zeros(256, np.uint32)), np.arange(256) + 14)


def test_loads_to_lds_without_a_dword_are_refused():
    with pytest.raises(UnsupportedInstructionError, match="less than a dword"):
        gfx90a().execute("buffer_load_ubyte v1, s[4:7], 0 offen lds")


@pytest.mark.parametrize("text", ("buffer_wbinvl1_vol", "buffer_wbl2", "buffer_invl2"))
def test_caches_are_none(text: str):
    before = gfx90a()
    after = gfx90a().execute(text)
    np.testing.assert_array_equal(before.v, after.v)


# Scratch


def with_scratch(nbytes: int = 64) -> Machine:
    machine = gfx90a(scratch_bytes=nbytes)
    for register, word in enumerate(scratch_resource(nbytes, 64)):
        machine.s[register] = word
    return machine


def test_scratch_by_buffer_instructions():
    machine = with_scratch()
    machine.v[2:6] = np.random.default_rng(0).integers(0, 1 << 32, (4, 4, 64), np.uint32)
    machine.v[1] = np.arange(64, dtype=np.uint32) % 8 * 4
    machine.s[32] = 2 * 4 * 64  # two dwords of every lane
    machine.execute(
        "buffer_store_dwordx4 v[2:5], off, s[0:3], 0 offset:16",
        "buffer_load_dword v8, off, s[0:3], 0 offset:20",
        "buffer_load_ubyte v9, off, s[0:3], s32 offset:17",
        "buffer_store_short v4, v1, s[0:3], s32 offen offset:24",
        "buffer_load_dword v10, v1, s[0:3], 0 offen offset:32",
    )
    np.testing.assert_array_equal(machine.v[8], machine.v[3])
    np.testing.assert_array_equal(machine.v[9], machine.v[4] >> np.uint32(8) & np.uint32(255))
    np.testing.assert_array_equal(machine.v[10] & 0xFFFF, machine.v[4] & 0xFFFF)
    # The scratch of a lane is its own.
    lanes = machine.access.scratch.reshape(4, 64, machine.access.scratch_stride)
    np.testing.assert_array_equal(lanes[..., 16:32].view(np.uint32), np.moveaxis(machine.v[2:6], 0, -1))


def test_scratch_has_an_end():
    machine = with_scratch()
    with pytest.raises(MemoryAccessError, match="64 bytes of scratch of a lane"):
        machine.execute("buffer_load_dwordx2 v[2:3], off, s[0:3], 0 offset:60")


def test_other_swizzled_buffers_are_refused():
    for register, value in ((0, 256), (1, 1 << 31 | 4 << 16), (32, 12)):
        machine = with_scratch()
        machine.s[32] = 0
        machine.s[register] = value
        with pytest.raises(UnsupportedInstructionError, match=r"swizzle|scratch"):
            machine.execute("buffer_load_dword v2, off, s[0:3], s32")
    machine = Machine(arch="gfx942")
    for register, word in enumerate(scratch_resource(64, 64)):
        machine.s[register] = word
    with pytest.raises(UnsupportedInstructionError, match=r"swizzle|scratch"):
        machine.execute("buffer_load_dword v2, off, s[0:3], 0")


def test_scratch_by_scratch_instructions():
    machine = gfx90a()
    machine.v[1] = np.arange(64, dtype=np.uint32) % 8 * 4
    machine.v[2] = np.arange(256, dtype=np.uint32).reshape(4, 64)
    machine.s[6] = 8
    machine.execute("scratch_store_dword v1, v2, off offset:16", "scratch_load_dword v3, v1, off offset:16",
                    "scratch_store_dword off, v2, s6", "scratch_load_dword v4, off, s6")  # fmt: skip
    np.testing.assert_array_equal(machine.v[3], machine.v[2])
    np.testing.assert_array_equal(machine.v[4], machine.v[2])


def test_start_of_a_kernel_with_scratch():
    """The resource is in the first user SGPRs, and where the wavefront's scratch begins in the last of the system's."""
    pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")
    from aot_emulator.machine.loader import Module
    from aot_emulator.state.device_memory import Memory
    from aot_emulator.state.wavefronts import UNSET, Batch

    from tests.support.emulation.launching import compile_kernel

    signature = (("a", "*bf16"), ("b", "*bf16"), ("c", "*fp32"))
    constants = (("M", 16), ("N", 16), ("K", 256), ("PRECISION", "ieee"), ("OUT", "float"))
    options = (("num_warps", 1), ("matrix_instr_nonkdim", 4))
    compiled = compile_kernel("dot", signature, constants, options, (), "gfx90a", "kernels/more_kernels.py").compiled
    assert compiled.metadata.scratch_bytes > 0, "the kernel spills no more: make it larger"
    kernel = Module(compiled.image, ARCHS["gfx90a"], Memory(1 << 32, 1 << 30)).kernel(compiled.symbol)
    batch = Batch(4, 2, 64)
    segment = struct.pack("<14I", *range(14))
    kernel.start(batch, np.array([[5, 6, 7], [8, 9, 10]]), 64, 1 << 40, segment, True)
    users = kernel.descriptor.user_sgprs
    scratch = kernel.metadata.scratch_bytes
    assert batch.scalars[:4, 0].tolist() == [0, 1 << 31, 64 * scratch, 1 << 23 | 3 << 21 | 1 << 19]
    assert batch.scalars[4:6, 0].tolist() == [0, 256]
    first, count = kernel.descriptor.preload
    assert batch.scalars[6 : 6 + count, 0].tolist() == list(range(first, first + count)) and count > 0
    ids = sum(kernel.descriptor.workgroup_ids)
    assert batch.scalars[users, 1] == 8 and batch.scalars[users + ids, 1] == 0 != UNSET
