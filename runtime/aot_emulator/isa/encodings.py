"""Find the encoding of an instruction by masks of its bits, which are read from tinygrad's tables once.

tinygrad's own `decode_inst` returns the same, but compares every field of every encoding on every call.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tinygrad.renderer.amd import _VARIANT_SRC0, _load_formats
from tinygrad.renderer.amd.dsl import EnumBitField, FixedBitField, Inst, SrcField

_LITERAL, _SDWA, _DPP = 255, 249, 250
"""Values of a source operand that mark a further dword."""
_WITH_DWORD = ("_LIT", "_DPP8", "_DPP16", "_SDWA")
"""Parts of the names of encodings that have that dword."""


@dataclass(frozen=True)
class Encoding:
    """An encoding of tinygrad's tables.

    Attributes:
        kind: tinygrad's class.
        needed: bytes that hold all of its fields.
        mask, value: the bits that it fixes, and their values.
        opcodes: (lowest bit, mask, values) of each field for an opcode.
        sources: (lowest bit, mask) of the operands that may mark a further dword.
        longer: value of such an operand → the class with that dword.
    """

    kind: type[Inst]
    needed: int
    mask: int
    value: int
    opcodes: tuple[tuple[int, int, frozenset[int]], ...]
    sources: tuple[tuple[int, int], ...]
    longer: Mapping[int, type[Inst]]

    @classmethod
    def of(cls, kind: type[Inst], isa: str) -> Encoding:
        fields = [field for _, field in kind._fields]
        fixed = [(field.lo, field.mask, field.default) for field in fields if isinstance(field, FixedBitField)]
        fixed += [(0, 0x1FF, source) for suffix, source in _VARIANT_SRC0.items() if kind.__name__.endswith(suffix)][:1]
        opcodes = tuple(
            (field.lo, field.mask, frozenset(opcode.value for opcode in field.allowed))
            for field in fields
            if isinstance(field, EnumBitField) and field.allowed is not None
        )
        mask = value = 0
        for low, bits, expected in fixed:
            mask, value = mask | bits << low, value | expected << low
        longer = {} if any(part in kind.__name__ for part in _WITH_DWORD) else dict(_longer(kind, isa))
        sources = tuple(
            (field.lo, field.mask)
            for field in fields
            if isinstance(field, SrcField) and field._valid_range[0] == 0 and longer
        )
        needed = max(field.lo // 32 * 4 + 4 for field in fields)
        return cls(kind, needed, mask, value, opcodes, sources, longer)

    def matches(self, word: int, nbytes: int) -> bool:
        """Return True if the first of `nbytes` bytes, which `word` holds, have this encoding."""
        if word & self.mask != self.value or nbytes < self.needed:
            return False
        return all(word >> low & mask in allowed for low, mask, allowed in self.opcodes)

    def kind_of(self, word: int) -> type[Inst]:
        """Return the class of an instruction with this encoding: that with a further dword if an operand marks one."""
        for low, mask in self.sources:
            source = word >> low & mask
            if source >= _SDWA and source in (_LITERAL, _SDWA, _DPP):
                return self.longer.get(source, self.kind)
        return self.kind


def _longer(kind: type[Inst], isa: str) -> Iterator[tuple[int, type[Inst]]]:
    marks = {_LITERAL: "_LIT", _SDWA: "_SDWA" if isa == "cdna" else "_DPP8", _DPP: "_DPP16"}
    for source, suffix in marks.items():
        if found := getattr(sys.modules[kind.__module__], kind.__name__ + suffix, None):
            yield source, found


class Encodings:
    """The encodings of an ISA, in the order in which they are tried."""

    def __init__(self, isa: str):
        self._all = [Encoding.of(kind, isa) for kind in _load_formats()[isa]]

    def decode(self, raw: bytes) -> Any:
        """Decode the first instruction of some bytes to one of tinygrad's. Raises ValueError for an unknown one."""
        word = int.from_bytes(raw, "little")
        for encoding in self._all:
            if encoding.matches(word, len(raw)):
                kind = encoding.kind_of(word)
                if kind.__name__.startswith("VOPD"):  # some of its opcodes have a literal, too
                    return kind.from_bytes(raw)
                found = object.__new__(kind)
                found._raw = word & (1 << 8 * kind._base_size) - 1
                return found
        raise ValueError("unknown encoding")
