"""Export and import of DLPack capsules, without copies.

The structs follow dlpack.h: `DLManagedTensor`, and since version 1 `DLManagedTensorVersioned`, which has a read-only
flag: https://dmlc.github.io/dlpack/latest/c_api.html
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.layout import Shape, packed_strides
from aot_runtime.errors import ArgumentError

VERSION = (1, 0)
"""The version of DLPack whose capsules are made, and asked for."""
CPU = (1, 0)
"""kDLCPU."""
HOST_DEVICES = (1, 3, 11)
"""DLDeviceTypes of host-accessible memory: kDLCPU, kDLCUDAHost, kDLROCMHost."""
_READ_ONLY, _IS_COPIED = 1, 2
"""Flags of a versioned capsule."""
_HAS_VERSIONS = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1)
"""True if numpy supports versioned capsules."""

_NAMES = {(row.dlpack, 8 * row.size): row.name for row in DTYPES.values()}


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


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))
    names = (b"dltensor", b"used_dltensor")


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )
    names = (b"dltensor_versioned", b"used_dltensor_versioned")


_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)


@dataclass(frozen=True)
class Exchanged:
    """An array between two libraries.

    Attributes:
        ptr: the address of its first element.
        dtype: the dtype's name.
        strides: strides in elements.
        owner: object to keep alive while the array is in use.
        device: DLPack's (device type, device id).
        writeable: True if it may be written to.
    """

    ptr: int
    dtype: str
    shape: Shape
    strides: Shape
    owner: Any
    device: tuple[int, int]
    writeable: bool = True


def export_capsule(array: Exchanged, versioned: bool, copied: bool = False) -> Any:
    """Export an array as a capsule that keeps its owner alive. `copied` marks it as a copy made for the consumer.

    The capsule is made by numpy over the same addresses, then device and dtype are patched. Its deleter is C code,
    which is safe to run anywhere, even while an exception is handled. numpy before 2.1 has no versioned capsules.
    """
    dtype = DTYPES[array.dtype]
    size = dtype.size
    memory = {
        "data": (array.ptr, False),
        "shape": array.shape,
        "strides": tuple(stride * size for stride in array.strides),
        "typestr": f"|u{size}",
        "version": 3,
    }
    view = np.asarray(SimpleNamespace(__array_interface__=memory, owner=array.owner))
    capsule = view.__dlpack__(max_version=VERSION) if versioned and _HAS_VERSIONS else view.__dlpack__()
    form = _form(capsule)
    managed = form.from_address(_api.PyCapsule_GetPointer(capsule, form.names[0]))
    managed.tensor.device = _Device(*array.device)
    managed.tensor.dtype = _DataType(dtype.dlpack, 8 * size, 1)
    if isinstance(managed, _Versioned):
        managed.flags = _IS_COPIED * copied | _READ_ONLY * (not array.writeable)
    return capsule


def _form(capsule: Any) -> type[_Managed | _Versioned]:
    return _Versioned if _api.PyCapsule_IsValid(capsule, _Versioned.names[0]) else _Managed


class _Imported:
    """Keeps another library's tensor alive until the last view is gone."""

    def __init__(self, managed: _Managed | _Versioned):
        self.managed = managed

    def __del__(self) -> None:
        if self.managed.deleter:
            self.managed.deleter(ctypes.addressof(self.managed))


def import_capsule(capsule: Any) -> Exchanged:
    """Consume a capsule and return its array. If it raises `ArgumentError`, the capsule is left unconsumed."""
    form = _form(capsule)
    managed = form.from_address(_api.PyCapsule_GetPointer(capsule, form.names[0]))
    if isinstance(managed, _Versioned) and managed.major != VERSION[0]:
        raise ArgumentError(f"a DLPack capsule of version {managed.major}.{managed.minor}; version 1 is supported")
    tensor = managed.tensor
    code = (tensor.dtype.code, tensor.dtype.bits)
    if code not in _NAMES or tensor.dtype.lanes != 1:
        raise ArgumentError(f"DLPack dtype code {code[0]} with {code[1]} bits is not supported")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else packed_strides(shape)
    _api.PyCapsule_SetName(capsule, form.names[1])
    ptr = (tensor.data or 0) + tensor.byte_offset
    writeable = not (isinstance(managed, _Versioned) and managed.flags & _READ_ONLY)
    where = (tensor.device.type, tensor.device.id)
    return Exchanged(ptr, _NAMES[code], shape, strides, _Imported(managed), where, writeable)
