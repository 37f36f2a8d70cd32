"""A libamdhip64 that tests look into: the double of it or, with `--on rocm`, AMD's own, whose calls are watched.

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
that it reads is described in `amdhip64.c`. AMD's library has the GPUs of the session: tests that ask for others are
skipped there, and so are those marked `@in_double(only="why")`.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from aot_runtime.device.drivers.library import VARIABLE
from tests.rocm.session import inside, is_inside

_FOLDER = Path(__file__).parent
_TIMEOUT_S = 120
_DEVICES = "HIP_DOUBLE_DEVICES"
_SESSIONS_DEVICES = 2

ILLEGAL_ADDRESS, LAUNCH_FAILURE = 700, 719
"""Statuses that a launch's callback may give."""


def build(directory: Path) -> Path:
    """Build the double into `directory/lib`, laid out as ROCm is; return the library's path."""
    return _compile(directory, "amdhip64.c")


def build_watched(directory: Path, original: Path) -> Path:
    """As `build`, for the library that watches the calls of another one.

    It has the other's name for the dynamic loader, which therefore finds the other one by its path alone.
    """
    directory.mkdir(parents=True, exist_ok=True)
    link = directory / "original.so"
    subprocess.run(["cc", "-shared", "-xc", "/dev/null", "-o", str(link)], check=True)  # no name to be found by
    options = [f'-DLIBRARY="{link}"', f"-Wl,-soname,{original.name},--no-as-needed", str(link)]
    library = _compile(directory, "watched.c", *options)
    link.unlink()
    link.symlink_to(original)
    return library


def _compile(directory: Path, source: str, *options: str) -> Path:
    library = directory / "lib" / "libamdhip64.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-shared", "-fPIC", "-pthread"]
    subprocess.run(["cc", *flags, str(_FOLDER / source), *options, "-o", str(library)], check=True)
    return library


@dataclass(frozen=True)
class DoubleLibrary:
    """A built library, which child processes take for their libamdhip64."""

    path: Path
    python: tuple[str, ...] = (sys.executable,)
    """The command that runs Python over it."""
    is_double: bool = True

    def only(self, why: str) -> None:
        """Skip a test if this is AMD's library."""
        if not self.is_double:
            pytest.skip(why)

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
        variables = self._settings(environment)
        request = (body.__code__.co_filename, body.__module__, body.__qualname__, arguments, variables)
        if not all(name.startswith("HIP_DOUBLE_") for name in environment):
            return self._run([__file__, "once"], pickle.dumps(request), environment)
        assert self._server.stdin and self._server.stdout
        pickle.dump(request, self._server.stdin)
        self._server.stdin.flush()
        return _printed(*pickle.load(self._server.stdout))

    def run_text(self, source: str, **environment: object) -> str:
        """Do as `run`, for source text and in a fresh interpreter with nothing imported."""
        return self._run(["-c", source], b"", environment)

    def _run(self, arguments: list[str], given: bytes, environment: dict[str, object]) -> str:
        variables, command = self.environment(environment), [*self.python, *arguments]
        child = subprocess.run(command, input=given, env=variables, capture_output=True, timeout=_TIMEOUT_S)
        return _printed(child.returncode, child.stdout.decode(), child.stderr.decode())

    def run_fresh(self, body: Callable[..., None], *arguments: Any, **environment: object) -> str:
        """Do as `run`, but in a fresh interpreter, which has no libamdhip64 yet. The arguments are literals."""
        source = f"from {body.__module__} import {body.__name__} as body; body(*{arguments!r})"
        return self.run_text(source, **environment)

    @cached_property
    def _server(self) -> subprocess.Popen[bytes]:
        # A thread of numpy's would not live on in the forks.
        variables = self.environment({"OPENBLAS_NUM_THREADS": 1})
        return subprocess.Popen([*self.python, __file__], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self) -> None:
        """End the forked process."""
        if "_server" in vars(self):
            self._server.communicate()

    def environment(self, extra: dict[str, object]) -> dict[str, str]:
        """Return the variables of a process whose libamdhip64 it is."""
        # hip-python 10 asks ROCM_PATH; before, the dynamic loader alone decided.
        where: dict[str, object] = {"ROCM_PATH": self.path.parent.parent, "LD_LIBRARY_PATH": self.path.parent}
        if not self.is_double:
            where[VARIABLE] = self.path  # of the two that such a process has
        where["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        return os.environ | {name: str(value) for name, value in where.items()} | self._settings(extra)

    def _settings(self, environment: Mapping[str, object]) -> dict[str, str]:
        """A child's variables, with those of the double as AMD's library knows them. Skips what only the double has."""
        variables = {name: str(value) for name, value in environment.items()}
        if self.is_double:
            return variables
        count = int(variables.pop(_DEVICES, 1))
        if count > _SESSIONS_DEVICES or any(name.startswith("HIP_DOUBLE_") for name in variables):
            pytest.skip(f"GPUs that the double alone has: {environment}")
        return variables | {"HIP_VISIBLE_DEVICES": ",".join(map(str, range(count))) or "-1"}


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
            Double().read_environment()  # the main thread loads it: else HIP 6.4.3 crashes at the end
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
    """The double or, in a session above AMD's libraries, theirs, watched. Built once a session."""
    pytest.importorskip("hip", reason="hip-python is not installed", exc_type=ImportError)
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to build the double of libamdhip64 with")
    library = _library(tmp_path_factory.mktemp("rocm"))
    yield library
    library.close()


def _library(folder: Path) -> DoubleLibrary:
    if not is_inside():
        return DoubleLibrary(build(folder))
    rocm = inside()
    python = rocm.python(executable=Path(sys.executable))
    return DoubleLibrary(build_watched(folder, rocm.hip), tuple(python), is_double=False)


def in_double(only: str = "", **environment: object) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function, whose parameters are fixtures, a test that runs over the double, in a process of its own.

    Args:
        only: why it does not run over AMD's library.
        environment: the double's settings.
    """

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        names = inspect.signature(body).parameters

        def test(hip_double: DoubleLibrary, **fixtures: Any) -> None:
            if only:
                hip_double.only(only)
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
    """The libamdhip64 that this process runs over: the double, or AMD's."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(f"{os.environ['ROCM_PATH']}/lib/libamdhip64.so")
        self._library.hip_double_calls.restype = self._library.hip_double_alive.restype = ctypes.c_long
        self._library.hip_double_allocated.restype = self._library.hip_double_kept.restype = ctypes.c_size_t
        self._library.hip_double_release_threshold.restype = ctypes.c_uint64
        self._callback: Any = None
        self.is_double = hasattr(self._library, "hip_double_allocation")
        """Or it is AMD's, which knows neither `allocations` nor `dead_bytes`."""
        if self.is_double:
            self._library.hip_double_dead_bytes.restype = ctypes.c_size_t
            self._library.hip_double_allocation.restype = ctypes.c_void_p
            place = ctypes.POINTER(ctypes.c_size_t)
            self._library.hip_double_allocation.argtypes = [ctypes.c_int, ctypes.c_size_t, place]

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
