"""What MODE, and the launch's choices, change about results: each as the ISA manuals or AMD's own emulator have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from aot_emulator import Arithmetic, Numerics
from aot_emulator.isa.floats import arithmetic

from aot_runtime.errors import UnsupportedInstructionError
from tests.support.emulation.exact_floats import exactly
from tests.support.emulation.machine import ACCUMULATION, DEFAULT_MODE, Machine

FP16_OVFL = 1 << 23
KEEP_IN32, KEEP_OUT32 = 1 << 4, 1 << 5
INF, MAX = np.float32(np.inf), np.finfo(np.float32).max


def machine_with(values: dict[int, Any], mode: int = DEFAULT_MODE, arch: str = "gfx942") -> Machine:
    """A machine with float32 numbers in all lanes of vector registers; accumulation registers come after 64 others."""
    machine = Machine(mode=mode, arch=arch)
    for register, value in values.items():
        machine.v[register] = np.float32(value).view(np.uint32)
    return machine


@pytest.mark.parametrize(
    "arch, kind, largest, infinity",
    [
        ("gfx942", "fp8", 0x7F, 0x80),
        ("gfx942", "bf8", 0x7F, 0x80),
        ("gfx950", "fp8", 0x7E, 0x7F),
        ("gfx950", "bf8", 0x7B, 0x7C),
        ("gfx1201", "fp8", 0x7E, 0x7F),
        ("gfx1201", "bf8", 0x7B, 0x7C),
    ],
)
def test_infinities_to_8_bits(arch: str, kind: str, largest: int, infinity: int):
    """With FP16_OVFL, which Triton sets around conversions on gfx942, they saturate as what is too large does."""
    for mode, positive in ((DEFAULT_MODE | FP16_OVFL, largest), (DEFAULT_MODE, infinity)):
        negative = positive if positive == 0x80 else positive | 0x80  # FNUZ has one NaN
        machine = machine_with({1: INF, 2: -INF, 3: 1e30, 4: 0}, mode, arch)
        machine.execute(f"v_cvt_pk_{kind}_f32 v5, v1, v2")
        machine.execute(f"v_cvt_sr_{kind}_f32 v6, v1, v4")
        machine.execute(f"v_cvt_pk_{kind}_f32 v7, v3, v3")
        assert (machine.v[5] & 0xFFFF == positive | negative << 8).all()
        assert (machine.v[6] & 0xFF == positive).all() and (machine.v[7] & 0xFF == positive).all()


def test_fp16_keeps_infinities():
    machine = machine_with({1: INF, 2: 1e30}, DEFAULT_MODE | FP16_OVFL)
    machine.execute("v_cvt_f16_f32 v3, v1")
    machine.execute("v_cvt_f16_f32 v4, v2")
    assert (machine.v[3] & 0xFFFF == 0x7C00).all() and (machine.v[4] & 0xFFFF == 0x7BFF).all()


@pytest.mark.parametrize("text", ("v_dot2_f32_f16 v3, v1, v2, v3", "v_dot2c_f32_f16 v3, v1, v2"))
def test_dot2_flushes_denormals(text: str):
    """2**-24 and 2**-15 are denormals of fp16: zeros, unless the launch chooses otherwise."""
    for keeps, wanted in ((False, 0.0), (True, 2.0**-24 + 2.0**-15)):
        machine = Machine()
        machine.batch.numerics = Numerics(dot_keeps_denormals=keeps)
        machine.v[1], machine.v[2], machine.v[3] = 0x0200_0001, 0x3C00_3C00, 0
        machine.execute(text)
        assert (machine.v[3].view(np.float32) == wanted).all()
        machine.v[1], machine.v[3] = 0, np.float32(2.0**-140).view(np.uint32)
        machine.execute(text)
        assert (machine.v[3].view(np.float32) == (2.0**-140 if keeps else 0)).all()


def multiply(values: tuple[float, float, float], mode: int, name: str = "v_mfma_f32_32x32x2_f32") -> np.ndarray:
    """The first register of D, of matrices whose elements are all alike."""
    a, b, c = values
    machine = machine_with({0: a, 1: b, **{ACCUMULATION + i: c for i in range(16)}}, mode)
    machine.execute(f"{name} a[0:15], v0, v1, a[0:15]")
    return machine.v[ACCUMULATION].view(np.float32)


def test_denormals_of_fp32_matrices_follow_mode():
    denormal = 2.0**-130
    assert (multiply((denormal, 2.0**100, 0), DEFAULT_MODE) == 2 * 2.0**-30).all()
    flushing = DEFAULT_MODE & ~(KEEP_IN32 | KEEP_OUT32)
    assert (multiply((denormal, 2.0**100, 0), flushing) == 0).all()
    assert (multiply((0, 0, denormal), flushing) == np.float32(denormal)).all(), "C and D keep theirs"


@pytest.mark.parametrize(
    "values, plain, saturated",
    [
        ((1e30, 1e30, 0), INF, MAX),
        ((1e30, -1e30, 0), -INF, -MAX),
        ((1e19, 1e19, 3e38), INF, MAX),
        ((INF, 1, 0), INF, INF),
        ((1, 1, -INF), -INF, -INF),
    ],
)
def test_overflow_of_matrix_sums(values: tuple[float, float, float], plain: float, saturated: float):
    assert (multiply(values, DEFAULT_MODE) == plain).all()
    assert (multiply(values, DEFAULT_MODE | FP16_OVFL) == saturated).all(), "infinity only from infinity"


def test_overflow_of_integer_matrix_sums():
    for mode, wanted in ((DEFAULT_MODE, 0x7FFF_FFFF + 16 * 127 * 127 & 0xFFFF_FFFF), (FP16_OVFL, 0x7FFF_FFFF)):
        machine = Machine(mode=DEFAULT_MODE | mode)
        machine.v[0:4] = 0x7F7F_7F7F
        machine.v[ACCUMULATION : ACCUMULATION + 16] = 0x7FFF_FFFF
        machine.execute("v_mfma_i32_32x32x16_i8 a[0:15], v[0:1], v[2:3], a[0:15]")
        assert (machine.v[ACCUMULATION] == wanted).all()


def test_mixed_arithmetic_rounds_once():
    """(1 + 2**-11) + 2**-30: to fp32 first would make a tie of it, which goes to the even 1."""
    machine = machine_with({1: 1 + 2.0**-11, 2: 1, 3: 2.0**-30})
    machine.execute("v_fma_mixlo_f16 v4, v1, v2, v3")
    machine.execute("v_fma_mixhi_f16 v4, v1, v2, v3")
    assert (machine.v[4] == 0x3C01_3C01).all()


def test_fma_to_half_is_one_rounding():
    rng = np.random.default_rng(0)
    a, b, c = (np.ldexp(rng.standard_normal(2000), rng.integers(-9, 7, 2000)).astype(np.float32) for _ in range(3))
    fused = exactly(lambda a, b, c: a * b + c, np.float16)
    wanted = [fused(*values) for values in zip(a, b, c, strict=True)]
    np.testing.assert_array_equal(arithmetic.fma_to_half(a, b, c), wanted)


def test_atomic_sums_of_denormals():
    """Of memory: flushed always. Of LDS: by MODE."""
    denormal = np.float32(2.0**-140)
    for mode, kept in ((DEFAULT_MODE, True), (DEFAULT_MODE & ~KEEP_IN32, False)):
        machine = machine_with({3: denormal, 4: 0}, mode)
        machine.set_exec(1)
        address = machine.allocate(np.full(4, denormal))
        machine.v[0], machine.v[1] = address & 0xFFFF_FFFF, address >> 32
        machine.execute("global_atomic_add_f32 v[0:1], v3, off")
        assert (machine.memory.bytes_at(address, 4).view(np.float32) == 0).all()
        machine.execute("ds_write_b32 v4, v3")
        machine.execute("ds_add_f32 v4, v3")
        machine.execute("ds_read_b32 v5, v4")
        found = machine.v[5][:, 0].view(np.float32)  # two wavefronts add to what the later one wrote
        assert (found > 0).all() == kept and (found == 0).all() == (not kept)


def test_buffer_offsets_wrap_at_32_bits():
    machine = Machine()
    content = np.arange(64, dtype=np.uint32)
    address = machine.allocate(content)
    machine.set_pair(4, address)
    machine.s[6], machine.s[7] = content.nbytes, 0x0002_7000
    machine.v[1] = 0xFFFF_FFFC
    machine.execute("buffer_load_dword v2, v1, s[4:7], 0 offen offset:12")
    assert (machine.v[2] == content[2]).all()


def test_the_published_hardware_model_can_be_chosen():
    """2**15 - 2**15 + 2**-12: matrix units cut each product off below 2**-24 of the largest before they sum."""
    words = np.array([2.0**15, -(2.0**15), 2.0**-12, 0], np.float16).view(np.uint32)
    for chosen, wanted in ((Arithmetic.FLOAT64, 4 * 2.0**-12), (Arithmetic.HARDWARE, 0)):
        machine = Machine()
        machine.batch.numerics = Numerics(matrix=chosen)
        machine.v[0], machine.v[1] = words
        machine.v[2] = machine.v[3] = 0x3C00_3C00
        machine.v[ACCUMULATION : ACCUMULATION + 4] = 0
        machine.execute("v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]")
        assert (machine.v[ACCUMULATION].view(np.float32) == wanted).all()


def test_what_has_no_model_is_refused():
    machine = Machine(arch="gfx950")
    machine.batch.numerics = Numerics(matrix=Arithmetic.HARDWARE)
    with pytest.raises(UnsupportedInstructionError, match=r"Arithmetic\.HARDWARE, of which no model is known"):
        machine.execute("v_mfma_f32_16x16x32_f16 a[0:3], v[0:3], v[4:7], a[0:3]")
