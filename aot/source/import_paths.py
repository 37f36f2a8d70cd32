"""Find the files of a project's modules by dotted names and the importing file's folders."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from aot.paths import is_file, is_folder

NEVER_OWN = ("__main__", "aot", "aot_runtime", "triton")
"""Modules that never belong to a project, whatever its folders are called."""


@functools.cache
def installed_folders() -> tuple[Path, ...]:
    """Return the folders of Python and of installed packages."""
    return tuple({Path(path).resolve() for path in sysconfig.get_paths().values()})


class ImportPaths:
    """Finder of a project's modules: files, and folders with or without an `__init__.py`."""

    def __init__(self, root: Path):
        self.root = root

    def base(self, path: Path) -> Path:
        """Return the folder where a module's dotted name starts: the one above its topmost package, else the root."""
        folder = path.parent
        if not is_file(folder / "__init__.py"):
            return self.root if path.is_relative_to(self.root) else folder
        while is_file(folder / "__init__.py"):
            folder = folder.parent
        return folder

    def name(self, path: Path) -> str:
        """Return the dotted name of a module, which never hides a module of Python, Triton or this project."""
        parts = path.relative_to(self.base(path)).parts
        dotted = ".".join(parts[:-1] if parts[-1:] == ("__init__.py",) else (*parts[:-1], *_stem(parts[-1:])))
        top = dotted.partition(".")[0]
        return f"_{dotted}" if not top or top in sys.stdlib_module_names or top in NEVER_OWN else dotted

    def relative(self, importer: Path, level: int, parts: Sequence[str]) -> Path | None:
        """Return the module that `from ...a.b import c` means in a file. level: number of dots."""
        folder = importer.parents[level - 1] if level <= len(importer.parents) else None
        return folder and (_find(folder, parts) if parts else _package(folder))

    def own(self, parts: Sequence[str], importer: Path | None) -> Path | None:
        """Return the module of an absolute import that precedes installed ones: in a package of the project, or below
        the importing file's folder.
        """
        if parts[0] in NEVER_OWN:
            return None
        bases = [self.base(importer)] if importer else []
        for base in dict.fromkeys([*bases, self.root]):
            beside = importer is not None and self._top(importer, base) == parts[0]
            if not beside and parts[0] in sys.stdlib_module_names:
                continue
            regular = is_file(base / parts[0] / "__init__.py") or is_file(base / f"{parts[0]}.py")
            found = _find(base, parts) if regular or beside else None
            if found and (beside or not _is_installed(found)):
                return found
        return None

    def fallback(self, parts: Sequence[str], importer: Path | None) -> Path | None:
        """Return the module of an absolute import that no installed package satisfies: in a folder above the importing
        file.
        """
        if parts[0] in NEVER_OWN:
            return None
        found = (_find(base, parts) for base in self._above(importer))
        return next((path for path in found if path and not _is_installed(path)), None)

    def _above(self, importer: Path | None) -> Iterator[Path]:
        if importer:
            above = (folder for folder in importer.parents if folder.is_relative_to(self.root))
            # Not beside the modules of a package: `import torch` there is not its own `torch.py`.
            yield from (folder for folder in above if not is_file(folder / "__init__.py"))
            yield self.base(importer)
        yield self.root

    @staticmethod
    def _top(path: Path, base: Path) -> str | None:
        """Return the first part of a module's dotted name, counted from a folder above it."""
        parts = path.relative_to(base).parts if path.is_relative_to(base) else ()
        return parts[0] if len(parts) > 1 else None


def submodule(package: Path, name: str) -> Path | None:
    """Return the module of a name in a package: its file, its `__init__.py`, or its folder."""
    folder = package.parent if package.name == "__init__.py" else package
    return _find(folder, [name]) if is_folder(folder) else None


def _find(folder: Path, parts: Sequence[str]) -> Path | None:
    for part in parts[:-1]:
        folder = folder / part
    if is_file(folder / f"{parts[-1]}.py") and not is_file(folder / parts[-1] / "__init__.py"):
        return folder / f"{parts[-1]}.py"
    return _package(folder / parts[-1])


def _package(folder: Path) -> Path | None:
    init = folder / "__init__.py"
    return init if is_file(init) else folder if is_folder(folder) else None


def _stem(names: Sequence[str]) -> list[str]:
    return [name.removesuffix(".py") for name in names]


def _is_installed(path: Path) -> bool:
    return any(path.resolve().is_relative_to(folder) for folder in installed_folders())
