"""Atomic operations on memory and LDS. Lanes with the same address take effect in order, lowest first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aot_emulator.errors import MemoryAccessError
from aot_emulator.isa.floats import conversions, formats, minmax
from aot_emulator.isa.wait_counters import Isa
from aot_emulator.state.access import Place
from aot_emulator.state.arrays import Array

_DTYPES = {kind: np.dtype(f"{kind[0]}{int(kind[1:]) // 8}") for kind in ("u32", "i32", "f32", "u64", "i64", "f64")}


@dataclass(frozen=True)
class Atomic:
    """An atomic operation: `function(old, *operands)` returns the new value, all in the dtype of `kind`."""

    kind: str
    function: Callable[..., Any]
    operands: int = 1

    @property
    def words(self) -> int:
        return _DTYPES[self.kind].itemsize // 4

    @property
    def flushing(self) -> Atomic:
        """The operation with denormal floats flushed to zero on input and output."""

        def function(old: Array, *operands: Array) -> Array:
            return formats.flush_denormals(self.function(*map(formats.flush_denormals, (old, *operands))))

        return replace(self, function=function) if self.kind[0] == "f" else self


def _increment(old: Array, limit: Array) -> Array:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _decrement(old: Array, limit: Array) -> Array:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


def _add_halves(old: Array, value: Array) -> Array:
    first, second = (
        array.view(np.uint32)[:, None].view(np.float16) for array in map(np.ascontiguousarray, (old, value))
    )
    return np.ascontiguousarray(first + second).view(np.uint32)[:, 0]


def _add_bf16_halves(old: Array, value: Array) -> Array:
    sums = []
    for shift in (0, 16):
        first, second = (
            conversions.decode(array >> np.uint32(shift) & np.uint32(0xFFFF), formats.BF16) for array in (old, value)
        )
        sums.append(conversions.f32_to_bf16(first + second))
    return conversions.pack16(sums[0], sums[1])


def _exchange(old: Array, value: Array) -> Array:
    return value


def _exchange_if(old: Array, value: Array, compare: Array) -> Array:
    return np.where(old == compare, value, old)


def _subtract_to_zero(old: Array, value: Array) -> Array:
    return np.where(old < value, old.dtype.type(0), old - value)


def _subtract_if_enough(old: Array, value: Array) -> Array:
    return np.where(old < value, old, old - value)


def _smaller(old: Array, value: Array) -> Array:
    return np.where(value < old, value, old)


def _larger(old: Array, value: Array) -> Array:
    return np.where(value > old, value, old)


def _of_width(bits: int) -> dict[str, Atomic]:
    u, i = f"u{bits}", f"i{bits}"
    return {
        "swap": Atomic(u, _exchange),
        "cmpswap": Atomic(u, _exchange_if, operands=2),
        "add": Atomic(u, np.add),
        "sub": Atomic(u, np.subtract),
        "rsub": Atomic(u, lambda old, value: value - old),
        "smin": Atomic(i, np.minimum),
        "umin": Atomic(u, np.minimum),
        "smax": Atomic(i, np.maximum),
        "umax": Atomic(u, np.maximum),
        "and": Atomic(u, np.bitwise_and),
        "or": Atomic(u, np.bitwise_or),
        "xor": Atomic(u, np.bitwise_xor),
        "inc": Atomic(u, _increment),
        "dec": Atomic(u, _decrement),
    }


_32, _64 = _of_width(32), _of_width(64)
_FLOATS = {
    **{f"add_{kind}": Atomic(kind, np.add) for kind in ("f32", "f64")},
    **{f"min_{kind}": Atomic(kind, minmax.min_num) for kind in ("f32", "f64")},
    **{f"max_{kind}": Atomic(kind, minmax.max_num) for kind in ("f32", "f64")},
    "pk_add_f16": Atomic("u32", _add_halves),
    "pk_add_bf16": Atomic("u32", _add_bf16_halves),
}

_COMPARED = {"min_f32": Atomic("f32", _smaller), "max_f32": Atomic("f32", _larger)}
"""RDNA3's float min and max: comparisons with NaN are false, which leaves memory unchanged."""
_PACKED = {name: _FLOATS[name] for name in ("pk_add_f16", "pk_add_bf16")}
_NUMBERS = {f"{name}_num_f32": _FLOATS[f"{name}_f32"] for name in ("min", "max")}
_SUBTRACTIONS = {"cond_sub_u32": Atomic("u32", _subtract_if_enough), "sub_clamp_u32": Atomic("u32", _subtract_to_zero)}


def _with_types(bits: int, table: Mapping[str, Atomic]) -> dict[str, Atomic]:
    found = {f"{name}_u{bits}": table[name] for name in ("add", "sub", "inc", "dec")}
    for name in ("min", "max"):
        found |= {f"{name}_u{bits}": table[f"u{name}"], f"{name}_i{bits}": table[f"s{name}"]}
    return found | {f"{name}_b{bits}": table[name] for name in ("and", "or", "xor")}


_TYPED = _with_types(32, _32) | _with_types(64, _64)


def _in_memory() -> dict[str, Atomic]:
    exchanges = {
        f"{name}_b{bits}": table[name] for bits, table in ((32, _32), (64, _64)) for name in ("swap", "cmpswap")
    }
    return {**_TYPED, **exchanges, "add_f32": _FLOATS["add_f32"]}


MEMORY_ATOMICS: Mapping[Isa, Mapping[str, Atomic]] = {
    "cdna": {
        **{name: atomic for name, atomic in _32.items() if name != "rsub"},
        **{f"{name}_x2": atomic for name, atomic in _64.items() if name != "rsub"},
        **_FLOATS,
        "add_f32": _FLOATS["add_f32"].flushing,  # regardless of MODE, as L2 computes the sum (CDNA3 manual)
    },
    "rdna3": {**_in_memory(), **_COMPARED, "csub_u32": _SUBTRACTIONS["sub_clamp_u32"]},
    "rdna4": {**_in_memory(), **_NUMBERS, **_PACKED, **_SUBTRACTIONS},
}
"""Memory atomics by ISA and mnemonic suffix, after `global_atomic_`, `buffer_atomic_`, …"""


def _in_lds(exchange: str, compare: str) -> dict[str, Atomic]:
    found = {**_TYPED, "add_f32": _FLOATS["add_f32"]}
    for bits, table in ((32, _32), (64, _64)):
        found |= {
            f"rsub_u{bits}": table["rsub"],
            f"{exchange}_b{bits}": table["swap"],
            f"{compare}_b{bits}": table["cmpswap"],
        }
    return found


_RDNA_LDS = _in_lds("storexchg", "cmpstore")
LDS_ATOMICS: Mapping[Isa, Mapping[str, Atomic]] = {
    "cdna": {**_in_lds("wrxchg", "cmpst"), **_FLOATS},
    "rdna3": {**_RDNA_LDS, **_COMPARED, "min_f64": Atomic("f64", _smaller), "max_f64": Atomic("f64", _larger)},
    "rdna4": {
        **_RDNA_LDS,
        **_NUMBERS,
        **{f"{name}_num_f64": _FLOATS[f"{name}_f64"] for name in ("min", "max")},
        **_PACKED,
        **_SUBTRACTIONS,
    },
}
"""LDS atomics by ISA and mnemonic suffix, after `ds_` and without `rtn_`."""


def perform(atomic: Atomic, places: list[Place], operands: list[Array], shape: tuple[int, ...]) -> Array:
    """Perform an atomic for all lanes of the places.

    Args:
        operands: uint32 [words, wavefronts, lanes] each.

    Returns:
        The old values, uint32 [words, *shape]; 0 for other lanes.
    """
    result = np.zeros((atomic.words, *shape), np.uint32)
    for place in places:
        lanes = np.ones(shape, bool) if place.lanes is None else place.lanes
        values = [_typed(operand[:, lanes], atomic.kind) for operand in operands]
        offsets = place.offsets[lanes] if place.offsets.ndim > 1 else place.offsets
        old = _perform_at(atomic, place.data, offsets, values)
        result[:, lanes] = np.ascontiguousarray(old)[:, None].view(np.uint32).T
    return result


def _typed(words: Array, kind: str) -> Array:
    return np.ascontiguousarray(words.T).view(_DTYPES[kind])[:, 0]


def _perform_at(atomic: Atomic, data: Array, offsets: Array, values: list[Array]) -> Array:
    dtype = _DTYPES[atomic.kind]
    if (offsets & (dtype.itemsize - 1)).any():
        wrong = int(offsets[(offsets & (dtype.itemsize - 1)) != 0][0])
        raise MemoryAccessError(f"atomic access at offset {wrong:#x} is not aligned", wrong, dtype.itemsize)
    target = data[: data.size // dtype.itemsize * dtype.itemsize].view(dtype)
    index = offsets // dtype.itemsize
    old = np.empty(index.shape, dtype)
    turns = _turns(index)
    for turn in range(int(turns.max()) + 1):
        now = turns == turn
        old[now] = target[index[now]]
        target[index[now]] = atomic.function(old[now], *(value[now] for value in values))
    return old


def _turns(index: Array) -> Array:
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    begin = np.flatnonzero(first)
    turns = np.empty(index.shape, np.int64)
    turns[order] = np.arange(index.size) - np.repeat(begin, np.diff(np.r_[begin, index.size]))
    return turns
