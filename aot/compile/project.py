"""The modules of a project: every file is read once, and what was read is what runs and what is hashed."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import io
import linecache
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from aot.paths import is_file, is_folder
from aot_runtime.errors import AotError

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

MAX_SOURCE_BYTES = 16 << 20


class CompileError(AotError):
    """A kernel cannot be built.

    Attributes:
        reason: what is wrong, in a few lines, with the offending line of the kernel where there is one.
        traceback_text: the full Python traceback of the cause; empty where the reason says it all.
    """

    def __init__(self, reason: str, traceback_text: str = ""):
        super().__init__(reason, traceback_text)
        self.reason, self.traceback_text = reason, traceback_text

    def __str__(self) -> str:
        return self.reason


class KernelFileError(CompileError):
    """A kernel file is missing, cannot be imported, or changed during the build."""


class KernelFunctionError(CompileError):
    """A kernel file has no `@triton.jit` function of the name."""


@functools.cache
def project(root: Path | str) -> Project:
    """The one `Project` of a root in this process."""
    return Project(Path(root).resolve())


# Importing changes the process's module table, and compiling Triton's settings: one thread at a time does either.
PROCESS_LOCK = threading.RLock()


class Project:
    """The modules of one project root. They are in `sys.modules` only while `active`, so that two roots, or a root and
    the process's own packages, may have modules of the same name; they are imported anew once a file has changed.

    Attributes:
        digests: every file of the project that was imported, by its path from the root, and the SHA-256 of what it was
            then; complete once no longer `active`.
    """

    def __init__(self, root: Path):
        self.root = root
        self.digests: dict[str, str] = {}
        self._modules: dict[str, ModuleType] = {}
        self._expected: Mapping[str, str] = {}

    @contextmanager
    def active(self, expected: Mapping[str, str] | None = None) -> Iterator[Project]:
        """Make the project's modules importable, and no other project's.

        Args:
            expected: file → digest. Where given, no file of another digest is imported, and what was imported of these
                digests is used, whatever the files are by now; else what was imported is used while it is unchanged.
        """
        with PROCESS_LOCK:
            self._expected = expected or {}
            if not self._is_current(expected):
                self._modules, self.digests = {}, {}
                importlib.invalidate_caches()
            own = {path.stem for path in self.root.iterdir() if path.is_dir() or path.suffix == ".py"}
            aside = {
                name: module
                for name, module in list(sys.modules.items())
                if name.partition(".")[0] in own and self._is_elsewhere(name, module)
            }
            before = sys.modules.keys() - aside.keys()
            write_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
            for name in aside:
                del sys.modules[name]
            sys.modules.update(self._modules)
            finder = _Finder(self)
            sys.meta_path.insert(_before_paths(), finder)
            sys.path.insert(0, str(self.root))
            try:
                yield self
            finally:
                self._keep([name for name in sys.modules if name not in before])
                sys.path.remove(str(self.root))
                sys.meta_path.remove(finder)
                sys.modules.update(aside)
                sys.dont_write_bytecode = write_bytecode

    def load(self, source: str, function: str) -> JITFunction:
        """The `@triton.jit` function of a file, with any `@triton.autotune` and `@triton.heuristics` around it taken
        off; for use while `active`. Raises KernelFileError, KernelFunctionError."""
        from triton import knobs
        from triton.runtime.autotuner import Autotuner, Heuristics
        from triton.runtime.jit import JITFunction

        if knobs.runtime.interpret:
            raise CompileError("TRITON_INTERPRET is set: kernels are interpreted, not compiled; unset it to build")
        found = self.attribute(source, function)
        while isinstance(found, Autotuner | Heuristics):
            found = found.fn
        if not isinstance(found, JITFunction):
            kind = type(found).__name__
            raise KernelFunctionError(f"{function!r} in {source} is a {kind}, not a @triton.jit function")
        return found

    def attribute(self, source: str, function: str) -> Any:
        """What a file calls `function`, for use while `active`. Raises KernelFileError, KernelFunctionError."""
        found = getattr(self._import(source), function, None)
        if found is None:
            raise KernelFunctionError(f"{source} has no function {function!r}")
        return found

    def read(self, path: Path) -> bytes:
        """The content of a file of the project. Raises `KernelFileError` where it is not what is expected."""
        file = path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)
        if not is_file(path) or path.stat().st_size > MAX_SOURCE_BYTES:
            raise KernelFileError(f"{file} is no file of at most {MAX_SOURCE_BYTES} bytes")
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if self._expected.get(file, digest) != digest:
            raise KernelFileError(f"file {file} changed during the build; build again")
        self.digests[file] = digest
        return content

    def place(self, trace: TracebackType | None) -> str:
        """` (file:line)` of the innermost line of the project in a traceback; empty where there is none."""
        for frame in reversed(traceback.extract_tb(trace)):
            path = Path(frame.filename)
            if path.is_relative_to(self.root):
                return f" ({path.relative_to(self.root).as_posix()}:{frame.lineno})"
        return ""

    def _is_current(self, expected: Mapping[str, str] | None) -> bool:
        """Whether what was imported may be used."""
        if expected is not None:
            return all(expected.get(file, digest) == digest for file, digest in self.digests.items())
        return all(_digest(self.root / file) == digest for file, digest in self.digests.items())

    def _import(self, source: str) -> ModuleType:
        path = self.root / source
        name = ".".join(Path(source).with_suffix("").parts)
        while name in sys.modules and _location(sys.modules[name]) != path.resolve():
            name = f"_{name}"
        if name not in sys.modules:
            if not is_file(path):
                raise KernelFileError(f"file {source} is not in {self.root}")
            self._put_first(Path(source).parts[0])
            try:
                _execute(name, path, self)
            except BaseException as error:  # of the file: it may as well exit
                sys.modules.pop(name, None)
                if isinstance(error, KernelFileError) or is_interrupt(error):
                    raise
                reason = f"file {source} cannot be imported: {described(error)}{self.place(error.__traceback__)}"
                raise KernelFileError(reason, traceback.format_exc()) from error
            self._name_files_by_root()
        return sys.modules[name]

    def _put_first(self, folder: str) -> None:
        """Let `folder` of the root be the package of that name. Without an `__init__.py` an installed one of the same
        name would be found before it: there is a distribution called `kernels`."""
        path = self.root / folder
        if is_folder(path) and folder not in (*sys.modules, *_NEVER_OWN) and not (path / "__init__.py").exists():
            spec = ModuleSpec(folder, None, is_package=True)
            spec.submodule_search_locations = [str(path)]
            sys.modules[folder] = importlib.util.module_from_spec(spec)

    def _is_elsewhere(self, name: str, module: ModuleType) -> bool:
        """Whether a module comes from outside of this project, and is not an installed one."""
        location = _project_location(name, module)
        return location is not None and not location.is_relative_to(self.root)

    def _keep(self, added: list[str]) -> None:
        """Take the modules that were imported from the root out of `sys.modules`, and remember them."""
        # All locations first: that of a namespace package comes from its parent in `sys.modules`, and from `sys.path`.
        located = {name: _project_location(name, sys.modules[name]) for name in added}
        for name, location in located.items():
            if (location and location.is_relative_to(self.root)) or self._loaded(sys.modules[name]):
                self._modules[name] = sys.modules.pop(name)

    def _loaded(self, module: ModuleType) -> bool:
        """Whether a module was imported from the root, if by a link that leads out of it."""
        loader = getattr(module, "__loader__", None)
        return isinstance(loader, _Loader) and loader.project is self

    def _name_files_by_root(self) -> None:
        """Make functions name their file from the project root (Triton's own: from site-packages): the name goes into
        messages and line tables, which must not depend on the folder that a project happens to be in."""
        if "triton.runtime.jit" not in sys.modules:
            return  # a numpy reference, say: it has no kernels
        from triton.runtime.jit import _triton_jit_function_registry

        for kernel in _triton_jit_function_registry.values():
            path = Path(kernel.file_name)
            bases = [base for base in (self.root, *_installed_folders()) if path.is_relative_to(base)]
            if bases:
                kernel.file_name = path.relative_to(max(bases, key=lambda base: len(base.parts))).as_posix()


class _Finder:
    """Finds a project's modules where `sys.path` would, and has their files read by the project."""

    def __init__(self, owner: Project):
        self._project = owner

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in _NEVER_OWN:
            return None
        spec = PathFinder.find_spec(name, [str(self._project.root)] if path is None else path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None
        location = Path(spec.loader.path)
        if not location.is_relative_to(self._project.root) or _is_installed(location):
            return None
        spec.loader = _Loader(name, spec.loader.path, self._project)
        return spec


class _Loader(SourceFileLoader):
    """Runs a file from its text, past any bytecode, and lets tracebacks and Triton see that same text."""

    def __init__(self, name: str, path: str, owner: Project):
        super().__init__(name, path)
        self.project = owner

    def get_code(self, fullname: str) -> Any:
        content = self.project.read(Path(self.path))
        text = importlib.util.decode_source(content)
        linecache.cache[self.path] = (len(content), None, io.StringIO(text).readlines(), self.path)
        return compile(content, self.path, "exec", dont_inherit=True)


_NEVER_OWN = ("__main__", "aot", "aot_runtime", "triton")
"""Modules that no project has, whatever its folders are called."""


def described(error: BaseException) -> str:
    """An exception in one line."""
    return ": ".join(filter(None, [type(error).__name__, str(error)]))


def is_interrupt(error: BaseException) -> bool:
    """Whether an exception is the user's Ctrl-C. In a process that ignores that, it is what a file raises."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def _before_paths() -> int:
    """The place in `sys.meta_path` before what looks through `sys.path`."""
    return next((i for i, finder in enumerate(sys.meta_path) if finder is PathFinder), len(sys.meta_path))


def _project_location(name: str, module: ModuleType) -> Path | None:
    """Location of a module that some project may own: not an installed one, nor one of ours or Triton's."""
    location = _location(module)
    if location is None or name.partition(".")[0] in _NEVER_OWN:
        return None
    return None if _is_installed(location) else location


def _is_installed(location: Path) -> bool:
    return any(location.is_relative_to(folder) for folder in _installed_folders())


def _execute(name: str, path: Path, owner: Project) -> None:
    """Run a file as the module `name`."""
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path), owner))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _location(module: ModuleType) -> Path | None:
    """File of a module, or folder of a package that has no file."""
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return Path(file).resolve() if file else None


@functools.cache
def _installed_folders() -> tuple[Path, ...]:
    return tuple({Path(path).resolve() for path in sysconfig.get_paths().values()})


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if is_file(path) else ""
