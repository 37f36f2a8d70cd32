"""`aotbundle wheel`."""

from __future__ import annotations

from pathlib import Path

import click

from aot_bundle.terminal import write

from .failures import Failure
from .parameters import PATHS


@click.command()
@click.argument("bundles", metavar="BUNDLE…", nargs=-1, required=True, type=PATHS)
@click.option("-o", "--output", type=PATHS, default=Path("dist"), show_default=True, help="The wheel's folder.")
@click.option(
    "--name", help="The distribution's name. [default: aotbundle-<bundle>-<arch>, or without <arch> for several]"
)
@click.option(
    "--version", help="The distribution's version, which may add a local part to the bundle's. [default: the bundle's]"
)
@click.option(
    "--license", "license_", default="", metavar="SPDX", help="The license of the kernels, such as Apache-2.0."
)
def wheel(bundles: tuple[Path, ...], output: Path, name: str | None, version: str | None, license_: str) -> None:
    """Make a wheel of bundles. Once it is installed by pip, `open_bundle` finds them by name.

    The wheel has no code, and requires an aot-runtime that reads the bundles' format. It includes signatures.
    The result is reproducible. A bundle with faults (see `verify`) is rejected. An older wheel is replaced.

    \b
    Examples:
      aotbundle wheel dist/rows-gfx942
      aotbundle wheel dist/rows-gfx942 -o build/wheels --version 0.1.0+team.1
      aotbundle wheel dist/rows-gfx942 dist/memory-gfx942 --name team-kernels --license MIT
    """
    from aot_bundle.wheel import WheelOptions, make_wheel
    from aot_runtime.formats import size_text

    try:
        path = make_wheel(bundles, output, WheelOptions(name, version, license_))
    except OSError as error:
        raise Failure(f"{error.filename or output}: {error.strerror or error}") from None
    write(f"{path}: {size_text(path.stat().st_size)}")
