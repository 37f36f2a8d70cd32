"""The modules of a project. Each file is read once, so the text that is hashed is the text that runs.

A kernel's file is run as far as the kernel depends on it (`SourceModule`); the file of a numpy reference is run whole.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import io
import linecache
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from aot.errors import CompileError as CompileError
from aot.errors import KernelFileError, KernelFunctionError, described, is_interrupt
from aot.paths import is_file, is_folder
from aot.targets import Target

from .assumed_driver import assumed_driver
from .closures import Closures
from .import_paths import ImportPaths, installed_folders, submodule
from .missing import AbsentError
from .source_module import ABSENT, SourceModule
from .statements import jit_names

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

MAX_SOURCE_BYTES = 16 << 20


@functools.cache
def project(root: Path | str) -> Project:
    """Return this process's `Project` of a root."""
    return Project(Path(root).resolve())


# Loading changes `sys.modules`, and compiling changes Triton's settings: only one thread at a time does either.
PROCESS_LOCK = threading.RLock()


class Project:
    """The modules of a project root.

    They are in `sys.modules` only while `active`, so that modules of two roots, or of a root and the process, may have
    the same name. They are loaded anew if a file has changed.

    Attributes:
        digests: path from the root → SHA-256 of each file that was read; complete when no longer `active`.
    """

    def __init__(self, root: Path):
        self.root = root
        self.digests: dict[str, str] = {}
        self._paths = ImportPaths(root)
        self._expected: Mapping[str, str] = {}
        self._aside: dict[str, ModuleType | None] = {}
        self._target: Target | None = None
        self._forget()

    def _forget(self) -> None:
        self.digests = {}
        self._changed: KernelFileError | None = None
        self._asked = False
        self._by_path: dict[Path, SourceModule] = {}
        self._by_name: dict[str, SourceModule] = {}
        self._closures = Closures(self._by_name.get, self.place)

    @contextmanager
    def active(self, expected: Mapping[str, str] | None = None, target: Target | None = None) -> Iterator[Project]:
        """Return a context in which only this project's modules are importable.

        Args:
            target: the GPU that Triton reports to files; None for none.
            expected: file → digest. Files with another digest are refused, and modules that were loaded with these
                digests are reused even if the files have changed since. Without it, modules of unchanged files are.
        """
        with PROCESS_LOCK:
            self._expected = expected or {}
            if not self._is_current(expected) or (self._asked and target != self._target):
                self._forget()
            self._target = target
            sys.meta_path.insert(_before_paths(), self)
            write_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
            for name, module in self._by_name.items():
                self._put(name, module.module)
            try:
                yield self
            finally:
                sys.dont_write_bytecode = write_bytecode
                sys.meta_path.remove(self)
                for name, before in self._aside.items():
                    sys.modules.pop(name, None)
                    if before is not None:
                        sys.modules[name] = before
                self._aside.clear()
                if self._changed:
                    self._forget()

    def load(self, source: str, function: str) -> JITFunction:
        """Load a `@triton.jit` function and its closure while `active`, without the decorators around `@triton.jit`.

        Raises KernelFileError or KernelFunctionError.
        """
        from triton import knobs
        from triton.runtime.jit import JITFunction

        if knobs.runtime.interpret:
            raise CompileError("TRITON_INTERPRET is set: kernels are interpreted, not compiled; unset it to build")
        with self._assumed_driver():
            found = self._defined(source, function)
        while not isinstance(found, JITFunction) and hasattr(found, "fn"):
            found = found.fn
        if not isinstance(found, JITFunction):
            kind = type(found).__name__
            raise KernelFunctionError(f"{function!r} in {source} is a {kind}, not a @triton.jit function")
        try:
            with self._assumed_driver():
                self._closures.complete(found)
        finally:
            if self._changed:  # though a file may have made something else of that
                raise self._changed
        self._name_files_by_root()
        return found

    def check(self, kernel: JITFunction) -> None:
        """Check a loaded kernel, as far as every compilation reads it.

        Raises:
            KernelFileError: a value that it reads is missing.
            KernelFunctionError: its call graph has a cycle.
        """
        self._closures.check(kernel)

    def circle(self, kernel: JITFunction) -> str:
        """Describe a cycle in the call graph of a loaded kernel, also one that may not be taken."""
        return self._closures.circle(kernel)

    def attribute(self, source: str, function: str) -> Any:
        """Return a global of a file while `active`. A jit function keeps its `triton.autotune` and `triton.heuristics`.

        Raises KernelFileError or KernelFunctionError.
        """
        with self._assumed_driver():
            found = self._defined(source, function)
        module = self._module(self.root / source)
        with self._assumed_driver(), self._reported(source, f"the decorators of {function!r}"):
            return module.tuned(function, found)

    def reference(self, source: str, function: str) -> Any:
        """Return a global of a file that is run whole. Raises KernelFileError or KernelFunctionError."""
        path = self.root / source
        module = self._module(path)
        with self._reported(source):
            module.run_whole()
        if function not in vars(module.module):
            raise KernelFunctionError(f"{source} has no function {function!r}")
        return vars(module.module)[function]

    def read(self, path: Path) -> bytes:
        """Read a file of the project. Raises `KernelFileError` if its digest is not the expected one."""
        file = self._file(path)
        if not is_file(path) or path.stat().st_size > MAX_SOURCE_BYTES:
            raise KernelFileError(f"{file} is not a regular file of at most {MAX_SOURCE_BYTES} bytes")
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if self._expected.get(file, digest) != digest:
            self._changed = KernelFileError(f"file {file} changed during the build; build again")
            raise self._changed
        self.digests[file] = digest
        return content

    def place(self, trace: TracebackType | None) -> str:
        """Return ` (file:line)` of the project's innermost line in a traceback; empty if there is none."""
        for frame in reversed(traceback.extract_tb(trace)):
            path = Path(frame.filename)
            if path in self._by_path or path.is_relative_to(self.root):
                return f" ({self._file(path)}:{frame.lineno})"
        return ""

    def left_out(self) -> tuple[str, ...]:
        """Return a line for each file with statements that were needed and failed."""
        return tuple(module.notes() for module in self._by_path.values() if module.left_out)

    def _file(self, path: Path) -> str:
        return Path(os.path.relpath(path, self.root)).as_posix()

    def _is_current(self, expected: Mapping[str, str] | None) -> bool:
        if expected is not None:
            return all(expected.get(file, digest) == digest for file, digest in self.digests.items())
        return all(_digest(self.root / file) == digest for file, digest in self.digests.items())

    def _defined(self, source: str, function: str) -> Any:
        module = self._module(self.root / source)
        with self._reported(source, repr(function)):
            module.demand({function})
            if function in module.missing:
                raise module.missing[function]
            found = module.names[function] if function in module.names else module.nested(function)
        if found is ABSENT:
            raise KernelFunctionError(f"{source} has no function {function!r}{_nearest(module, function)}")
        return found

    @contextmanager
    def _reported(self, source: str, what: str = "") -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # it may as well exit
            if isinstance(error, KernelFileError) or is_interrupt(error):
                raise
            wrong = f"{what} in {source} cannot be evaluated" if what else f"file {source} cannot be imported"
            reason = f"{wrong}: {described(error)}{self.place(error.__traceback__)}"
            raise KernelFileError(reason, traceback.format_exc()) from error

    def _assumed_driver(self) -> AbstractContextManager[None]:
        def asked() -> None:
            self._asked = True

        return assumed_driver(self._target, asked)

    # Modules

    def _module(self, path: Path) -> SourceModule:
        """Return the module of a file, or of a folder without `__init__.py`, without running statements."""
        path = Path(os.path.normpath(path))
        if path not in self._by_path:
            self._add(path)
        return self._by_path[path]

    def _add(self, path: Path) -> None:
        name = self._paths.name(path)
        while name in self._by_name:
            name = f"_{name}"
        module = ModuleType(name)
        package = is_folder(path) or path.name == "__init__.py"
        module.__package__ = name if package else name.rpartition(".")[0]
        if package:
            module.__path__ = [str(path if is_folder(path) else path.parent)]
        tree = ast.Module([], [])
        if not is_folder(path):
            module.__file__ = str(path)
            tree = self._tree(path)
        added = SourceModule(module, path, self._file(path), tree)
        added.connect(self._import, self._submodule, self.place)
        module.__spec__ = ModuleSpec(name, _Loader(module), origin=vars(module).get("__file__"), is_package=package)
        self._by_path[path] = self._by_name[name] = added
        self._put(name, module)

    def _tree(self, path: Path) -> ast.Module:
        if not is_file(path):
            raise KernelFileError(f"file {self._file(path)} is not in {self.root}")
        content = self.read(path)
        try:
            text = importlib.util.decode_source(content)
            tree = ast.parse(content, str(path))
        except (SyntaxError, ValueError) as error:
            line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            said = error.msg if isinstance(error, SyntaxError) else error
            raise KernelFileError(f"file {self._file(path)}{line}: {type(error).__name__}: {said}") from error
        linecache.cache[str(path)] = (len(content), None, io.StringIO(text).readlines(), str(path))
        return tree

    def _put(self, name: str, module: ModuleType) -> None:
        self._aside.setdefault(name, sys.modules.get(name))
        sys.modules[name] = module

    def _import(self, importer: SourceModule, name: str, names: tuple[str, ...] | None, level: int) -> ModuleType:
        """Import for a statement of a module. Returns the module of a dotted name, with the imported names if there are
        any; otherwise the first package of the name.
        """
        parts = name.split(".") if name else []
        if level:
            path = self._paths.relative(importer.path, level, parts)
            if path is None:
                raise ModuleNotFoundError(f"No module named {'.' * level + name!r}", name=name)
        elif (path := self._paths.own(parts, importer.path)) is None:
            try:
                return __import__(name, None, None, names or (), 0)
            except ModuleNotFoundError:
                path = self._paths.fallback(parts, importer.path)
                if path is None:
                    raise
        module = self._module(path)
        if names is None:
            for _ in parts[1:]:
                path = path.parent.parent if path.name == "__init__.py" else path.parent
                path = path / "__init__.py" if is_file(path / "__init__.py") else path
            return self._module(path).module
        for wanted in module.public_names() if "*" in names else names:
            try:
                module.attribute(wanted)
            except AbsentError as error:
                raise ImportError(f"cannot import name {wanted!r} from {module.file}", name=name) from error
        return module.module

    def _submodule(self, package: SourceModule, name: str) -> ModuleType | None:
        path = submodule(package.path, name)
        return self._module(path).module if path else None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module that is imported by a computed name (the protocol of Python's finders)."""
        if name not in self._by_name:
            file = self._paths.own(name.split("."), None) or self._paths.fallback(name.split("."), None)
            return self._module(file).module.__spec__ if file else None
        return self._by_name[name].module.__spec__

    def _name_files_by_root(self) -> None:
        """Make file names of functions relative to the project root (of Triton's own: to site-packages).

        Messages and line tables contain the names, and must not depend on the project's folder.
        """
        from triton.language import standard
        from triton.runtime.jit import JITFunction, _triton_jit_function_registry

        # Gluon registers its own under the names of these.
        hidden = [value for value in vars(standard).values() if isinstance(value, JITFunction)]
        folders = sorted((f"{folder}{os.sep}" for folder in (self.root, *installed_folders())), key=len, reverse=True)
        for kernel in (*_triton_jit_function_registry.values(), *hidden):
            name = kernel.file_name
            if not name.startswith(os.sep):
                continue
            base = next((folder for folder in folders if name.startswith(folder)), "")
            if base:
                kernel.file_name = name.removeprefix(base).replace(os.sep, "/")
            elif (path := Path(name)) in self._by_path:
                kernel.file_name = path.relative_to(self._paths.base(path)).as_posix()


class _Loader(Loader):
    """A loader that returns the existing module without running it."""

    def __init__(self, module: ModuleType):
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        pass


def _nearest(module: SourceModule, function: str) -> str:
    """List the jit functions of a file whose names are similar to a missing one, or else all."""
    names = jit_names(module.tree)
    near = get_close_matches(function, names, cutoff=0.5) or names
    if not names:
        return ", nor any @triton.jit function"
    return (
        f"; its @triton.jit functions are {', '.join(near[:8])}"
        if near is names
        else f"; did you mean {' or '.join(near)}?"
    )


def _before_paths() -> int:
    return next((i for i, finder in enumerate(sys.meta_path) if finder is PathFinder), len(sys.meta_path))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if is_file(path) else ""
