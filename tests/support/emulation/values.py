"""Test values for instructions, with the edge cases of each type, and their comparison."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from aot_emulator.isa.archs import ARCHS, Arch
from aot_emulator.isa.mnemonics import cdna_name

COUNT = 256
"""Number of lanes of a machine."""
RDNA = ("gfx1100", "gfx1201")
WAVE64 = "gfx1100-wave64"
"""RDNA with wavefronts of 64 lanes."""
_TABLES = ("SOP1", "SOP2", "SOPC", "SOPK", "VOP1", "VOP2", "VOP3", "VOP3SD", "VOP3P", "VOPC")


def arch_of(name: str) -> Arch:
    """Return the architecture of a name, which may end in `-wave64`."""
    bare, _, lanes = name.partition("-wave")
    return ARCHS[bare].with_lanes(int(lanes)) if lanes else ARCHS[bare]


def is_rdna(arch: str) -> bool:
    return arch_of(arch).isa != "cdna"


@cache
def mnemonics(arch: str) -> dict[str, str]:
    """Return an arch's mnemonics in the decoder's tables by CDNA's names."""
    isa = arch_of(arch).isa
    tables = importlib.import_module(f"tinygrad.runtime.autogen.amd.{isa}.enum")
    names = (op.name.lower() for table in _TABLES for op in getattr(tables, f"{table}Op"))
    found = {name.removesuffix("_e32").removesuffix("_e64") for name in names}
    return {name if isa == "cdna" else cdna_name(name): name for name in found}


def bits_of(kind: str) -> int:
    """Return the bits of a kind of operands of the emulator's tables: `u32`, `f16`, …; `=f32` for the old destination."""
    return int(kind.lstrip("=")[1:])


def dtype_of(kind: str) -> np.dtype:
    return np.dtype(f"{kind.lstrip('=')[0]}{bits_of(kind) // 8}")


def block(first: int, count: int, letter: str = "v") -> str:
    """Return the assembly syntax of registers."""
    return f"{letter}[{first}:{first + count - 1}]" if count > 1 else f"{letter}{first}"


def spelled(kind: str, number: int, half: int | None = None) -> str:
    """Return the syntax of a vector register. half: which 16 bits; None where the arch does not name them."""
    if bits_of(kind) == 16 and half is not None:
        return f"v{number}.{'lh'[half]}"
    return block(number, bits_of(kind) // 32 or 1)


def s(value: int, bits: int = 32) -> int:
    """Return a number in two's complement."""
    value &= (1 << bits) - 1
    return value - (value >> bits - 1 << bits)


_EDGES = """0 1 2 3 1f 20 21 7f 80 ff 100 7fff 8000 ffff 10000 7fffff 800000 ffffff 1000000 7fffffff 80000000 80000001
fffffffe ffffffff aaaaaaaa 55555555 ffff0000"""
EDGES32 = np.array([int(word, 16) for word in _EDGES.split()], np.uint32)


def integers(seed: int, *shape: int) -> np.ndarray:
    """Return uint32 of random bits, a third of them edge values; 256 by default."""
    rng, shape = np.random.default_rng(seed), shape or (COUNT,)
    values = rng.integers(0, 1 << 32, shape, np.uint32) >> rng.integers(0, 32, shape, np.uint32)
    return np.where(rng.random(shape) < 0.35, rng.choice(EDGES32, shape), values)


def edge_floats(seed: int, dtype: Any, *shape: int) -> np.ndarray:
    """Return floats of every magnitude, with NaN, infinities, zeros and denormals among them."""
    dtype, rng, shape = np.dtype(dtype), np.random.default_rng(seed), shape or (COUNT,)
    info, bits = np.finfo(dtype), np.dtype(f"u{dtype.itemsize}")
    special = np.array([0, 1, 0.5, 1.5, 2.5, 3, 1 / 3, np.inf, np.nan], dtype)
    special = np.r_[special, np.array([info.max, info.tiny, info.tiny / 2, info.smallest_subnormal], dtype)]
    special = np.r_[special, -special]
    anything = rng.integers(0, np.iinfo(bits).max, shape, bits, endpoint=True).view(dtype)
    normal = rng.standard_normal(shape).astype(dtype)
    which = rng.random(shape)
    values = np.where(which < 0.3, rng.choice(special, shape), np.where(which < 0.55, anything, normal))
    return np.where(np.isnan(values), dtype.type(np.nan), values)  # one NaN: payloads are another matter


def sources_of(kinds: tuple[str, ...]) -> list[np.ndarray]:
    """Return 256 of each kind, unsigned where they are integers."""

    def source_of(seed: int, dtype: np.dtype) -> np.ndarray:
        if dtype.kind == "f":
            return edge_floats(seed, dtype)
        words = integers(seed + 1, COUNT, max(1, dtype.itemsize // 4))
        return words.view("u8")[:, 0] if dtype.itemsize == 8 else words[:, 0].astype(f"u{dtype.itemsize}")

    return [source_of(seed, dtype_of(kind)) for seed, kind in enumerate(kinds)]


def assert_same(got: Any, want: Any, what: object = "") -> None:
    """Assert equality bit for bit; any NaN equals another."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    same = got == want
    if got.dtype.kind == "f":
        same = (same & (np.signbit(got) == np.signbit(want))) | (np.isnan(got) & np.isnan(want))
    assert same.all(), f"{what}: {got[~same][:4]}, expected {np.broadcast_to(want, got.shape)[~same][:4]}"


ORDERS: dict[str, Callable[..., bool]] = {
    "f": lambda a, b: False, "lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ne": lambda a, b: a != b, "ge": lambda a, b: a >= b, "t": lambda a, b: True,
    "lg": lambda a, b: a < b or a > b, "o": lambda a, b: a == a and b == b, "u": lambda a, b: a != a or b != b,
    "nge": lambda a, b: not a >= b, "nlg": lambda a, b: not (a < b or a > b), "ngt": lambda a, b: not a > b,
    "nle": lambda a, b: not a <= b, "neq": lambda a, b: a != b, "nlt": lambda a, b: not a < b, "tru": lambda a, b: True,
}  # fmt: skip
"""Comparisons by their names, of Python's numbers."""
