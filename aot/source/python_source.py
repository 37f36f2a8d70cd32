"""Names and imports of Python files, from their text."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aot.paths import is_file, is_folder


@dataclass(frozen=True)
class PythonSource:
    """A file of a project.

    Attributes:
        path: absolute.
        tree: None if the text is not valid Python; running the file reports the error.
    """

    root: Path
    path: Path
    digest: str
    tree: ast.Module | None

    def may_define(self, name: str) -> bool:
        """Return False if the module cannot have a global of this name."""
        if self.tree is None:
            return True
        for node in ast.walk(self.tree):
            match node:
                case ast.FunctionDef(name=found) | ast.ClassDef(name=found) if found == name:
                    return True
                case ast.Name(id=found, ctx=ast.Store()) if found == name:
                    return True
                case ast.Import(names=names) | ast.ImportFrom(names=names):
                    if any(alias.name == "*" or (alias.asname or alias.name) == name for alias in names):
                        return True
        return False

    @functools.cached_property
    def imports(self) -> tuple[str, ...]:
        """Dotted names of all imported modules; `from a import b` counts as both `a` and `a.b`."""
        return tuple(dict.fromkeys(filter(None, self._imported())))

    def _imported(self) -> Iterator[str]:
        package = self.path.relative_to(self.root).parent.parts
        for node in ast.walk(self.tree) if self.tree else ():
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) + 1 - node.level] if node.level else ()
                base = ".".join([*above, *filter(None, [node.module])])
                yield base
                yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names if alias.name != "*")


@dataclass(frozen=True)
class Closure:
    """A file with its direct and indirect imports.

    Attributes:
        files: path from the project's root → digest, of each file of the project.
        packages: (top-level module, version) of installed packages; "" for an unknown version.
    """

    files: tuple[tuple[str, str], ...]
    packages: tuple[tuple[str, str], ...]


def python_source(root: Path, file: str) -> PythonSource | None:
    """Read a file of a project by its path from the root; None if it does not exist."""
    path = root / file
    return _read(root, path, path.read_bytes()) if is_file(path) else None


@functools.lru_cache(maxsize=256)
def _read(root: Path, path: Path, text: bytes) -> PythonSource:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        tree = None
    return PythonSource(root, path, hashlib.sha256(text).hexdigest(), tree)


def closure(root: Path, file: str) -> Closure:
    """Return the files and packages that the module in `file` imports, directly or not."""
    found: dict[str, str] = {}
    outside: set[str] = set()
    waiting = [file]
    while waiting:
        name = waiting.pop()
        source = python_source(root, name) if name not in found else None
        if source is None:
            continue
        found[name] = source.digest
        for module in source.imports:
            files = list(_files(root, module))
            waiting += files
            if not files:
                outside.add(module.partition(".")[0])
    packages = sorted((name, _version(name, is_folder(root / name))) for name in outside - sys.stdlib_module_names)
    return Closure(tuple(sorted(found.items())), tuple(packages))


def _files(root: Path, module: str) -> Iterator[str]:
    """Return the files of a project that run if a module is imported: its own, and `__init__` of each package above."""
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        base = Path(*parts[:depth])
        for file in (base / "__init__.py", base.with_suffix(".py")):
            if is_file(root / file):
                yield file.as_posix()


@functools.cache
def _version(module: str, in_project: bool) -> str:
    """Return the version of the package installed under a module's name. The project may have a folder of that name."""
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        names = [] if in_project else importlib.metadata.packages_distributions().get(module, [])
        return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
