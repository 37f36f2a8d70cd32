"""What tests of instructions share: the mnemonics of an arch, and registers and their halves."""

from __future__ import annotations

import importlib
from functools import cache

import numpy as np
import numpy.typing as npt
from aot_emulator.isa.archs import ARCHS
from aot_emulator.isa.mnemonics import cdna_name

from tests.support.emulation.machine import Machine, edge_floats, integers

RDNA = ("gfx1100", "gfx1201")
_TABLES = ("SOP1", "SOP2", "SOPC", "SOPK", "VOP1", "VOP2", "VOP3", "VOP3SD", "VOP3P", "VOPC")
SHAPE = (8, 32)


@cache
def mnemonics(arch: str) -> dict[str, str]:
    """An arch's mnemonics in the decoder's tables, by what CDNA calls them."""
    isa = ARCHS[arch].isa
    tables = importlib.import_module(f"tinygrad.runtime.autogen.amd.{isa}.enum")
    found = {
        op.name.lower().removesuffix("_e32").removesuffix("_e64")
        for table in _TABLES
        for op in getattr(tables, f"{table}Op")
    }
    return {name if isa == "cdna" else cdna_name(name): name for name in found}


def bits_of(kind: str) -> int:
    return int(kind.lstrip("=")[1:])


def dtype_of(kind: str) -> np.dtype:
    return np.dtype(f"{kind.lstrip('=')[0]}{bits_of(kind) // 8}")


def spelled(kind: str, number: int, half: int | None = None) -> str:
    """A vector register; half: which 16 bits, None where the arch does not name them."""
    if bits_of(kind) == 64:
        return f"v[{number}:{number + 1}]"
    return f"v{number}" if half is None or bits_of(kind) != 16 else f"v{number}.{'lh'[half]}"


def put(machine: Machine, number: int, values: np.ndarray, half: int = 0) -> None:
    """Values in a vector register, or a pair; those of 16 bits in a half of it, the other being random."""
    if values.itemsize == 8:
        words = np.ascontiguousarray(values).view(np.uint32).reshape(*values.shape, 2)
        machine.v[number], machine.v[number + 1] = words[..., 0], words[..., 1]
    elif values.itemsize == 4:
        machine.v[number] = values.view(np.uint32)
    else:
        machine.v[number] = np.random.default_rng(number).integers(0, 1 << 32, values.shape, np.uint32)
        machine.v[number].view(np.uint16)[:, half::2] = values.view(np.uint16)


def get(machine: Machine, number: int, dtype: npt.DTypeLike, half: int = 0) -> np.ndarray:
    dtype = np.dtype(dtype)
    if dtype.itemsize == 8:
        return np.stack([machine.v[number], machine.v[number + 1]], -1).view(dtype)[..., 0]
    if dtype.itemsize == 4:
        return machine.v[number].view(dtype)
    return np.ascontiguousarray(machine.v[number].view(np.uint16)[:, half::2]).view(dtype)


def assert_same(got: np.ndarray, want: np.ndarray, what: object = "") -> None:
    """Bit for bit; any NaN is as good as another."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    same = got == want
    if got.dtype.kind == "f":
        same = (same & (np.signbit(got) == np.signbit(want))) | (np.isnan(got) & np.isnan(want))
    assert same.all(), f"{what}: {got[~same][:4]}, expected {np.broadcast_to(want, got.shape)[~same][:4]}"


def halves(register: np.ndarray) -> list[np.ndarray]:
    """The two 16-bit numbers of each lane."""
    return [np.ascontiguousarray(register.view(np.uint16)[:, i::2]) for i in (0, 1)]


def sources_of(kinds: tuple[str, ...]) -> list[np.ndarray]:
    """Of the kinds, with the edges of each; [8, 32]."""
    found = []
    for i, kind in enumerate(kinds):
        dtype = dtype_of(kind)
        if dtype.kind == "f":
            found.append(edge_floats(i, SHAPE, dtype))
        else:
            words = integers(i, (*SHAPE, max(1, dtype.itemsize // 4)))
            found.append(words.view(dtype)[..., 0] if dtype.itemsize >= 4 else words[..., 0].astype(dtype))
    return found
