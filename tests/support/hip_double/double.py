"""The test double of libamdhip64 for Python: to build it, to run code over it, and to look into it.

hip-python binds its library once in a process, so a test's body runs in a process of its own:

    @in_double(HIP_DOUBLE_DEVICES=2)
    def test_something():
        double = Double()
        driver = HipDriver()
        ...
        assert double.calls("hipModuleLaunchKernel") == 0

`tests/conftest.py` has the fixture `hip_double`, which builds the double. The environment that it reads is described in
`amdhip64.c`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_SOURCE = Path(__file__).with_name("amdhip64.c")
_TIMEOUT_S = 120

ILLEGAL_ADDRESS, LAUNCH_FAILURE = 700, 719
"""Statuses that a launch's callback may give."""


def build(directory: Path) -> Path:
    """Compile the double into `directory/lib`, laid out as ROCm is; returns the library's path."""
    library = directory / "lib" / "libamdhip64.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-shared", "-fPIC", "-pthread"]
    subprocess.run(["cc", *flags, str(_SOURCE), "-o", str(library)], check=True)
    return library


@dataclass(frozen=True)
class DoubleLibrary:
    """A built double, which child processes take for their libamdhip64."""

    path: Path

    def run(self, body: str | Callable[..., None], *arguments: Any, **environment: object) -> str:
        """Run `body` in a process of its own; returns what it printed.

        Args:
            body: source text, or a module's function; the child imports the function's file.
            arguments: of the function; anything that JSON can hold.
            environment: variables of the child, such as HIP_DOUBLE_DEVICES.

        Raises:
            AssertionError: the child failed or crashed; with what it wrote.
        """
        command = [sys.executable, "-c", body] if isinstance(body, str) else _command(body, arguments)
        child = subprocess.run(
            command, env=self._environment(environment), capture_output=True, text=True, timeout=_TIMEOUT_S
        )
        if child.returncode:
            raise AssertionError(f"exit status {child.returncode} over the double\n{child.stdout}{child.stderr}")
        return child.stdout

    def _environment(self, extra: dict[str, object]) -> dict[str, str]:
        # hip-python 10 asks ROCM_PATH; before, the dynamic loader alone decided.
        where = {"ROCM_PATH": self.path.parent.parent, "LD_LIBRARY_PATH": self.path.parent}
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return os.environ | {name: str(value) for name, value in (where | path | extra).items()}


def _command(body: Callable[..., None], arguments: tuple[Any, ...]) -> list[str]:
    body = getattr(body, "body", body)
    source = body.__code__.co_filename
    return [sys.executable, __file__, source, body.__module__, body.__qualname__, json.dumps(arguments)]


def _run_child(source: str, module_name: str, function: str, arguments: str) -> None:
    """The child's side of `DoubleLibrary.run`."""
    spec = importlib.util.spec_from_file_location(module_name, source)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    found = getattr(module, function)
    getattr(found, "body", found)(*json.loads(arguments))


@pytest.fixture(scope="session")
def hip_double(tmp_path_factory: pytest.TempPathFactory) -> DoubleLibrary:
    """The double, built once a session."""
    pytest.importorskip("hip", reason="hip-python is not installed", exc_type=ImportError)
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to build the double of libamdhip64 with")
    return DoubleLibrary(build(tmp_path_factory.mktemp("rocm")))


def in_double(**environment: object) -> Callable[[Callable[[], None]], Callable[[DoubleLibrary], None]]:
    """Make a function without parameters a test that runs over the double, in a process of its own."""

    def decorate(body: Callable[[], None]) -> Callable[[DoubleLibrary], None]:
        def test(hip_double: DoubleLibrary) -> None:
            hip_double.run(body, **environment)

        test.body, test.__name__, test.__doc__ = body, body.__name__, body.__doc__
        return test

    return decorate


@dataclass(frozen=True)
class Launch:
    """A launch as the library received it."""

    image: bytes
    """The code object."""
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    lds_bytes: int
    kernargs: bytes
    device: int
    stream: int


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, *[ctypes.c_uint] * 7,
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p,
)  # fmt: skip


class Double:
    """The double that this process runs over."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(f"{os.environ['ROCM_PATH']}/lib/libamdhip64.so")
        self._library.hip_double_calls.restype = self._library.hip_double_alive.restype = ctypes.c_long
        self._library.hip_double_allocated.restype = ctypes.c_size_t
        self._library.hip_double_release_threshold.restype = ctypes.c_uint64
        self._library.hip_double_allocation.restype = ctypes.c_void_p
        self._library.hip_double_allocation.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
        self._callback: Any = None

    def fail(self, function: str, status: int, count: int = 1) -> None:
        """Make the next `count` calls of a function return `status`, having done nothing; -1: all from now on."""
        assert self._library.hip_double_fail(function.encode(), status, count) == 0, function

    def calls(self, function: str) -> int:
        """How often a function was called so far, failed calls included."""
        count = self._library.hip_double_calls(function.encode())
        assert count >= 0, function
        return count

    def alive(self, kind: str) -> int:
        """How many are alive of: memory, host_memory, pool, module, function, stream, event, graph, executable."""
        count = self._library.hip_double_alive(kind.encode())
        assert count >= 0, kind
        return count

    def allocated(self, device: int = 0) -> int:
        """Bytes of a device that are allocated."""
        return self._library.hip_double_allocated(device)

    def release_threshold(self, device: int = 0) -> int:
        """The release threshold of a device's newest memory pool, in bytes."""
        return self._library.hip_double_release_threshold(device)

    def allocations(self, device: int) -> list[tuple[int, int]]:
        """(address, bytes) of a device's allocations. Only during a launch's callback."""
        found, size = [], ctypes.c_size_t()
        while address := self._library.hip_double_allocation(device, len(found), ctypes.byref(size)):
            found.append((address, size.value))
        return found

    def on_launch(self, callback: Callable[[Launch], int | None]) -> None:
        """Call `callback` for each launch; it returns a status, None for success. One that raises fails the launch."""

        def launched(image, size, kernel, gx, gy, gz, bx, by, bz, lds_bytes, kernargs, nbytes, device, stream) -> int:
            code, segment = ctypes.string_at(image, size), ctypes.string_at(kernargs, nbytes)
            grid, block, name = (gx, gy, gz), (bx, by, bz), kernel.decode()
            try:
                return callback(Launch(code, name, grid, block, lds_bytes, segment, device, stream or 0)) or 0
            except Exception:
                traceback.print_exc()
                return LAUNCH_FAILURE

        self._callback = _CALLBACK(launched)
        self._library.hip_double_on_launch(self._callback)


if __name__ == "__main__":
    _run_child(*sys.argv[1:])
