"""Atomic operations on memory and LDS: lanes that hit the same address take effect one after another, lowest first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot_runtime.errors import MemoryAccessError

from . import floats
from .transfers import Place
from .wavefronts import Array

_DTYPES = {kind: np.dtype(f"{kind[0]}{int(kind[1:]) // 8}") for kind in ("u32", "i32", "f32", "u64", "i64", "f64")}


@dataclass(frozen=True)
class Atomic:
    """`function(old, *operands)` gives the new value; `operands` have the kind's dtype."""

    kind: str
    function: Callable[..., Any]
    operands: int = 1

    @property
    def words(self) -> int:
        return _DTYPES[self.kind].itemsize // 4


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
            floats.decode(array >> np.uint32(shift) & np.uint32(0xFFFF), floats.BF16) for array in (old, value)
        )
        sums.append(floats.f32_to_bf16(first + second))
    return floats.pack16(sums[0], sums[1])


def _exchange(old: Array, value: Array) -> Array:
    return value


def _exchange_if(old: Array, value: Array, compare: Array) -> Array:
    return np.where(old == compare, value, old)


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
    **{f"min_{kind}": Atomic(kind, floats.min_num) for kind in ("f32", "f64")},
    **{f"max_{kind}": Atomic(kind, floats.max_num) for kind in ("f32", "f64")},
    "pk_add_f16": Atomic("u32", _add_halves),
    "pk_add_bf16": Atomic("u32", _add_bf16_halves),
}

MEMORY_ATOMICS = {
    **{name: atomic for name, atomic in _32.items() if name != "rsub"},
    **{f"{name}_x2": atomic for name, atomic in _64.items() if name != "rsub"},
    **_FLOATS,
}
"""By the part of the mnemonic after `global_atomic_`, `buffer_atomic_`, …"""


def _lds_names() -> dict[str, Atomic]:
    found = dict(_FLOATS)
    for bits, table in ((32, _32), (64, _64)):
        found |= {f"{name}_u{bits}": table[name] for name in ("add", "sub", "rsub", "inc", "dec")}
        found |= {f"{name}_{s}{bits}": table[f"{sign}{name}"]
                  for name in ("min", "max") for s, sign in (("u", "u"), ("i", "s"))}  # fmt: skip
        found |= {f"{name}_b{bits}": table[name] for name in ("and", "or", "xor")}
        found[f"wrxchg_b{bits}"] = table["swap"]
        found[f"cmpst_b{bits}"] = table["cmpswap"]
    return found


LDS_ATOMICS = _lds_names()
"""By the part of the mnemonic after `ds_`, without `rtn_`."""


def perform(atomic: Atomic, places: list[Place], operands: list[Array], shape: tuple[int, ...]) -> Array:
    """Do the operation for every lane that a place has.

    operands: uint32 [words, wavefronts, lanes] each. Returns the old values, uint32 [words, *shape]; 0 elsewhere.
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
    """For each access, how many earlier ones go to the same place."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]]
    begin = np.flatnonzero(first)
    turns = np.empty(index.shape, np.int64)
    turns[order] = np.arange(index.size) - np.repeat(begin, np.diff(np.r_[begin, index.size]))
    return turns
