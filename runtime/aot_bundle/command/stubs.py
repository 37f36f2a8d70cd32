"""`aotbundle stubs`."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aot_bundle.terminal import write

from .failures import Failure
from .parameters import BUNDLE, PATHS

if TYPE_CHECKING:
    from aot_runtime.contract.records import Index

PACKAGE = "aot_bundles"
_PACKAGE_DOC = '"""Types of bundles, for `open_bundle(path, type=...)`. Written by `aotbundle stubs`."""\n'


@click.command()
@click.argument("paths", metavar="BUNDLE|FOLDER…", nargs=-1, required=True, type=BUNDLE)
@click.option("-o", "--output", type=PATHS, help="The folder to write the package aot_bundles to.")
@click.option("--install", is_flag=True, help="Write to the site-packages of this Python.")
def stubs(paths: tuple[Path, ...], output: Path | None, install: bool) -> None:
    """Write types of bundles for editors and type checkers, one module per bundle.

    \b
    With dist/rows-gfx942 comes module aot_bundles.rows, and with it:
      from aot_bundles.rows import Rows
      rows = open_bundle("dist/rows-gfx942", type=Rows)

    Existing modules of other bundles are kept. For a bundle for several architectures, the first one is used.

    \b
    Examples:
      aotbundle stubs dist/rows-gfx942 -o types
      aotbundle stubs dist --install
    """
    if install == (output is not None):
        raise click.UsageError("pass either --output FOLDER or --install")
    from .listing import find_bundles

    folder = Path(sysconfig.get_path("purelib")) if output is None else output
    try:
        for path in write_package(folder / PACKAGE, _by_name(find_bundles(paths))):
            write(str(path))
    except OSError as error:
        raise Failure(f"{error.filename or folder}: {error.strerror or error}") from None


def _by_name(folders: Iterable[Path]) -> list[Index]:
    """Return one index per name. Raises `Failure` for bundles of one name with different signatures."""
    from aot_bundle.stub import interface_text
    from aot_runtime.bundle.reading import read_index

    found: dict[str, tuple[Path, Index]] = {}
    for folder in folders:
        index = read_index(folder)
        first, other = found.setdefault(index.name, (folder, index))
        if interface_text(other) != interface_text(index):
            raise Failure(f"{first} and {folder} are both named '{index.name}', but their ops differ: pass one of them")
    return [index for _, index in found.values()]


def write_package(package: Path, indices: Iterable[Index]) -> list[Path]:
    """Write the package. Returns its modules."""
    from aot_bundle.stub import module_text, stub_text
    from aot_runtime.folders import opened_folder

    package.mkdir(parents=True, exist_ok=True)
    texts = {"__init__.py": _PACKAGE_DOC, "py.typed": ""}
    written = []
    for index in indices:
        written.append(package / f"{index.name}.py")
        texts |= {f"{index.name}.py": module_text(index), f"{index.name}.pyi": stub_text(index)}
    with opened_folder(package.parent) as folder, folder.below(package.name) as place:
        for name, text in texts.items():
            place.write(name, [text.encode()])
    return written
