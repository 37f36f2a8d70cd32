"""The test double of libamdhip64 in Python: build it, run code over it, and inspect it.

hip-python binds its library once in a process, so a test's body runs in a process of its own; its parameters are
fixtures:

    @in_double(HIP_DOUBLE_DEVICES=2)
    def test_something(small_bundle: Path):
        double = Double()
        driver = HipDriver()
        ...
        assert double.calls("hipModuleLaunchKernel") == 0

Such a process is forked from one that has imported hip-python and the test's module, but not called the library, so
imports are done once per session. `conftest.py` has the fixture `hip_double`, which builds the double. The environment
that it reads is described in `amdhip64.c`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import inspect
import os
import pickle
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

_SOURCE = Path(__file__).with_name("amdhip64.c")
_TIMEOUT_S = 120

ILLEGAL_ADDRESS, LAUNCH_FAILURE = 700, 719
"""Statuses that a launch's callback may give."""


def build(directory: Path) -> Path:
    """Build the double into `directory/lib`, laid out as ROCm is; return the library's path."""
    library = directory / "lib" / "libamdhip64.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-shared", "-fPIC", "-pthread"]
    subprocess.run(["cc", *flags, str(_SOURCE), "-o", str(library)], check=True)
    return library


@dataclass(frozen=True)
class DoubleLibrary:
    """A built double, which child processes take for their libamdhip64."""

    path: Path

    def run(self, body: Callable[..., None], *arguments: Any, **environment: object) -> str:
        """Run `body`, a module's function, in a process of its own; returns what it printed.

        Args:
            body: the child imports the function's file.
            arguments: of the function; anything that can be pickled.
            environment: variables of the child. With others than the double's own, such as HIP_DOUBLE_DEVICES, the
                child is a fresh interpreter, for these decide which library a process loads.

        Raises:
            AssertionError: the child failed or crashed; with what it wrote.
        """
        body = getattr(body, "body", body)
        variables = {name: str(value) for name, value in environment.items()}
        request = (body.__code__.co_filename, body.__module__, body.__qualname__, arguments, variables)
        if not all(name.startswith("HIP_DOUBLE_") for name in environment):
            return self._run([sys.executable, __file__, "once"], pickle.dumps(request), environment)
        assert self._server.stdin and self._server.stdout
        pickle.dump(request, self._server.stdin)
        self._server.stdin.flush()
        return _printed(*pickle.load(self._server.stdout))

    def run_text(self, source: str, **environment: object) -> str:
        """Do as `run`, for source text and in a fresh interpreter with nothing imported."""
        return self._run([sys.executable, "-c", source], b"", environment)

    def _run(self, command: list[str], given: bytes, environment: dict[str, object]) -> str:
        variables = self.environment(environment)
        child = subprocess.run(command, input=given, env=variables, capture_output=True, timeout=_TIMEOUT_S)
        return _printed(child.returncode, child.stdout.decode(), child.stderr.decode())

    def run_fresh(self, body: Callable[..., None], *arguments: Any, **environment: object) -> str:
        """Do as `run`, but in a fresh interpreter, which has no libamdhip64 yet. The arguments are literals."""
        source = f"from {body.__module__} import {body.__name__} as body; body(*{arguments!r})"
        return self.run_text(source, **environment)

    @cached_property
    def _server(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, __file__]
        # A thread of numpy's would not live on in the forks.
        variables = self.environment({"OPENBLAS_NUM_THREADS": 1})
        return subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        """End the forked process."""
        if "_server" in vars(self):
            self._server.communicate()

    def environment(self, extra: dict[str, object]) -> dict[str, str]:
        """Return the variables of a process whose libamdhip64 it is."""
        # hip-python 10 asks ROCM_PATH; before, the dynamic loader alone decided.
        where = {"ROCM_PATH": self.path.parent.parent, "LD_LIBRARY_PATH": self.path.parent}
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        return os.environ | {name: str(value) for name, value in (where | path | extra).items()}


def _printed(status: int, stdout: str, stderr: str) -> str:
    if status:
        raise AssertionError(f"exit status {status} over the double\n{stdout}{stderr}")
    return stdout


def _serve() -> None:
    """Fork for each request of `DoubleLibrary.run`, and answer with its exit status and output.

    A fork returns from here and ends as any interpreter does.
    """
    for module in ("aot_runtime.opening", "aot_runtime.device.drivers.hip", "aot_runtime.device.foreign", "hip"):
        importlib.import_module(module)
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    while True:
        try:
            source, module, *rest = pickle.load(requests)
        except EOFError:
            return
        with suppress(Exception):  # the fork imports it again, and reports why it cannot be
            _imported(source, module)
        outputs = [os.memfd_create(name) for name in ("stdout", "stderr")]
        gc.freeze()  # what is there by now lives on, so a fork need not look through it
        process = os.fork()
        if process == 0:
            for stream, output in enumerate(outputs, 1):
                os.dup2(output, stream)
            signal.alarm(_TIMEOUT_S)
            *call, environment = rest
            os.environ |= environment
            Double().read_environment()
            return _run_body(source, module, *call)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        pickle.dump((status, *map(_read_all, outputs)), replies)
        replies.flush()


def _read_all(descriptor: int) -> str:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read().decode()


def _run_body(source: str, module: str, function: str, arguments: tuple[Any, ...]) -> None:
    body = getattr(_imported(source, module), function)
    getattr(body, "body", body)(*arguments)


def _imported(source: str, name: str) -> Any:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, source)
        assert spec and spec.loader
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


@pytest.fixture(scope="session")
def hip_double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoubleLibrary]:
    """Build the double once a session."""
    pytest.importorskip("hip", reason="hip-python is not installed", exc_type=ImportError)
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to build the double of libamdhip64 with")
    library = DoubleLibrary(build(tmp_path_factory.mktemp("rocm")))
    yield library
    library.close()


def in_double(**environment: object) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a function, whose parameters are fixtures, into a test that runs over the double, in a process of its
    own."""

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        names = inspect.signature(body).parameters

        def test(hip_double: DoubleLibrary, **fixtures: Any) -> None:
            hip_double.run(body, *(fixtures[name] for name in names), **environment)

        parameters = [inspect.Parameter("hip_double", inspect.Parameter.POSITIONAL_OR_KEYWORD), *names.values()]
        test.body, test.__name__, test.__doc__ = body, body.__name__, body.__doc__  # type: ignore[attr-defined]
        test.__module__, test.__signature__ = body.__module__, inspect.Signature(parameters)  # type: ignore[attr-defined]
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
        self._library.hip_double_allocated.restype = self._library.hip_double_kept.restype = ctypes.c_size_t
        self._library.hip_double_dead_bytes.restype = ctypes.c_size_t
        self._library.hip_double_release_threshold.restype = ctypes.c_uint64
        self._library.hip_double_allocation.restype = ctypes.c_void_p
        self._library.hip_double_allocation.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
        self._callback: Any = None

    def read_environment(self) -> None:
        """Take over what the environment now says; only before the first call of the library."""
        self._library.hip_double_read_environment()

    def fail(self, function: str, status: int, count: int = 1) -> None:
        """Make the next `count` calls of a function return `status`, having done nothing; -1: all from now on."""
        assert self._library.hip_double_fail(function.encode(), status, count) == 0, function

    def calls(self, function: str) -> int:
        """Return the number of calls of a function so far, failed ones included."""
        count = self._library.hip_double_calls(function.encode())
        assert count >= 0, function
        return count

    def alive(self, kind: str) -> int:
        """Return the number of live objects of a kind.

        Kinds: memory, host_memory, pool, module, function, stream, event, graph, executable.
        """
        count = self._library.hip_double_alive(kind.encode())
        assert count >= 0, kind
        return count

    def allocated(self, device: int = 0) -> int:
        """Return how many bytes of a device are allocated."""
        return self._library.hip_double_allocated(device)

    def kept(self, device: int = 0) -> int:
        """Return how many bytes of a device its memory pools keep unused."""
        return self._library.hip_double_kept(device)

    def dead_bytes(self) -> int:
        """Return the bytes that the double keeps for objects that died, so that their handles are never used again."""
        return self._library.hip_double_dead_bytes()

    def release_threshold(self, device: int = 0) -> int:
        """Return the release threshold of a device's newest memory pool, in bytes."""
        return self._library.hip_double_release_threshold(device)

    def allocations(self, device: int) -> list[tuple[int, int]]:
        """Return (address, bytes) of a device's allocations. Only during a launch's callback."""
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
    if sys.argv[1:] == ["once"]:
        _run_body(*pickle.load(sys.stdin.buffer)[:-1])
    else:
        _serve()
