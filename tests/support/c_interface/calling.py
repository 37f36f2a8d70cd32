"""Calls of ops through a bundle's generated C, by ctypes."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aot.c.api import dispatched_ops, header_text, signature
from aot.c.dtypes import ABSENT, DTYPE_NUMBERS
from aot.c.source import source_text
from aot_runtime.contract import records
from aot_runtime.contract.dtypes import FLOAT_TYPES

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]
LANGUAGES = {"c11": ["cc", "-std=c11", "-x", "c"], "c++17": ["c++", "-std=c++17", "-x", "c++"]}
CALL, OUTPUTS, EXPLAIN = range(3)
ARGUMENT, NO_VARIANT, BUNDLE, ARCH_MISMATCH, DEVICE, MEMORY = range(1, 7)
MAX_RANK = 8
_HARNESS = Path(__file__).with_name("harness.c")
DTYPE_NAMES = {number: name for name, number in DTYPE_NUMBERS.items()}
_NUMBERS = {ABSENT: 0, **DTYPE_NUMBERS}


class Tensor(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64), ("dtype", ctypes.c_int), ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK), ("strides", ctypes.c_int64 * MAX_RANK),
    )  # fmt: skip


def tensor(address: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    return Tensor(address, _NUMBERS[dtype], len(shape), shape, strides)


class _Int(ctypes.Structure):
    _fields_ = (("value", ctypes.c_int64), ("given", ctypes.c_bool))


class _Float(ctypes.Structure):
    _fields_ = (("value", ctypes.c_double), ("given", ctypes.c_bool))


class _Flag(ctypes.Structure):
    _fields_ = (("value", ctypes.c_bool), ("given", ctypes.c_bool))


class Status(ctypes.Structure):
    _fields_ = (("code", ctypes.c_int), ("message", ctypes.c_char * 1020))


_SCALARS = {"choice": ctypes.c_int, "flag": _Flag, "i1": _Flag, **dict.fromkeys(FLOAT_TYPES, _Float)}


class Arguments:
    """An op's struct of arguments."""

    def __init__(self, op: records.Op):
        members = [(item.name, Tensor) for item in op.tensors]
        members += [(item.name, _SCALARS.get(item.type, _Int)) for item in op.scalars]
        self.op = op
        self.type = type(f"{op.name}_args", (ctypes.Structure,), {"_fields_": members})

    def make(self, tensors: Mapping[str, Tensor | None], scalars: Mapping[str, Any]) -> Any:
        """Fill in the struct; names that are None or left out are not passed."""
        args = self.type()
        for name, value in tensors.items():
            if value is not None:
                setattr(args, name, value)
        choices = {item.name: item.choices for item in self.op.scalars if item.type == "choice"}
        for name, value in scalars.items():
            if value is not None and name in choices:
                setattr(args, name, choices[name].index(value) + 1)
            elif value is not None:
                setattr(args, name, dict(self.type._fields_)[name](value, True))
        return args


def compile_library(folder: Path, source: Path, *flags: str, language: str = "c11") -> Path:
    """Compile a shared library of one source; every warning is an error."""
    library = folder / f"{source.stem}.so"
    command = [*LANGUAGES[language], *WARNINGS, *flags, "-shared", "-fPIC", str(source), "-o", str(library), "-lm"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return library


def run_c(folder: Path, index: records.Index, program: str) -> str:
    """Return the output of a C program that is appended to the source of an index's dispatcher."""
    source, header = folder / f"src/{index.name}.c", folder / f"include/{index.name}.h"
    for file, text in ((source, f"{source_text(index)}\n{program}"), (header, header_text(index))):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    command = ["cc", "-std=c11", "-Wno-unused", str(source), "-o", str(folder / "program"), "-lm"]
    subprocess.run(command, check=True)
    return subprocess.run([folder / "program"], check=True, capture_output=True, text=True).stdout


class PlannedInC:
    """The planner in an index's C source, with no device."""

    def __init__(self, index: records.Index, folder: Path, *flags: str):
        source, header = folder / f"src/{index.name}.c", folder / f"include/{index.name}.h"
        for file, text in ((source, source_text(index)), (header, header_text(index))):
            file.parent.mkdir()
            file.write_text(text)
        self.library = ctypes.CDLL(str(compile_library(folder, _HARNESS, f'-DBUNDLE="{source}"', *flags)))
        self.ops = {op.name: Arguments(op) for op in dispatched_ops(index)}
        self._text = ctypes.create_string_buffer(1 << 20)

    def plan(
        self, op: str, tensors: Mapping[str, Tensor | None], scalars: Mapping[str, Any], cus: int, xcds: int
    ) -> Any:
        """Return the plan of a call as data, or (code, message) if it is refused."""
        arguments = self.ops[op]
        args = arguments.make(tensors, scalars)
        number = ctypes.c_uint64(int(signature(arguments.op), 16))
        size = ctypes.c_size_t(len(self._text))
        code = self.library.harness_plan(number, CALL, ctypes.byref(args), cus, xcds, self._text, size)
        text = self._text.value.decode()
        return (code, text) if code else json.loads(text)

    def may_overlap(self, one: Tensor, other: Tensor) -> bool:
        return bool(self.library.harness_may_overlap(ctypes.byref(one), ctypes.byref(other)))

    def is_nested(self, array: Tensor) -> bool:
        return bool(self.library.harness_is_nested(ctypes.byref(array)))


_OPEN = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(Status)
)
_CLOSE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_CALL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(Status)
)


class _Library(ctypes.Structure):
    _fields_ = (
        ("bundle", ctypes.c_char_p), ("arch", ctypes.c_char_p), ("id", ctypes.c_char_p),
        ("open", _OPEN), ("close", _CLOSE), ("call", _CALL),
    )  # fmt: skip


class RefusedError(Exception):
    """Raised for a status other than AOT_OK, with its code and message."""

    def __init__(self, status: Status):
        super().__init__(status.code, status.message.decode())
        self.code, self.message = status.code, status.message.decode()


class OpenedInC:
    """A bundle that is opened by its own source, compiled as `library`. Use it in a process over the double."""

    def __init__(self, library: Path, index: records.Index, folder: Path | str, device: int = 0, allocator: Any = None):
        name = f"{index.name}_{index.target.arch}"
        self._library = _Library.in_dll(ctypes.CDLL(str(library)), name)
        self._ops = {op.name: Arguments(op) for op in index.ops}
        self._handle, status = ctypes.c_void_p(), Status()
        self._library.open(str(folder).encode(), device, allocator, ctypes.byref(self._handle), ctypes.byref(status))
        if status.code:
            raise RefusedError(status)

    def request(
        self, request: int, op: str, tensors: Mapping[str, Tensor | None], scalars: Mapping[str, Any], stream: int = 0
    ) -> tuple[Any, str]:
        """Return (the arguments, the status's message). Raises `RefusedError`."""
        args, status = self._ops[op].make(tensors, scalars), Status()
        number = int(signature(self._ops[op].op), 16)
        self._library.call(self._handle, number, request, ctypes.byref(args), stream or None, ctypes.byref(status))
        if status.code:
            raise RefusedError(status)
        return args, status.message.decode()

    def close(self) -> None:
        self._library.close(self._handle)
