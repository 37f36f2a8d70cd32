"""Descriptions of the matrix instructions: MFMA (gfx90a, gfx942, gfx950) and WMMA (gfx11, gfx12).

Each computes D = A * B + C on small matrices distributed over the registers and lanes of a wavefront. The sparse forms
(smfmac, swmmac) are not supported, as Triton does not emit them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from aot_emulator.isa.archs import ARCHS, Generation
from aot_emulator.isa.floats import formats
from aot_emulator.isa.floats.formats import FloatFormat

Family = Literal["mfma", "wmma11", "wmma12"]


@dataclass(frozen=True)
class Element:
    """Element type of a matrix.

    Attributes:
        name: name in mnemonics.
        bits: width of an element.
        fmt: floating-point format; None for integers.
    """

    name: str
    bits: int
    fmt: FloatFormat | None = None


_SHARED = {
    "f64": Element("f64", 64, formats.FP64),
    "f32": Element("f32", 32, formats.FP32),
    "xf32": Element("xf32", 32, formats.FP32),
    "f16": Element("f16", 16, formats.FP16),
    "bf16": Element("bf16", 16, formats.BF16),
    "i32": Element("i32", 32),
    "i8": Element("i8", 8),
    "iu8": Element("iu8", 8),
    "iu4": Element("iu4", 4),
    "f8f6f4": Element("f8f6f4", 8),
}
_OCP = _SHARED | {"fp8": Element("fp8", 8, formats.FP8), "bf8": Element("bf8", 8, formats.BF8)}
_FNUZ = _SHARED | {"fp8": Element("fp8", 8, formats.FP8_FNUZ), "bf8": Element("bf8", 8, formats.BF8_FNUZ)}

_BY_FORMAT_FIELD = (
    _OCP["fp8"],
    _OCP["bf8"],
    Element("fp6", 6, formats.FP6),
    Element("bf6", 6, formats.BF6),
    Element("fp4", 4, formats.FP4),
)
"""Operand types of f8f6f4, by the value of CBSZ (for A) or BLGP (for B)."""


@dataclass(frozen=True)
class MatrixModifiers:
    """Modifier fields of an instruction, named as in its encoding.

    `neg`, `neg_hi` and `opsel` have a bit for each of A, B and C.
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
    def from_fields(cls, fields: Mapping[str, int]) -> MatrixModifiers:
        """Extract the modifiers from the fields of a decoded instruction."""
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__ if name in fields})


NO_MODIFIERS = MatrixModifiers()


@dataclass(frozen=True)
class MatrixOp:
    """Description of a matrix instruction.

    Attributes:
        mnemonic: mnemonic on its architecture.
        family: family that determines the register layouts.
        m, n, k: matrix sizes; A is m by k, B is k by n, C and D are m by n.
        blocks: number of independent products.
        a, b, d: element types of A, of B, and of C and D.
        lanes: lanes per wavefront.
        allowed: supported modifier fields.
        blgp: meaning of the BLGP field: a permutation of B's lanes, the type of B, or the signs of A, B and C.
        scaled: takes two registers of block exponents.
        flushes: flushes denormal operands to zero.
        model: arithmetic in the published hardware model, if there is one.
        group: number of products that this model sums at a time.
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
        # Must be fast: `resolve` hashes the description for every executed instruction.
        return hash(self.mnemonic)

    @property
    def flops(self) -> int:
        """Multiplications and additions per wavefront."""
        return 2 * self.m * self.n * self.k * self.blocks

    @property
    def a_registers(self) -> int:
        return self._input_registers(self.m, self.a)

    @property
    def b_registers(self) -> int:
        return self._input_registers(self.n, self.b)

    def _input_registers(self, size: int, element: Element) -> int:
        copies = self.lanes // size if self.family == "wmma11" else 1
        return copies * size * self.k * self.blocks * element.bits // (32 * self.lanes)

    @property
    def d_registers(self) -> int:
        """Registers of C, and of D."""
        elements = self.m * self.n * self.blocks // self.lanes
        return elements if self.family == "wmma11" else elements * self.d.bits // 32

    @property
    def row_height(self) -> int:
        """Number of consecutive rows of D in consecutive registers of a lane."""
        if self.family == "wmma12":
            return 8
        return 4 if self.family == "mfma" and self.d.bits == 32 else 1


_NAME = re.compile(
    r"v_(?:mfma|wmma)_(?P<scale>scale_)?(?P<d>[a-z]+\d+)_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_"
    r"(?:(?P<blocks>\d+)b_)?(?P<a>[a-z0-9]+)(?:_(?P<b>[a-z0-9]+))?"
)


def _describe(canonical: str, mnemonic: str, family: Family, elements: Mapping[str, Element]) -> MatrixOp:
    match = _NAME.fullmatch(canonical)
    if match is None:
        raise ValueError(f"unknown matrix instruction {canonical!r}")
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
    # The assembler sets op_sel_hi, although it has no meaning.
    fields = frozenset({"neg", "neg_hi", "opsel", "opsel_hi"})
    return fields | {"clmp"} if op.a.fmt is None else fields


def _names(pattern: str) -> list[str]:
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
    """Convert to CDNA2's spelling: no block count or underscore before the type; `_1k` for bf16 with doubled K."""
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


_GENERATIONS: Mapping[Generation, tuple[list[str], Callable[[str], MatrixOp]]] = {
    "cdna2": (_CDNA + _CDNA2_ONLY, _cdna2),
    "cdna3": (_CDNA + _CDNA3_ON + _CDNA3_ONLY, _cdna3),
    "cdna4": (_CDNA + _CDNA3_ON + _CDNA4, lambda name: _describe(name, name, "mfma", _OCP)),
    "rdna3": (_RDNA3, lambda name: _describe(name, name, "wmma11", _OCP)),
    "rdna4": (_RDNA4, lambda name: _describe(name, name, "wmma12", _OCP)),
}
"""Names of each generation's matrix instructions, and the function that describes one."""


@lru_cache(maxsize=8)
def matrix_ops(arch: str, wave64: bool = False) -> Mapping[str, MatrixOp]:
    """Return the matrix instructions of an emulated architecture by mnemonic, as spelled in its ISA document.

    Args:
        wave64: describe RDNA's wave64 instructions; empty for gfx12, whose layouts are unknown.
    """
    generation = ARCHS[arch].generation
    names, describe = _GENERATIONS[generation]
    if not wave64:
        return {op.mnemonic: op for op in map(describe, _expand(names))}
    if generation == "rdna4":
        return {}
    return {op.mnemonic: replace(op, lanes=64) for op in map(describe, _expand(names))}


@lru_cache(maxsize=256)
def resolve(op: MatrixOp, modifiers: MatrixModifiers = NO_MODIFIERS) -> MatrixOp:
    """Check the modifiers of an instruction, and resolve the operand types of f8f6f4.

    Raises:
        ValueError: an unsupported modifier or an invalid value.
    """
    for name in MatrixModifiers.__dataclass_fields__:
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
    meaningless = 0 if op.family == "wmma11" else 4  # for gfx11 hipBLASLt's kernels set neg_lo of C
    if op.a.fmt is None and (modifiers.neg & meaningless or modifiers.neg_hi):
        raise ValueError(f"{op.mnemonic}: neg_lo is the signedness of A and B only, neg_hi must be 0")
    if op.a.bits == 8 and op.a.fmt and op.family == "wmma12" and (modifiers.neg | modifiers.neg_hi) & 3:
        raise ValueError(f"{op.mnemonic}: only C can be negated")
    if modifiers.opsel & ~(4 if op.family == "wmma11" and op.d.bits == 16 else 0):
        raise ValueError(
            f"{op.mnemonic}: op_sel={modifiers.opsel}: only bit 2 is defined, and only for 16-bit results on gfx11"
        )
    return op
