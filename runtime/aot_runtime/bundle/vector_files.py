"""Read self-test vectors: the inputs of a call and its expected results, one file per case.

The format is that of `numpy.savez`: a zip of stored entries `inputs/<tensor>.npy` and `expected/<tensor>.npy`. Files
are untrusted, so they are parsed here: nothing is unpickled, evaluated or decompressed, and allocations are bounded by
the file's size. Dtypes that numpy lacks (bfloat16, float8) are stored as unsigned integers.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot_runtime.contract.dtypes import numpy_dtype
from aot_runtime.contract.records import Case, Op, Tensor
from aot_runtime.errors import BundleError

from .files import source_of
from .reading import read_checked
from .source import Place

INPUTS, EXPECTED = "inputs", "expected"
_NPY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][biuf][1248])', "
    rb"'fortran_order': False, 'shape': \(([\d, ]{0,200})\), \} *\n",
    re.DOTALL,
)
# Exceptions of zipfile and numpy for malformed archives and arrays.
_MALFORMED = (zipfile.BadZipFile, EOFError, ValueError, TypeError, OverflowError, NotImplementedError, RuntimeError)
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Vectors:
    """A case's arrays by tensor name. Inputs have the tensors' dtypes; results may be more precise."""

    inputs: Mapping[str, Array]
    expected: Mapping[str, Array]


def entry_name(group: str, tensor: str) -> str:
    """Return the name of a tensor's array in a file. `group` is `INPUTS` or `EXPECTED`."""
    return f"{group}/{tensor}.npy"


def dtype_of(tensor: Tensor, dtypes: Mapping[str, str]) -> np.dtype[Any]:
    """Return a tensor's dtype. `dtypes` has the values of dtype variables."""
    return numpy_dtype(dtypes.get(tensor.dtype, tensor.dtype))


def storage_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that arrays of a dtype are stored as: itself, or unsigned integers of the same size."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")


def read_vectors(place: Place, op: Op, case: Case) -> Vectors:
    """Read a case's vectors and check them against the op. Raises `BundleError` if missing, altered or invalid."""
    source = source_of(place)
    content = read_checked(source, case.vectors, "selftest vectors")
    try:
        return _vectors(op, case, dict(_entries(content)))
    except _MALFORMED as error:
        where = f"selftest vectors {source.path / case.vectors.file} (case '{case.name}' of {op.name})"
        raise BundleError(f"{where} are malformed: {error}") from None


def stored_arrays(content: bytes) -> dict[str, Array]:
    """Read the arrays of a file as stored, by name. Raises `BundleError` if the file is malformed."""
    try:
        return dict(_entries(content))
    except _MALFORMED as error:
        raise BundleError(f"selftest vectors are malformed: {error}") from None


def _entries(content: bytes) -> Iterator[tuple[str, Array]]:
    """Yield (name, array) of each entry of a file. Raises the exceptions in `_MALFORMED`."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > len(content):
            raise ValueError("its entries are larger than it is")
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{entry.filename!r} is compressed")
            yield entry.filename, _array(entry.filename, archive.read(entry))


def _array(name: str, content: bytes) -> Array:
    header = _NPY.match(content)
    if header is None:
        raise ValueError(f"{name!r} is not an array of numbers in C order")
    dtype = np.dtype(header[1].decode())
    shape = tuple(int(extent) for extent in re.findall(rb"\d+", header[2]))
    if math.prod(shape) * dtype.itemsize != len(content) - header.end():
        raise ValueError(f"{name!r} has {len(content) - header.end()} bytes, which is not {dtype}{list(shape)}")
    return np.frombuffer(content[header.end() :], dtype).reshape(shape)


def _vectors(op: Op, case: Case, stored: dict[str, Array]) -> Vectors:
    inputs, expected = {}, {}
    for tensor in op.tensors:
        name = entry_name(INPUTS, tensor.name)
        if tensor.role != "output" and not (tensor.optional and name not in stored):
            inputs[tensor.name] = _input(name, _taken(stored, name), tensor, dtype_of(tensor, case.dtypes))
        if tensor.name in case.bounds:
            expected[tensor.name] = _taken(stored, entry_name(EXPECTED, tensor.name))
            if tensor.name in inputs and inputs[tensor.name].shape != expected[tensor.name].shape:
                raise ValueError(f"'{tensor.name}' goes in with another shape than it comes out with")
    if stored:
        raise ValueError(f"it has {', '.join(map(repr, sorted(stored)))}, which the case does not use")
    return Vectors(inputs, expected)


def _taken(stored: dict[str, Array], name: str) -> Array:
    if name not in stored:
        raise ValueError(f"it lacks {name!r}")
    return stored.pop(name)


def _input(name: str, array: Array, tensor: Tensor, dtype: np.dtype[Any]) -> Array:
    rank = len(tensor.shape)
    if array.dtype != storage_dtype(dtype) or array.ndim != rank:
        raise ValueError(f"{name!r} is {array.dtype}{list(array.shape)}; the op takes {dtype} of {rank} dims")
    return array.view(dtype)


def deviation(actual: Array, expected: Array) -> Array:
    """Return |actual - expected| of each element, in float64.

    It is 0 if both are the same infinity or both NaN, and infinite if they differ and one is not finite.
    """
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(actual - expected)
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))
