"""Kernel files: imported by path from a project root, and hashed with everything that their code depends on."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from aot_runtime.errors import AotError

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction


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
    """A kernel file is missing, or cannot be imported."""


class KernelFunctionError(CompileError):
    """A kernel file has no `@triton.jit` function of the name."""


def load_kernel(root: Path | str, source: str, function: str) -> JITFunction:
    """The `@triton.jit` function of a file, with any `@triton.autotune` and `@triton.heuristics` around it taken off.

    Args:
        root: project root; importable while the file is, so `from kernels.attention.masks import …` works.
        source: path of the file from `root`.

    Raises:
        KernelFileError, KernelFunctionError.
    """
    with project(root).active() as modules:
        return modules.load(source, function)


def split_function(path: str) -> tuple[str, str]:
    """(file, function) of a `path.py:function`."""
    source, _, function = path.rpartition(":")
    return source, function


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel, or a member of one that is a named tuple.

    Attributes:
        name: of a member its path, `<parameter>.<field>`.
        constexpr: whether it is annotated as a `tl.constexpr`.
        default: None unless `has_default`.
        members: those of a parameter that is annotated with a `NamedTuple` class.
    """

    name: str
    constexpr: bool
    has_default: bool = False
    default: Any = None
    members: tuple[Parameter, ...] = ()

    @property
    def field(self) -> str:
        """The name without the parameter that it is a member of."""
        return self.name.rpartition(".")[2]


def kernel_parameters(kernel: JITFunction) -> tuple[Parameter, ...]:
    """The parameters of a kernel, in order."""
    classes = tuple_classes(kernel)
    return tuple(
        Parameter(
            param.name,
            param.is_constexpr,
            param.has_default,
            param.default if param.has_default else None,
            _members(param.name, classes[param.name]) if param.name in classes else (),
        )
        for param in kernel.params
    )


def tuple_classes(kernel: JITFunction) -> dict[str, Any]:
    """The `NamedTuple` class of each parameter that is annotated with one."""
    found = {name: parameter.annotation for name, parameter in kernel.signature.parameters.items()}
    scope = kernel.get_capture_scope()
    # In a file with postponed annotations they are text.
    resolved = {name: scope.get(value) if isinstance(value, str) else value for name, value in found.items()}
    return {name: value for name, value in resolved.items() if _is_tuple_class(value)}


def _is_tuple_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")


def _members(name: str, tuple_class: Any) -> tuple[Parameter, ...]:
    kinds, defaults = tuple_class.__annotations__, tuple_class._field_defaults
    return tuple(
        Parameter(f"{name}.{field}", "constexpr" in str(kinds.get(field)), field in defaults, defaults.get(field))
        for field in tuple_class._fields
    )


def source_hash(kernel: JITFunction) -> str:
    """Hex digest of all the source that a kernel's code depends on; the same in whatever folder it lies.

    Triton's own `cache_key` covers the text of every function that the kernel reaches and the constants that they name.
    It leaves out constants reached through a module (`common.LOG2E`), the defaults of helpers' parameters, and the
    fields of named tuples, each of which changes the code; they are added here.
    """
    constants: list[str] = []
    seen: set[int] = set()
    _collect_constants(kernel, constants, seen)
    return hashlib.sha256("\n".join([kernel.cache_key, *sorted(constants)]).encode()).hexdigest()


def sources_hash(kernel: JITFunction, functions: Mapping[str, JITFunction]) -> str:
    """`source_hash` of a kernel and of the functions, by parameter, that its constexprs are."""
    if not functions:
        return source_hash(kernel)
    digests = [source_hash(kernel), *(f"{name}: {source_hash(functions[name])}" for name in sorted(functions))]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _collect_constants(function: Any, constants: list[str], seen: set[int]) -> None:
    from triton.runtime.jit import JITCallable

    if id(function) in seen or function.__module__.startswith("triton."):
        return
    seen.add(id(function))
    for name, parameter in function.signature.parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            constants.append(f"{function.__name__}({name}={parameter.default!r})")
    scope = function.get_capture_scope()
    for node in ast.walk(function.parse()):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        value = _resolve(node, scope)
        if _is_tuple_class(value):
            constants.append(f"{value.__name__}: {value._fields} {value._field_defaults}")
        elif isinstance(value, JITCallable):
            _collect_constants(value, constants, seen)
        elif _is_constant(value):
            constants.append(f"{function.__name__}: {ast.unparse(node)}={value!r}")


def _resolve(node: ast.expr, scope: dict[str, Any]) -> Any:
    """What a dotted name means in `scope`: a global, or an attribute of a module; None for anything else."""
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    owner = _resolve(node.value, scope) if isinstance(node, ast.Attribute) else None
    return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None  # type: ignore[attr-defined]


def _is_constant(value: Any) -> bool:
    import triton.language as tl

    if isinstance(value, tuple):
        return all(map(_is_constant, value))
    return isinstance(value, bool | int | float | str | tl.constexpr | tl.dtype)


@functools.cache
def project(root: Path | str) -> Project:
    """The one `Project` of a root in this process."""
    return Project(Path(root).resolve())


# Importing changes the process's module table, and compiling Triton's settings: one thread at a time does either.
PROCESS_LOCK = threading.RLock()


class Project:
    """The modules of one project root. They are in `sys.modules` only while `active`, so that two roots, or a root and
    the process's own packages, may have modules of the same name; they are imported anew once a file has changed."""

    def __init__(self, root: Path):
        self.root = root
        self._modules: dict[str, ModuleType] = {}
        self._digests: dict[Path, bytes] = {}

    @property
    def files(self) -> frozenset[str]:
        """Every file of the project that was imported, by its path from the root; known once no longer `active`."""
        return frozenset(path.relative_to(self.root).as_posix() for path in self._digests)

    @contextmanager
    def active(self) -> Iterator[Project]:
        """Make the project's modules importable, and no other project's."""
        with PROCESS_LOCK:
            if any(_digest(path) != digest for path, digest in self._digests.items()):
                self._modules, self._digests = {}, {}
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
            sys.path.insert(0, str(self.root))
            try:
                yield self
            finally:
                self._keep([name for name in sys.modules if name not in before])
                sys.path.remove(str(self.root))
                sys.modules.update(aside)
                sys.dont_write_bytecode = write_bytecode

    def load(self, source: str, function: str) -> JITFunction:
        """`load_kernel`, for use while `active`."""
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

    def _import(self, source: str) -> ModuleType:
        path = (self.root / source).resolve()
        name = ".".join(Path(source).with_suffix("").parts)
        while name in sys.modules and _location(sys.modules[name]) != path:
            name = f"_{name}"
        if name not in sys.modules:
            if not path.is_file():
                raise KernelFileError(f"file {source} is not in {self.root}")
            self._put_first(Path(source).parts[0])
            try:
                _execute(name, path)
            except Exception as error:
                sys.modules.pop(name, None)
                reason = f"file {source} cannot be imported: {type(error).__name__}: {error}"
                raise KernelFileError(reason, traceback.format_exc()) from error
            self._name_files_by_root()
        return sys.modules[name]

    def _put_first(self, folder: str) -> None:
        """Let `folder` of the root be the package of that name. Without an `__init__.py` an installed one of the same
        name would be found before it: there is a distribution called `kernels`."""
        path = self.root / folder
        if path.is_dir() and folder not in (*sys.modules, *_NEVER_OWN) and not (path / "__init__.py").exists():
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
            if location is not None and location.is_relative_to(self.root):
                self._modules[name] = sys.modules.pop(name)
                if location.is_file():
                    self._digests.setdefault(location, _digest(location))

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


_NEVER_OWN = ("__main__", "aot", "aot_runtime", "triton")
"""Modules that no project has, whatever its folders are called."""


def _project_location(name: str, module: ModuleType) -> Path | None:
    """Location of a module that some project may own: not an installed one, nor one of ours or Triton's."""
    location = _location(module)
    if location is None or name.partition(".")[0] in _NEVER_OWN:
        return None
    return None if any(location.is_relative_to(folder) for folder in _installed_folders()) else location


def _execute(name: str, path: Path) -> None:
    """Run a file as the module `name`. Its text is compiled here, past any stale bytecode."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)


def _location(module: ModuleType) -> Path | None:
    """File of a module, or folder of a package that has no file."""
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return Path(file).resolve() if file else None


@functools.cache
def _installed_folders() -> tuple[Path, ...]:
    return tuple({Path(path).resolve() for path in sysconfig.get_paths().values()})


def _digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b""
