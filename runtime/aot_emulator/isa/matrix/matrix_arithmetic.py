"""Matrix instructions: MFMA of CDNA (gfx90a, gfx942, gfx950) and WMMA of RDNA (gfx11, gfx12).

Each is D = A * B + C on small matrices that lie spread over the registers and lanes of a wavefront. `table` gives the
description of every mnemonic of an arch, `execute` runs one of them for many wavefronts at once. The sparse forms
(smfmac, swmmac) are left out: Triton does not emit them.

**Layouts** (CDNA3 ISA section 7.1, CDNA4 7.1, RDNA3 7.9, RDNA4 7.12; AMD's Matrix Instruction Calculator gives the same
but for the order along K noted below). An operand's elements are packed from the lowest bits of its first register up;
`slot` is an element's place in that order within its lane. Lane numbers below are written outermost part first.

- A and B of MFMA and gfx12 WMMA: lane = (group, block, row); slot s of group g is k = g * slots + s. For B read column
  for row. The 8-bit forms of f8f6f4 have k = (s // 16) * 16 * groups + g * 16 + s % 16.
- A and B of gfx11 WMMA: lane = (copy, row) with both copies alike, slot = k. Copy 0 is the one read here.
- C and D: lane = (group, low block, column), register = (high block, row part, height), and the row of a block is
  (row part, group, height). Height is 4 for 32-bit MFMA, 8 for gfx12 WMMA, 1 for fp64 MFMA and gfx11 WMMA. gfx12 packs
  16-bit elements in pairs; gfx11 keeps each in the half of a register that op_sel[2] names.

A permutation of k common to A and B does not change the result, so that where they agree `execute` sums in storage
order; and where documents disagree on that order (16-bit WMMA of gfx12) it makes no difference.

**Arithmetic.** AMD documents neither the order nor the rounding of the sum. There are three choices.

- `Arithmetic.FLOAT32`, the default: the products of an instruction are summed in float32 by the BLAS (products of 16
  bits and fewer are exact, the order is the BLAS's own), and C is added to the sum, rounded to nearest even each time.
- `Arithmetic.FLOAT64`: the same in float64, rounded to D once at the end: nearer to the exact value than any hardware,
  and the same on every machine but for sums that lose more than 29 bits to cancellation.
- `Arithmetic.HARDWARE`, for gfx90a and gfx942: the model that Xie et al. derived by experiment (MMA-Sim, arXiv
  2511.10909) and found to agree with MI250X and MI300X bit for bit. About a hundred times slower.

fp64 instructions and block-scaled ones always sum in float64. Integer sums are exact and wrap to 32 bits, or saturate
where clamp is set.

**Denormals.** Kept, whatever MODE says, but for fp16 and bf16 on gfx90a, whose operands are flushed (MI200 is known for
it). xf32 drops the low 13 bits of its operands. EXEC is ignored by MFMA.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from aot_emulator.isa import floats
from aot_emulator.isa.floats import FloatFormat

Array = npt.NDArray[Any]
Family = Literal["mfma", "wmma11", "wmma12"]

# --- Descriptions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Element:
    """The type of a matrix's elements.

    Attributes:
        name: as mnemonics spell it.
        bits: of an element.
        fmt: its floating-point format; None for integers.
    """

    name: str
    bits: int
    fmt: FloatFormat | None = None


_SHARED = {
    "f64": Element("f64", 64, floats.FP64),
    "f32": Element("f32", 32, floats.FP32),
    "xf32": Element("xf32", 32, floats.FP32),
    "f16": Element("f16", 16, floats.FP16),
    "bf16": Element("bf16", 16, floats.BF16),
    "i32": Element("i32", 32),
    "i8": Element("i8", 8),
    "iu8": Element("iu8", 8),
    "iu4": Element("iu4", 4),
    "f8f6f4": Element("f8f6f4", 8),
}
_OCP = _SHARED | {"fp8": Element("fp8", 8, floats.FP8), "bf8": Element("bf8", 8, floats.BF8)}
_FNUZ = _SHARED | {"fp8": Element("fp8", 8, floats.FP8_FNUZ), "bf8": Element("bf8", 8, floats.BF8_FNUZ)}

_BY_FORMAT_FIELD = (
    _OCP["fp8"],
    _OCP["bf8"],
    Element("fp6", 6, floats.FP6),
    Element("bf6", 6, floats.BF6),
    Element("fp4", 4, floats.FP4),
)
"""The operand types of f8f6f4, by the number in CBSZ (A) and BLGP (B)."""


@dataclass(frozen=True)
class Modifiers:
    """The modifier fields of an instruction, named as in its encoding; `neg`, `neg_hi` and `opsel` have a bit for each
    of A, B and C.
    """

    cbsz: int = 0
    abid: int = 0
    blgp: int = 0
    neg: int = 0
    neg_hi: int = 0
    opsel: int = 0
    opsel_hi: int = 0
    clmp: int = 0

    @classmethod
    def from_fields(cls, fields: Mapping[str, int]) -> Modifiers:
        """From a decoded instruction's fields; others are ignored."""
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__ if name in fields})


NO_MODIFIERS = Modifiers()


@dataclass(frozen=True)
class MatrixOp:
    """One matrix instruction.

    Attributes:
        mnemonic: its name on its arch.
        family: which layouts it has.
        m, n, k: A has m rows and k columns, B k and n, C and D m and n.
        blocks: how many such products it computes.
        a, b, d: the elements of A, of B, and of C and D.
        lanes: of a wavefront.
        allowed: the modifier fields that it has.
        blgp: what its BLGP field means: a permutation of B's lanes, the type of B, or the signs of A, B and C.
        scaled: takes two registers of block exponents.
        flushes: denormal operands count as zeros.
        model: the arithmetic of the published hardware model, where there is one.
        group: how many products that model sums at a time.
    """

    mnemonic: str
    family: Family
    m: int
    n: int
    k: int
    blocks: int
    a: Element
    b: Element
    d: Element
    lanes: int
    allowed: frozenset[str] = frozenset()
    blgp: Literal["nothing", "lanes", "format", "signs"] = "nothing"
    scaled: bool = False
    flushes: bool = False
    model: Literal["fma", "pairwise", "fused"] | None = None
    group: int = 1

    def __hash__(self) -> int:
        # Quick: `resolve` looks descriptions up for every instruction executed.
        return hash(self.mnemonic)

    @property
    def flops(self) -> int:
        """Multiplications and additions of one wavefront."""
        return 2 * self.m * self.n * self.k * self.blocks

    @property
    def a_registers(self) -> int:
        return self._input_registers(self.m, self.a)

    @property
    def b_registers(self) -> int:
        return self._input_registers(self.n, self.b)

    def _input_registers(self, size: int, element: Element) -> int:
        copies = 2 if self.family == "wmma11" else 1
        return copies * size * self.k * self.blocks * element.bits // (32 * self.lanes)

    @property
    def d_registers(self) -> int:
        """Of C and of D."""
        elements = self.m * self.n * self.blocks // self.lanes
        return elements if self.family == "wmma11" else elements * self.d.bits // 32

    @property
    def row_height(self) -> int:
        """How many consecutive rows of D lie in consecutive registers of one lane."""
        if self.family == "wmma12":
            return 8
        return 4 if self.family == "mfma" and self.d.bits == 32 else 1


_NAME = re.compile(
    r"v_(?:mfma|wmma)_(?P<scale>scale_)?(?P<d>[a-z]+\d+)_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_"
    r"(?:(?P<blocks>\d+)b_)?(?P<a>[a-z0-9]+)(?:_(?P<b>[a-z0-9]+))?"
)


def _describe(canonical: str, mnemonic: str, family: Family, elements: Mapping[str, Element]) -> MatrixOp:
    """What a mnemonic in CDNA3's spelling says of itself."""
    match = _NAME.fullmatch(canonical)
    if match is None:
        raise ValueError(f"{canonical!r} is not the name of a matrix instruction")
    a, b = elements[match["a"]], elements[match["b"] or match["a"]]
    op = MatrixOp(
        mnemonic,
        family,
        m=int(match["m"]),
        n=int(match["n"]),
        k=int(match["k"]),
        blocks=int(match["blocks"] or 1),
        a=a,
        b=b,
        d=elements[match["d"]],
        lanes=64 if family == "mfma" else 32,
        scaled=match["scale"] is not None,
    )
    return _with_mfma_fields(op) if family == "mfma" else replace(op, allowed=_wmma_fields(op))


def _with_mfma_fields(op: MatrixOp) -> MatrixOp:
    if op.a.name == "f8f6f4":
        return replace(op, allowed=frozenset({"cbsz", "opsel", "opsel_hi"} if op.scaled else {"cbsz"}), blgp="format")
    if op.a.name == "f64":
        return replace(op, blgp="signs")
    if op.blocks > 1:
        return replace(op, allowed=frozenset({"cbsz", "abid"}), blgp="lanes")
    return replace(op, blgp="lanes" if op.a.name == "f32" else "nothing")


def _wmma_fields(op: MatrixOp) -> frozenset[str]:
    # The assembler sets op_sel_hi without meaning.
    fields = frozenset({"neg", "neg_hi", "opsel", "opsel_hi"})
    return fields | {"clmp"} if op.a.fmt is None else fields


def _names(pattern: str) -> list[str]:
    """A shell-like brace pattern, expanded."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    return [
        name
        for choice in match[1].split(",")
        for name in _names(pattern[: match.start()] + choice + pattern[match.end() :])
    ]


_CDNA = [
    "v_mfma_f32_{32x32x1_2b,16x16x1_4b,4x4x1_16b,32x32x2,16x16x4}_f32",
    "v_mfma_f32_{32x32x4_2b,16x16x4_4b,4x4x4_16b,32x32x8,16x16x16}_{f16,bf16}",
    "v_mfma_i32_{32x32x4_2b,16x16x4_4b,4x4x4_16b}_i8",
    "v_mfma_f64_{16x16x4,4x4x4_4b}_f64",
]
_CDNA3_ON = ["v_mfma_i32_{32x32x16,16x16x32}_i8", "v_mfma_f32_{32x32x16,16x16x32}_{fp8,bf8}_{fp8,bf8}"]
_CDNA3_ONLY = ["v_mfma_f32_{32x32x4,16x16x8}_xf32"]
_CDNA4 = [
    "v_mfma_f32_{32x32x16,16x16x32}_{f16,bf16}",
    "v_mfma_i32_{32x32x32,16x16x64}_i8",
    "v_mfma_{,scale_}f32_{32x32x64,16x16x128}_f8f6f4",
]
_CDNA2_ONLY = ["v_mfma_i32_{32x32x8,16x16x16}_i8", "v_mfma_f32_{32x32x2_2b,16x16x2_4b,4x4x2_16b,32x32x4,16x16x8}_bf16"]
_RDNA3 = [
    "v_wmma_f32_16x16x16_{f16,bf16}",
    "v_wmma_f16_16x16x16_f16",
    "v_wmma_bf16_16x16x16_bf16",
    "v_wmma_i32_16x16x16_{iu8,iu4}",
]
_RDNA4 = [*_RDNA3, "v_wmma_i32_16x16x32_iu4", "v_wmma_f32_16x16x16_{fp8,bf8}_{fp8,bf8}"]


def _expand(patterns: list[str]) -> Iterator[str]:
    for pattern in patterns:
        yield from _names(pattern)


def _cdna2_mnemonic(canonical: str) -> str:
    """CDNA2's spelling: no block count, no underscore before the type, `_1k` for the bf16 forms with doubled K."""
    name = re.sub(r"_(\d+b_)?(?=[a-z0-9]+$)", "", canonical)
    return name + "_1k" if canonical.endswith("bf16") and canonical in set(_expand(_CDNA)) else name


def _cdna2(canonical: str) -> MatrixOp:
    op = _describe(canonical, _cdna2_mnemonic(canonical), "mfma", _FNUZ)
    op = replace(op, blgp="nothing" if op.a.name == "f64" else "lanes")
    if op.a.fmt is None:
        return op
    if op.a.bits > 16:
        return replace(op, model="fma")
    return replace(op, flushes=True, model="pairwise", group=4 if canonical in set(_expand(_CDNA)) else 2)


def _cdna3(canonical: str) -> MatrixOp:
    op = _describe(canonical, canonical, "mfma", _FNUZ)
    if op.a.fmt is None:
        return op
    if op.a.name in ("f64", "f32"):
        return replace(op, model="fma")
    return replace(op, model="fused", group=min({32: 4, 16: 8, 8: 16}[op.a.bits], op.k))


@lru_cache(maxsize=8)
def table(arch: str) -> Mapping[str, MatrixOp]:
    """Every matrix instruction of an arch by mnemonic, in the spelling of its own ISA document.

    Args:
        arch: gfx90a, gfx942, gfx950, or any gfx11 or gfx12 one.
    Raises:
        ValueError: the arch is none of these.
    """
    if arch == "gfx90a":
        ops = [_cdna2(name) for name in _expand(_CDNA + _CDNA2_ONLY)]
    elif arch == "gfx942":
        ops = [_cdna3(name) for name in _expand(_CDNA + _CDNA3_ON + _CDNA3_ONLY)]
    elif arch == "gfx950":
        ops = [_describe(name, name, "mfma", _OCP) for name in _expand(_CDNA + _CDNA3_ON + _CDNA4)]
    elif arch.startswith("gfx11"):
        ops = [_describe(name, name, "wmma11", _OCP) for name in _expand(_RDNA3)]
    elif re.fullmatch(r"gfx120\w", arch):
        ops = [_describe(name, name, "wmma12", _OCP) for name in _expand(_RDNA4)]
    else:
        raise ValueError(f"no matrix instructions are known for {arch!r}: gfx90a, gfx942, gfx950, gfx11*, gfx120* are")
    return {op.mnemonic: op for op in ops}


GFX90A_OPCODES: Mapping[int, str] = {
    64: "v_mfma_f32_32x32x1f32",
    65: "v_mfma_f32_16x16x1f32",
    66: "v_mfma_f32_4x4x1f32",
    68: "v_mfma_f32_32x32x2f32",
    69: "v_mfma_f32_16x16x4f32",
    72: "v_mfma_f32_32x32x4f16",
    73: "v_mfma_f32_16x16x4f16",
    74: "v_mfma_f32_4x4x4f16",
    76: "v_mfma_f32_32x32x8f16",
    77: "v_mfma_f32_16x16x16f16",
    80: "v_mfma_i32_32x32x4i8",
    81: "v_mfma_i32_16x16x4i8",
    82: "v_mfma_i32_4x4x4i8",
    84: "v_mfma_i32_32x32x8i8",
    85: "v_mfma_i32_16x16x16i8",
    99: "v_mfma_f32_32x32x4bf16_1k",
    100: "v_mfma_f32_16x16x4bf16_1k",
    101: "v_mfma_f32_4x4x4bf16_1k",
    102: "v_mfma_f32_32x32x8bf16_1k",
    103: "v_mfma_f32_16x16x16bf16_1k",
    104: "v_mfma_f32_32x32x2bf16",
    105: "v_mfma_f32_16x16x2bf16",
    107: "v_mfma_f32_4x4x2bf16",
    108: "v_mfma_f32_32x32x4bf16",
    109: "v_mfma_f32_16x16x8bf16",
    110: "v_mfma_f64_16x16x4f64",
    111: "v_mfma_f64_4x4x4f64",
}
"""The VOP3P opcodes (7 bits) of gfx90a's matrix instructions, many of which CDNA3 gave to others."""


def resolve(op: MatrixOp, modifiers: Modifiers = NO_MODIFIERS) -> MatrixOp:
    """The instruction with its modifiers checked, and the operand types of f8f6f4 put in.

    Raises:
        ValueError: a modifier that it does not have, or a value that has no meaning.
    """
    return _resolve(op, modifiers)


@lru_cache(maxsize=256)
def _resolve(op: MatrixOp, modifiers: Modifiers) -> MatrixOp:
    for name in Modifiers.__dataclass_fields__:
        known = name in op.allowed or (name == "blgp" and op.blgp != "nothing")
        if getattr(modifiers, name) and not known:
            raise ValueError(f"{op.mnemonic} has no modifier {name} (given {getattr(modifiers, name)})")
    if op.blgp == "format":
        if max(modifiers.cbsz, modifiers.blgp) >= len(_BY_FORMAT_FIELD):
            raise ValueError(f"{op.mnemonic}: cbsz and blgp must be 0 to 4, got {modifiers.cbsz} and {modifiers.blgp}")
        return replace(op, a=_BY_FORMAT_FIELD[modifiers.cbsz], b=_BY_FORMAT_FIELD[modifiers.blgp])
    if op.blocks >> modifiers.cbsz == 0 or modifiers.abid >> modifiers.cbsz:
        raise ValueError(
            f"{op.mnemonic}: cbsz={modifiers.cbsz}, abid={modifiers.abid}: "
            f"must broadcast one of at most {op.blocks} blocks"
        )
    if op.a.fmt is None and (modifiers.neg & 4 or modifiers.neg_hi):
        raise ValueError(f"{op.mnemonic}: neg_lo is the signedness of A and B only, neg_hi must be 0")
    if op.a.bits == 8 and op.a.fmt and op.family == "wmma12" and (modifiers.neg | modifiers.neg_hi) & 3:
        raise ValueError(f"{op.mnemonic}: only C can be negated")
    if modifiers.opsel & ~(4 if op.family == "wmma11" and op.d.bits == 16 else 0):
        raise ValueError(f"{op.mnemonic}: op_sel={modifiers.opsel}: only bit 2 of gfx11's 16-bit results has a meaning")
    return op


# --- Operands ---------------------------------------------------------------------------------------------------------


def decode(registers: Array, element: Element, signed: bool = True, dtype: npt.DTypeLike = np.float32) -> Array:
    """The elements of packed registers.

    Args:
        registers: uint32[registers, wavefronts, lanes].
        element: their type.
        signed: of iu8 and iu4 elements.
        dtype: of the result, float32 or float64 (always float64 for f64).
    Returns:
        [wavefronts, slots, lanes], contiguous.
    """
    count, waves, lanes = registers.shape
    slots = count * 32 // element.bits
    if element.bits == 64:
        return _join(registers.swapaxes(0, 1))
    if element.bits == 32:
        words = registers & np.uint32(0xFFFFE000) if element.name == "xf32" else registers
        return words.view(np.float32).swapaxes(0, 1).astype(dtype, order="C")
    fields = _top_aligned(registers, element.bits).reshape(waves, slots, lanes)
    if element.fmt is None:
        width = 32 - element.bits
        numbers = fields.view(np.int32) >> np.int32(width) if signed else fields >> np.uint32(width)
        return numbers.astype(dtype)
    values = _decode_float(fields, element.fmt, dtype)
    _restore_specials(values, registers, element.fmt)
    return values


def _join(words: Array) -> Array:
    """float64[wavefronts, n, lanes] from uint32[wavefronts, 2 * n, lanes]."""
    waves, count, lanes = words.shape
    pairs = np.empty((waves, count // 2, lanes, 2), np.uint32)
    pairs[..., 0], pairs[..., 1] = words[:, 0::2], words[:, 1::2]
    return pairs.view(np.float64)[..., 0]


def _top_aligned(registers: Array, bits: int) -> Array:
    """Every field of so many bits, shifted to the top of uint32[wavefronts, ..., lanes]; lower bits are left over."""
    count, waves, lanes = registers.shape
    by_wave = registers.swapaxes(0, 1)
    if 32 % bits == 0:
        shifts = np.arange(32 - bits, -1, -bits, dtype=np.uint32)
        fields = np.empty((waves, count, shifts.size, lanes), np.uint32)
        return np.left_shift(by_wave[:, :, None], shifts[:, None], out=fields)
    fields = np.empty((waves, count * 32 // bits, lanes), np.uint32)
    for slot in range(fields.shape[1]):
        register, low = divmod(slot * bits, 32)
        above = low + bits - 32
        if above <= 0:
            np.left_shift(by_wave[:, register], np.uint32(-above), out=fields[:, slot])
        else:
            low_part = by_wave[:, register] >> np.uint32(above)
            fields[:, slot] = low_part | by_wave[:, register + 1] << np.uint32(32 - above)
    return fields


def _decode_float(fields: Array, fmt: FloatFormat, dtype: npt.DTypeLike) -> Array:
    """Values of a format from the tops of uint32 (overwritten): the fields are moved to fp32's places, and a product
    puts the exponent's bias right. `_restore_specials` has to follow.
    """
    shift = 8 - fmt.exponent_bits
    mask = (1 << 31) | ((1 << (fmt.bits - 1)) - 1) << (32 - fmt.bits - shift)
    if shift:
        np.right_shift(fields.view(np.int32), np.int32(shift), out=fields.view(np.int32))
    fields &= np.uint32(mask)
    values = fields.view(np.float32)
    if fmt.bias == floats.FP32.bias:
        return values.astype(dtype, copy=False)
    scale = np.float32(2.0 ** (127 - fmt.bias))
    return np.multiply(values, scale, out=values if dtype == np.float32 else None, dtype=dtype)


def _restore_specials(values: Array, registers: Array, fmt: FloatFormat) -> None:
    """Puts in the infinities and NaN that `_decode_float` took for numbers."""
    if fmt.special == "fnuz":
        packed = np.ascontiguousarray(registers).view(np.uint8)
        if (packed == fmt.nan_code).any():
            values[(values == 0) & np.signbit(values)] = np.nan
    elif fmt.special != "finite" and fmt.bias != floats.FP32.bias:
        largest = floats.decode_max(fmt)
        if max(values.max(), -values.min()) > largest:
            size = np.abs(values)
            infinity = 2.0 ** np.ceil(np.log2(largest)) if fmt.special == "ieee" else np.nan
            values[size == infinity] *= np.inf
            values[(size > largest) & (size != infinity)] = np.nan


def _by_k(op: MatrixOp, element: Element, values: Array, size: int, in_order: bool) -> Array:
    """Decoded elements as [wavefronts, blocks, k, row or column]; `in_order`: k ascending, else in storage order."""
    waves, slots, lanes = values.shape
    if op.family == "wmma11":
        return values[:, None, :, :size]
    if not in_order:
        return values.reshape(waves, op.k, op.blocks, size).swapaxes(1, 2)
    chunk = min(slots, 16) if element.bits == 8 else slots
    groups = lanes // (op.blocks * size)
    parts = values.reshape(waves, slots // chunk, chunk, groups, op.blocks, size)
    return parts.transpose(0, 4, 1, 3, 2, 5).reshape(waves, op.blocks, op.k, size)


_LANE = np.arange(64)
_BLGP_LANES = np.array(
    [_LANE, _LANE % 32, _LANE % 32 + 32, (_LANE + 16) % 64, *(_LANE % 16 + start for start in (0, 16, 32, 48))]
)
"""For each BLGP, the lane that each lane reads B from."""


def _load(
    op: MatrixOp, registers: Array, modifiers: Modifiers, which: int, in_order: bool, dtype: npt.DTypeLike
) -> Array:
    """Matrix A (`which` 0) or B (1) as [wavefronts, blocks, k, row or column], its modifiers applied."""
    element, size = (op.b, op.n) if which else (op.a, op.m)
    if which and op.blgp == "lanes" and modifiers.blgp:
        registers = registers[:, :, _BLGP_LANES[modifiers.blgp]]
    signed = element.name == "i8" or bool(modifiers.neg >> which & 1)
    values = decode(registers, element, signed, dtype)
    if op.flushes:
        values[np.abs(values) < 2.0 ** (1 - op.a.fmt.bias if op.a.fmt else 0)] = 0
    if op.a.fmt is not None:
        even, odd = _signs(op, modifiers, which)
        if even:
            np.negative(values[:, 0::2], out=values[:, 0::2])
        if odd:
            np.negative(values[:, 1::2], out=values[:, 1::2])
    matrix = _by_k(op, element, values, size, in_order)
    if not which and modifiers.cbsz and op.blocks > 1:
        block = np.arange(op.blocks)
        matrix = matrix[:, (block >> modifiers.cbsz << modifiers.cbsz) + modifiers.abid]
    return matrix


def _signs(op: MatrixOp, modifiers: Modifiers, which: int) -> tuple[bool, bool]:
    """Whether the elements in even and in odd slots are negated."""
    if op.blgp == "signs":
        negated = bool(modifiers.blgp >> which & 1)
        return negated, negated
    return bool(modifiers.neg >> which & 1), bool(modifiers.neg_hi >> which & 1)


def _scale(matrix: Array, size: int, scales: Array, byte: int) -> Array:
    """The matrix (k ascending) times its block exponents: E8M0 bytes, one for 32 elements along k; lane g * size + row
    of the register holds that of group g.
    """
    exponent = (scales[0] >> np.uint32(8 * byte) & np.uint32(0xFF)).astype(np.int32)
    factor = np.where(exponent == 0xFF, np.nan, np.ldexp(1.0, exponent - 127))
    waves, blocks, k, _ = matrix.shape
    parts = matrix.reshape(waves, blocks, k // 32, 32, size)
    return (parts * factor.reshape(-1, 1, k // 32, 1, size)).reshape(matrix.shape)


# --- Accumulators -----------------------------------------------------------------------------------------------------


def _accumulator_dtype(op: MatrixOp) -> np.dtype[Any]:
    return np.dtype(
        {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16, "i32": np.int32}[op.d.name]
    )


def _unpack(op: MatrixOp, registers: Array, modifiers: Modifiers) -> Array:
    """The elements of C as [elements, wavefronts, lanes]; bf16 as codes."""
    dtype = _accumulator_dtype(op)
    if op.d.bits == 32:
        return registers.view(dtype)
    count, waves, lanes = registers.shape
    if op.d.bits == 64:
        return _join(registers.swapaxes(0, 1)).swapaxes(0, 1)
    halves = np.stack([registers, registers >> np.uint32(16)], axis=1).astype(np.uint16).view(dtype)
    if op.family == "wmma11":
        return halves[:, modifiers.opsel >> 2 & 1]
    return halves.reshape(2 * count, waves, lanes)


def _pack(op: MatrixOp, elements: Array, modifiers: Modifiers, out: Array) -> None:
    """The reverse of `_unpack`, into registers; the other half of gfx11's 16-bit results is kept."""
    if op.d.bits == 32:
        out[...] = elements.view(np.uint32)
        return
    count, waves, lanes = out.shape
    if op.d.bits == 64:
        pairs = np.ascontiguousarray(elements).view(np.uint32).reshape(count // 2, waves, lanes, 2)
        out[0::2], out[1::2] = pairs[..., 0], pairs[..., 1]
        return
    codes = elements.view(np.uint16)
    if op.family == "wmma11":
        out[...] = floats.insert_bits(out, codes, 16 * (modifiers.opsel >> 2 & 1), 16)
    else:
        out[...] = floats.pack16(codes[0::2], codes[1::2])


def _as_registers(op: MatrixOp, product: Array) -> Array:
    """A view of [wavefronts, blocks, m, n] in the order of D: [high block, row part, height, wavefront, group, low
    block, column].
    """
    waves = product.shape[0]
    height = op.row_height
    low_blocks = -(-64 * height // (op.m * op.n)) if op.family == "mfma" else 1
    groups = op.lanes // (op.n * low_blocks)
    parts = (waves, op.blocks // low_blocks, low_blocks, op.m // (groups * height), groups, height, op.n)
    return product.reshape(parts).transpose(1, 3, 5, 0, 4, 2, 6)


def _from_registers(op: MatrixOp, elements: Array) -> Array:
    """Elements of C, [elements, wavefronts, lanes], as [wavefronts, blocks, m, n]."""
    waves = elements.shape[1]
    shape = (waves, op.blocks, op.m, op.n)
    order = np.arange(op.blocks * op.m * op.n).reshape(1, *shape[1:])
    place = _as_registers(op, order).reshape(-1)
    flat = np.empty((waves, place.size), elements.dtype)
    flat[:, place] = elements.swapaxes(0, 1).reshape(waves, -1)
    return flat.reshape(shape)


def _modify_c(op: MatrixOp, elements: Array, modifiers: Modifiers) -> Array:
    """C with its sign modifiers; bf16 becomes float32."""
    if op.d.name == "bf16":
        elements = floats.decode(elements, floats.BF16)
    if op.a.fmt is None:
        return elements
    if op.blgp != "signs" and modifiers.neg_hi & 4:
        elements = np.abs(elements)
    negated = modifiers.blgp & 4 if op.blgp == "signs" else modifiers.neg & 4
    return -elements if negated else elements


# --- Execution --------------------------------------------------------------------------------------------------------


class Arithmetic(Enum):
    """How a matrix instruction sums; see the module."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    HARDWARE = "hardware"


def _chunk(op: MatrixOp) -> int:
    """Wavefronts at a time: few enough that their matrices stay in the cache."""
    return max(32, (1 << 18) // (max(op.m, op.n) * max(op.m, op.n, op.k) * op.blocks))


def execute(
    op: MatrixOp,
    a: Array,
    b: Array,
    c: Array | None,
    modifiers: Modifiers = NO_MODIFIERS,
    *,
    scales: tuple[Array, Array] | None = None,
    out: Array | None = None,
    arithmetic: Arithmetic = Arithmetic.FLOAT32,
) -> Array:
    """D = A * B + C.

    Args:
        op: from `table`.
        a, b: uint32[registers, wavefronts, lanes], as many registers as `resolve(op, modifiers)` says.
        c: likewise, `op.d_registers` of them; None for zeros. An inline constant has to be spread by the caller.
        modifiers: of the instruction.
        scales: of scaled instructions, the registers of A's and of B's exponents, uint32[1, wavefronts, lanes].
        out: receives D, and may be the registers of c; where gfx11 writes half of each register, the other half stays.
            None for a new array (zeros in such halves).
        arithmetic: how to sum.
    Returns:
        D's registers, uint32[op.d_registers, wavefronts, lanes]: `out` where given.
    Raises:
        ValueError: wrong shapes or modifiers, scales missing or not wanted, or no hardware model.
    """
    op = _resolve(op, modifiers)
    _check(op, a, b, c, scales, arithmetic)
    if out is None:
        out = np.zeros((op.d_registers, *a.shape[1:]), np.uint32)
    with np.errstate(all="ignore"):
        for start in range(0, a.shape[1], _chunk(op)):
            part = slice(start, start + _chunk(op))
            c_part = None if c is None else c[:, part]
            scale_parts = None if scales is None else (scales[0][:, part], scales[1][:, part])
            _execute(op, a[:, part], b[:, part], c_part, modifiers, scale_parts, out[:, part], arithmetic)
    return out


def _check(
    op: MatrixOp, a: Array, b: Array, c: Array | None, scales: tuple[Array, Array] | None, arithmetic: Arithmetic
) -> None:
    operands = [("A", a, op.a_registers), ("B", b, op.b_registers)]
    if c is not None:
        operands.append(("C", c, op.d_registers))
    if op.scaled != (scales is not None):
        raise ValueError(f"{op.mnemonic} takes {'two' if op.scaled else 'no'} registers of scales")
    operands += [(f"the scale of {name}", array, 1) for name, array in zip("AB", scales or (), strict=False)]
    for name, array, registers in operands:
        want = (registers, a.shape[1], op.lanes)
        if array.shape != want or array.dtype != np.uint32:
            raise ValueError(f"{op.mnemonic}: {name} must be uint32{list(want)}, is {array.dtype}{list(array.shape)}")
    if arithmetic is Arithmetic.HARDWARE and op.model is None and op.a.fmt is not None:
        raise ValueError(f"{op.mnemonic}: no model of its hardware arithmetic is known")


def _execute(
    op: MatrixOp,
    a: Array,
    b: Array,
    c: Array | None,
    modifiers: Modifiers,
    scales: tuple[Array, Array] | None,
    out: Array,
    arithmetic: Arithmetic,
) -> None:
    hardware = arithmetic is Arithmetic.HARDWARE and op.a.fmt is not None
    # Where both operands have one layout, any order along k is as good.
    in_order = hardware or scales is not None or op.a.bits != op.b.bits
    wide = op.a.fmt is not None and (arithmetic is not Arithmetic.FLOAT32 or scales is not None)
    dtype = np.float64 if wide else np.float32
    left, right = (_load(op, registers, modifiers, i, in_order, dtype) for i, registers in enumerate((a, b)))
    if scales is not None:
        left = _scale(left, op.m, scales[0], modifiers.opsel & 1 | (modifiers.opsel_hi & 1) << 1)
        right = _scale(right, op.n, scales[1], modifiers.opsel >> 1 & 1 | modifiers.opsel_hi & 2)
    addend = None if c is None else _modify_c(op, _unpack(op, c, modifiers), modifiers)
    if hardware:
        start = np.zeros(1) if addend is None else _from_registers(op, addend)
        _store(op, _as_registers(op, _hardware_sum(op, left, right, start)), None, modifiers, out)
        return
    product = np.matmul(left.swapaxes(2, 3), right)
    _store(op, _as_registers(op, product), addend, modifiers, out)


def _store(op: MatrixOp, product: Array, addend: Array | None, modifiers: Modifiers, out: Array) -> None:
    """Adds C to the product (in D's order) and writes D."""
    if op.a.fmt is None:
        # Sums of the instruction's products fit 32 bits, and float32 holds them exactly.
        total = product.astype(np.int64 if modifiers.clmp else np.int32)
        if addend is not None:
            total = total + addend.reshape(product.shape)
        if modifiers.clmp:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1).astype(np.int32)
        out[...] = total.reshape(out.shape).view(np.uint32)
        return
    if op.d.name == "f32" and addend is not None:
        target = out.view(np.float32).reshape(product.shape)
        np.add(product, addend.reshape(product.shape), out=target, dtype=product.dtype, casting="same_kind")
        return
    total = product if addend is None else product + addend.reshape(product.shape)
    total = total.reshape(-1, *out.shape[1:])
    is_bf16 = op.d.name == "bf16"
    elements = floats.encode(total, floats.BF16) if is_bf16 else total.astype(_accumulator_dtype(op))
    _pack(op, elements, modifiers, out)


# --- The published hardware model -------------------------------------------------------------------------------------


def _hardware_sum(op: MatrixOp, left: Array, right: Array, start: Array) -> Array:
    """D as [wavefronts, blocks, m, n], summed as the model of gfx90a and gfx942 does: `group` products at a time."""
    total: Array = np.broadcast_to(start, (left.shape[0], op.blocks, op.m, op.n)).astype(_accumulator_dtype(op))
    if op.flushes:
        total = np.where(floats.is_denormal(total), np.float32(0), total)
    for first in range(0, op.k, op.group):
        span = slice(first, first + op.group)
        a, b = left[:, :, span, :, None], right[:, :, span, None, :]
        if op.model == "fma":
            total = floats.fma(a[:, :, 0].astype(total.dtype), b[:, :, 0].astype(total.dtype), total)
        elif op.model == "pairwise":
            total = _flushed(
                total + _pairwise([_flushed((a[:, :, i] * b[:, :, i]).astype(np.float32)) for i in range(op.group)])
            )
        else:
            total = _fused(op, a, b, total)
    return total


def _flushed(values: Array) -> Array:
    return floats.flush_denormals(values)


def _pairwise(terms: list[Array]) -> Array:
    """Neighbours added first, each sum rounded and flushed."""
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return _flushed(_pairwise(terms[:half]) + _pairwise(terms[half:]))


def _exponent(values: Array, fmt: FloatFormat) -> Array:
    """Of each value, at least the format's smallest; -126 of zero."""
    return np.where(values == 0, -126, np.maximum(np.frexp(values)[1] - 1, 1 - fmt.bias))


def _aligned(products: Array, exponents: Array) -> tuple[Array, Array]:
    """The sum over axis 2 of products cut off below 2**-24 of the largest exponent: (sum over that, the exponent)."""
    largest = exponents.max(axis=2)
    cut = np.trunc(np.ldexp(products, 24 - largest[:, :, None]))
    return np.ldexp(cut.sum(axis=2), -24), largest


def _floor(values: Array, bits: Array | int) -> Array:
    """Rounded down to `bits` binary places."""
    return np.ldexp(np.floor(np.ldexp(values, bits)), np.negative(bits))


def _fused(op: MatrixOp, a: Array, b: Array, c: Array) -> Array:
    """One group of products, aligned and truncated, then added to c with both rounded down, then to nearest even."""
    if op.a.fmt is None or op.b.fmt is None:
        raise ValueError(f"{op.mnemonic} has no floating-point operands")
    products = a * b
    plain = products.sum(axis=2) + c
    too_large = np.abs(products) >= 2.0**128
    overflow = np.where(too_large, np.copysign(np.inf, products), 0).sum(axis=2)
    exponents = _exponent(a, op.a.fmt) + _exponent(b, op.b.fmt)
    finite = np.where(np.isfinite(products) & ~too_large, products, 0)
    c_exponent = _exponent(c, floats.FP32)
    if op.a.bits == 8:
        (even, even_exponent), (odd, odd_exponent) = (
            _aligned(finite[:, :, i::2], exponents[:, :, i::2]) for i in (0, 1)
        )
        exponent = np.maximum(even_exponent, odd_exponent)
        significand = sum(
            _floor(np.ldexp(part, own - exponent), 24) for part, own in ((even, even_exponent), (odd, odd_exponent))
        )
        largest = np.maximum(exponent, c_exponent)
        kept = np.where(c_exponent >= largest - 25, c, 0).astype(np.float64)
    else:
        significand, exponent = _aligned(finite, exponents)
        largest = np.maximum(exponent, c_exponent)
        kept = c.astype(np.float64)
    total = _floor(np.ldexp(significand, exponent - largest), 31) + _floor(np.ldexp(kept, -largest), 24)
    result = np.where(overflow == 0, np.ldexp(total, largest), overflow)
    return np.where(np.isfinite(plain), result, plain).astype(np.float32)
