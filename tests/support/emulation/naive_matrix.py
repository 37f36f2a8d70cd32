"""Matrix instructions by naive loops over the layouts of the ISA documents.

Elements are placed and fetched one at a time, by formulas written down separately from the executor's reshapes, with
ml_dtypes for the codes. Inputs are small integers, so that every sum is exact in every arithmetic.
"""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np

from aot_emulator import Arithmetic, Numerics
from aot_emulator.isa.matrix import matrix_op
from tests.support.emulation.machine import ACCUMULATION, DEFAULT_MODE, Machine
from tests.support.emulation.values import WAVE64, arch_of, block, is_rdna

ARCHES = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", WAVE64)


def ops_of(arch):
    found = arch_of(arch)
    return matrix_op.matrix_ops(found.name, found.wave64)


EVERY = [(arch, name) for arch in ARCHES for name in sorted(ops_of(arch))]
PLAIN = [(arch, name) for arch, name in EVERY if "f8f6f4" not in name]
FLOATS = [(arch, name) for arch, name in PLAIN if ops_of(arch)[name].a.fmt]
INTEGERS = [(arch, name) for arch, name in PLAIN if not ops_of(arch)[name].a.fmt]
WAVES = 3

F8F6F4_TYPES = dict(enumerate([
    (8, ml_dtypes.float8_e4m3fn), (8, ml_dtypes.float8_e5m2), (6, ml_dtypes.float6_e2m3fn), (6, ml_dtypes.float6_e3m2fn),
    (4, ml_dtypes.float4_e2m1fn)]))  # fmt: skip
_TYPES = {"f64": np.float64, "f32": np.float32, "xf32": np.float32, "i32": np.int32, "f16": np.float16,
          "bf16": ml_dtypes.bfloat16}  # fmt: skip


def code_type(arch, name):
    """(bits, numpy dtype) of the elements that a type name means on an arch."""
    if name in ("fp8", "bf8"):
        flavour = "fnuz" if arch == "gfx942" else {"fp8": "fn", "bf8": ""}[name]
        return 8, getattr(ml_dtypes, {"fp8": "float8_e4m3", "bf8": "float8_e5m2"}[name] + flavour)
    if name in ("iu4", "iu8", "i8"):
        return int(name[-1]), np.int64
    return np.dtype(_TYPES[name]).itemsize * 8, _TYPES[name]


# Where elements are


def input_places(op, size, bits, i, k, block):
    """The (lane, slot) pairs that hold row i, column k of A; B likewise with its column for i."""
    if op.family == "wmma11":
        return [(i + first, k) for first in range(0, op.lanes, 16)]
    if op.family == "wmma12":
        half = op.k // 2
        return [(16 * (k // half) + i, k % half)]
    lanes_apart = size * op.blocks
    run = op.k * lanes_apart // 64
    if bits == 8 and run > 16:
        return [(k // 16 % (64 // size) * size + i, k // (1024 // size) * 16 + k % 16)]
    return [(k // run * lanes_apart + block * size + i, k % run)]


def output_place(op, i, j, block):
    """The (lane, element) of row i, column j of D."""
    if op.family == "wmma11":
        rows = op.lanes // 16
        return 16 * (i % rows) + j, i // rows
    if op.family == "wmma12":
        return 16 * (i // 8) + j, i % 8
    if op.d.bits == 64:
        return (16 * i + 4 * block + j, 0) if op.m == 4 else (16 * (i % 4) + j, i // 4)
    if op.m == 4:
        return 4 * block + j, i
    if op.m == 16:
        return 16 * (i // 4) + j, 4 * block + i % 4
    return 32 * (i // 4 % 2) + j, 16 * block + 4 * (i // 8) + i % 4


@functools.cache
def all_input_places(op, size, bits):
    """Return the lanes and the bits in them where elements [block, i, k] begin, for each copy of an element."""
    grid = [
        [[input_places(op, size, bits, i, k, block) for k in range(op.k)] for i in range(size)]
        for block in range(op.blocks)
    ]
    return np.moveaxis(np.array(grid) * [1, bits], (3, 4), (0, 1))


@functools.cache
def all_output_places(op, high=False):
    """Return the lanes and the bits in them where elements [block, i, j] begin; each is in one register on gfx11."""
    grid = [[[output_place(op, i, j, block) for j in range(op.n)] for i in range(op.m)] for block in range(op.blocks)]
    unit, start = (32, 16 * high) if op.family == "wmma11" and op.d.bits == 16 else (op.d.bits, 0)
    return np.moveaxis(np.array(grid) * [1, unit] + [0, start], -1, 0)


# Elements and registers


def pack(op, values, bits, dtype, places, registers):
    """Pack values [wavefronts, block, i, k], which may be in several places, into uint32 [registers, wavefronts,
    lanes]."""
    if np.issubdtype(dtype, np.integer):
        codes = np.asarray(values).astype(np.int64).view(np.uint64)
    else:
        codes = np.asarray(values, np.float64).astype(dtype)
        codes = codes.view(f"u{codes.dtype.itemsize}").astype(np.uint64)
    found = np.zeros((len(values), op.lanes, 32 * registers), bool)
    for lane, bit in places:
        for n in range(bits):
            found[:, lane, bit + n] = codes >> np.uint64(n) & np.uint64(1)
    return np.moveaxis(np.packbits(found, axis=-1, bitorder="little").view(np.uint32), -1, 0)


def unpack_d(op, registers, dtype, high=False):
    lane, bit = all_output_places(op, high)
    octets = np.ascontiguousarray(np.moveaxis(registers, 0, -1)).view(np.uint8)
    found = np.unpackbits(octets, axis=-1, bitorder="little")
    code = sum(found[:, lane, bit + n].astype(np.uint64) << np.uint64(n) for n in range(op.d.bits))
    return code.astype(f"u{op.d.bits // 8}").view(dtype).astype(np.float64)


def naive(a, b, c):
    """Compute c[i][j] + sum over k of a[i][k] * b[j][k], one product at a time."""
    d = c.astype(np.float64).copy()
    for k in range(a.shape[-1]):
        for i in range(a.shape[-2]):
            d[..., i, :] += a[..., i, k, None] * b[..., :, k]
    return d


A, B, C = 0, 16, 32
"""Numbers of the operands' first registers; on CDNA, B and C are in accumulation registers. D is where C is."""


class Case:
    """Random operands of an instruction, as values and as registers."""

    def __init__(self, arch, name, types=None, low=-3, high=3, waves=WAVES, seed=0, **modifiers):
        self.arch, self.waves, self.modifiers = arch, waves, matrix_op.MatrixModifiers(**modifiers)
        self.entry = ops_of(arch)[name]
        self.op = op = matrix_op.resolve(self.entry, self.modifiers)
        self.a_type, self.b_type = types or (code_type(arch, op.a.name), code_type(arch, op.b.name))
        self.d_type = code_type(arch, op.d.name)[1]
        rng = np.random.default_rng([seed, *name.encode()])
        self.a = rng.integers(low, high, (waves, op.blocks, op.m, op.k), endpoint=True).astype(np.float64)
        self.b = rng.integers(low, high, (waves, op.blocks, op.n, op.k), endpoint=True).astype(np.float64)
        self.c = rng.integers(-9, 9, (waves, op.blocks, op.m, op.n), endpoint=True).astype(np.float64)

    @property
    def high(self):
        """Return True if gfx11's op_sel selects the upper halves of registers for C and D."""
        return bool(self.op.family == "wmma11" and self.modifiers.opsel & 4)

    def registers(self):
        op, found, copies = self.op, [], self.op.lanes // 16 if self.op.family == "wmma11" else 1
        for values, size, (bits, dtype) in ((self.a, op.m, self.a_type), (self.b, op.n, self.b_type)):
            count = copies * op.blocks * size * op.k * bits // (32 * op.lanes)
            found.append(pack(op, values, bits, dtype, all_input_places(op, size, bits), count))
        return *found, pack(op, self.c, op.d.bits, self.d_type, [all_output_places(op, self.high)], op.d_registers)

    def want(self, a=None, b=None, c=None):
        """Return D of the operands, or of others."""
        return naive(self.a if a is None else a, self.b if b is None else b, self.c if c is None else c)

    def run(self, *given, **more):
        """Return D of the instruction, executed without active lanes."""
        return unpack_d(self.op, self.execute(*given, **more), self.d_type, self.high)

    def execute(self, addend=None, target=C, scales=(), arithmetic=Arithmetic.FLOAT32, mode=DEFAULT_MODE):
        """Return D's registers, [registers, wavefronts, lanes]. addend: the text of a constant C. target: D's first
        register."""
        machine, letters = Machine(self.arch, self.waves, mode=mode), "vvv" if is_rdna(self.arch) else "vaa"
        machine.batch.numerics, texts = Numerics(matrix=arithmetic), []
        for first, letter, values in zip((A, B, C), letters, self.registers(), strict=True):
            start = first + ACCUMULATION * (letter == "a")
            machine.v[start : start + len(values)] = values
            texts.append(block(first, len(values), letter))
        for number, values in zip((60, 61), scales, strict=False):
            machine.v[number] = values
        machine.activate(np.zeros(machine.shape, bool))
        result = block(target, self.op.d_registers, letters[2])
        machine.execute(
            f"{self.op.mnemonic} {result}, {texts[0]}, {texts[1]}, {addend or texts[2]}{', v60, v61' * bool(len(scales))} "
            + self.text_of_modifiers()
        )
        start = target + ACCUMULATION * (letters[2] == "a")
        return machine.v[start : start + self.op.d_registers].copy()

    def text_of_modifiers(self):
        chosen, signs = self.modifiers, self.entry.blgp == "signs"
        lists = {"op_sel": chosen.opsel, "op_sel_hi": chosen.opsel_hi, "neg_lo": chosen.neg, "neg_hi": chosen.neg_hi}
        lists |= {"neg": chosen.blgp} if signs else {}
        numbers = {"cbsz": chosen.cbsz, "abid": chosen.abid, "blgp": 0 if signs else chosen.blgp}
        texts = [f"{name}:[{bits & 1},{bits >> 1 & 1},{bits >> 2}]" for name, bits in lists.items() if bits]
        return " ".join([*texts, *(f"{name}:{bits}" for name, bits in numbers.items() if bits), "clamp" * chosen.clmp])
