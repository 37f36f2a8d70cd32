"""The test double of libcuda in Python: build it, run code over it, and inspect it.

cuda-bindings binds its library once in a process, so a test's body runs in a process of its own:

    @in_cuda_double
    def test_something(folder: Path):
        double = CudaDouble()
        bundle = open_bundle(folder, "cuda")
        ...
        assert double.launches() == []
"""

from __future__ import annotations

import ctypes
import inspect
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_SOURCE = Path(__file__).with_name("cuda.c")
_WHERE = "CUDA_DOUBLE"
_TIMEOUT_S = 120


def build(folder: Path) -> Path:
    """Build the double into a folder; return the library's path."""
    folder.mkdir()
    library = folder / "libcuda.so.1"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run(["cc", *flags, str(_SOURCE), "-o", str(library)], check=True)
    return library


def in_cuda_double(body: Callable[..., None]) -> Callable[..., None]:
    """Turn a function, whose parameters are fixtures (paths all), into a test over the double, in a process of its
    own."""
    names = list(inspect.signature(body).parameters)

    def test(tmp_path: Path, **fixtures: Any) -> None:
        pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
        if shutil.which("cc") is None:
            pytest.skip("no C compiler (cc) to build the double of libcuda with")
        library = build(tmp_path / "double")
        paths = [str((fixtures | {"tmp_path": tmp_path})[name]) for name in names]
        source = (
            f"from pathlib import Path; from {body.__module__} import {body.__name__} as test; "
            f"test.body(*map(Path, {paths!r}))"
        )
        variables = {"LD_LIBRARY_PATH": str(library.parent), _WHERE: str(library)}
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-c", source]
        ran = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=_TIMEOUT_S)
        assert ran.returncode == 0, f"exit status {ran.returncode} over the double\n{ran.stdout}{ran.stderr}"

    taken = dict.fromkeys(("tmp_path", *names))
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in taken]
    test.body, test.__name__, test.__doc__ = body, body.__name__, body.__doc__  # type: ignore[attr-defined]
    test.__module__, test.__signature__ = body.__module__, inspect.Signature(parameters)  # type: ignore[attr-defined]
    return test


@dataclass(frozen=True)
class CudaLaunch:
    """A launch as the library received it. early: it may begin before those that precede it have ended."""

    kernel: str
    grid: tuple[int, int, int]
    block: int
    shared: int
    stream: int
    kernargs: bytes
    early: bool


class EncodedMap(NamedTuple):
    """The arguments of a tensor map's encoding, innermost dim first. `word` is the map's second word."""

    dtype: int
    swizzle: int
    promotion: int
    fill: int
    word: int
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]


def encoded_map(data: bytes) -> EncodedMap:
    """Decode a tensor map of the double."""
    dtype, rank, _, swizzle, promotion, fill, word, address, *rest = struct.unpack("<6B2xQQ5Q4Q5I12x", data)
    return EncodedMap(
        dtype, swizzle, promotion, fill, word, address, tuple(rest[:rank]), tuple(rest[5 : 5 + rank - 1]),
        tuple(rest[9 : 9 + rank]),
    )  # fmt: skip


class _Launch(ctypes.Structure):
    _fields_ = (
        ("image", ctypes.c_void_p), ("kernel", ctypes.c_char * 256), ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint), ("shared", ctypes.c_uint), ("size", ctypes.c_uint), ("early", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("kernargs", ctypes.c_ubyte * 4096),
    )  # fmt: skip


class CudaDouble:
    """The double that this process runs over."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ[_WHERE])
        self._library.cuda_double_launch.restype = ctypes.POINTER(_Launch)

    @property
    def encoded(self) -> int:
        """Return the number of tensor maps that were encoded."""
        return self._library.cuda_double_encoded()

    def be_version(self, version: int) -> None:
        """Set the driver's version that `cuDriverGetVersion` gives."""
        self._library.cuda_double_version(version)

    def launches(self) -> list[CudaLaunch]:
        """Return all launches so far, of at most 256."""
        found = (self._library.cuda_double_launch(i).contents for i in range(self._library.cuda_double_launched()))
        return [
            CudaLaunch(item.kernel.decode(), tuple(item.grid), item.block, item.shared, item.stream or 0,
                       bytes(item.kernargs[: item.size]), bool(item.early))
            for item in found
        ]  # fmt: skip
