"""DLPack capsules: an address and a layout, given to another library or taken from it, with no copy.

The structs are those of dlpack.h, version 0.8 ABI (unversioned capsules, `DLManagedTensor`), which numpy, torch,
cupy and jax all take: https://dmlc.github.io/dlpack/latest/c_api.html
"""

from __future__ import annotations

import ctypes
from typing import Any

from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.layout import ALIGNMENT, Layout, make_layout, packed_strides
from aot_runtime.errors import ArgumentError

DLPACK_DEVICES = {"cuda": 2, "hip": 10, "emulator": 1}
"""DLDeviceType of each driver: kDLCUDA, kDLROCM, kDLCPU."""

_KINDS = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
_CODES = {
    name: (_KINDS[name.rstrip("0123456789")], size * 8)
    for name, size in DTYPES.items()
    if not name.startswith("float8")
} | {
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
}
_NAMES = {code: name for name, code in _CODES.items()}


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_CapsuleDestructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, _CapsuleDestructor)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
# The destructor gets a capsule whose count is zero already: as a raw pointer, so that no reference is taken.
_raw_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))

_FRESH, _USED = b"dltensor", b"used_dltensor"

_exports: dict[int, tuple[Any, ...]] = {}
"""What each exported struct needs alive until its consumer calls the deleter, by the struct's address."""


@_Deleter
def _delete(managed: Any) -> None:
    _exports.pop(ctypes.addressof(managed.contents), None)


@_CapsuleDestructor
def _destroy(capsule: int) -> None:
    if _raw_is_valid(capsule, _FRESH):  # nobody consumed it
        _exports.pop(_raw_pointer(capsule, _FRESH), None)


def export_capsule(ptr: int, layout: Layout, device: tuple[int, int], owner: Any) -> Any:
    """A `dltensor` capsule of an array; `owner` stays alive until the consumer lets go. device: DLPack's (type, id)."""
    rank = len(layout.shape)
    shape, strides = (ctypes.c_int64 * rank)(*layout.shape), (ctypes.c_int64 * rank)(*layout.strides)
    tensor = _Tensor(ptr, _Device(*device), rank, _DataType(*_CODES[layout.dtype], 1), shape, strides, 0)
    managed = _Managed(tensor, None, _delete)
    address = ctypes.addressof(managed)
    _exports[address] = (managed, shape, strides, owner)
    return _api.PyCapsule_New(address, _FRESH, _destroy)


class _Imported:
    """Keeps another library's tensor alive, and lets go of it when the last view is gone."""

    def __init__(self, managed: _Managed):
        self.managed = managed

    def __del__(self) -> None:
        if self.managed.deleter:
            self.managed.deleter(ctypes.byref(self.managed))


def import_capsule(capsule: Any, device: tuple[str, int]) -> tuple[int, Layout, Any]:
    """(address, layout on `device`, owner) of a capsule, which is used up. Raises `ArgumentError`."""
    managed = _Managed.from_address(_api.PyCapsule_GetPointer(capsule, _FRESH))
    tensor = managed.tensor
    code = (tensor.dtype.code, tensor.dtype.bits)
    if code not in _NAMES or tensor.dtype.lanes != 1:
        raise ArgumentError(f"DLPack dtype code {code[0]} with {code[1]} bits is not supported")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else packed_strides(shape)
    _api.PyCapsule_SetName(capsule, _USED)
    ptr = (tensor.data or 0) + tensor.byte_offset
    layout = make_layout(device, _NAMES[code], shape, strides, ptr % ALIGNMENT == 0, foreign=True)
    return ptr, layout, _Imported(managed)
