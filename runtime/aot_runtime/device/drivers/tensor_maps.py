"""Encode tensor maps with CUDA's driver (`cuTensorMapEncodeTiled`), through ctypes.

A map needs an alignment that the objects of cuda-bindings do not guarantee.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.records import TENSOR_MAP_BYTES, TensorMap
from aot_runtime.contract.tensor_maps import SWIZZLES

_NOT_INTERLEAVED = 0
_PROMOTED_TO_128_BYTES = 2
"""CU_TENSOR_MAP_L2_PROMOTION_L2_128B."""
_MAP_ALIGNMENT = 128
"""Required alignment in bytes since CUDA 13; 64 before."""

# Up to this version the driver marks maps of tensors below 128 KiB wrongly, as CUTLASS found; the mark is this bit of
# the map's second word.
_LAST_TO_MARK, _SMALL, _MARK = 13010, 128 << 10, 1 << 21


def encode_tensor_map(
    library: ctypes.PyDLL, version: int, check: Callable[[int], None], tensor_map: TensorMap, shape: Sequence[int],
    strides: Sequence[int], address: int,
) -> bytes:  # fmt: skip
    """Encode a tensor map; see `Driver.tensor_map`.

    Args:
        version: the driver's version, from `cuDriverGetVersion`.
        check: raises an error for an unsuccessful status.
    """
    rank, dtype = len(shape), DTYPES[tensor_map.dtype]
    room = ctypes.create_string_buffer(TENSOR_MAP_BYTES + _MAP_ALIGNMENT)
    at = -(-ctypes.addressof(room) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
    status = library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(at), dtype.tensor_map, rank, ctypes.c_void_p(address),
        # CUDA counts dims from the innermost one.
        _array(ctypes.c_uint64, rank, shape[::-1]), _array(ctypes.c_uint64, rank, strides[::-1]),
        _array(ctypes.c_uint32, rank, tensor_map.box[::-1]), _array(ctypes.c_uint32, rank, [1] * rank),
        _NOT_INTERLEAVED, SWIZZLES.index(tensor_map.swizzle), _PROMOTED_TO_128_BYTES, int(tensor_map.nan),
    )  # fmt: skip
    check(status)
    made = ctypes.string_at(at, TENSOR_MAP_BYTES)
    reach = sum((extent - 1) * step for extent, step in zip(shape, (*strides, dtype.size), strict=True)) + 1
    return _unmarked(made) if version <= _LAST_TO_MARK and reach < _SMALL else made


def _array(kind: Any, count: int, values: Sequence[int]) -> Any:
    return (kind * count)(*values)


def _unmarked(made: bytes) -> bytes:
    (word,) = struct.unpack_from("<Q", made, 8)
    return made[:8] + struct.pack("<Q", word & ~_MARK) + made[16:]
