"""`aotbundle bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aot_bundle.terminal import write_json, write_lines

from .failures import Unusable
from .parameters import DEVICE_OPTION, BundlePath, status_line


@click.group()
def bench() -> None:
    """Measure this device.

    \b
    Examples:
      aotbundle bench memory dist/memory-gfx942
    """


class _Size(click.ParamType):
    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from .bandwidth import parse_size

        try:
            return parse_size(str(value))
        except ValueError:
            self.fail(f"'{value}' is not a size; write 1GiB, 64MiB, 100KiB or a number of bytes", param, ctx)


@bench.command()
@click.argument("bundle", metavar="BUNDLE|FOLDER|NAME", type=BundlePath(by_device=True))
@DEVICE_OPTION
@click.option("--size", "sizes", multiple=True, type=_Size(), help="Size of an array.  [default: 64MiB to 2GiB]")
@click.option(
    "--rounds", type=click.IntRange(1), default=11, show_default=True, help="Number of rounds; medians are shown."
)
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def memory(bundle: Path, device: str | None, sizes: tuple[int, ...], rounds: int, as_json: bool) -> None:
    """Measure how fast a device copies, reads and writes its memory, with the bundle of manifests/memory.yaml.

    The results are a reference for other kernels. Arrays that fit in the last-level cache are faster than memory.

    \b
    Examples:
      aotbundle bench memory dist/memory-gfx942
      aotbundle bench memory dist/memory-sm_90 --size 1GiB --size 4GiB --json
    """
    from aot_runtime.errors import ArchMismatchError, DeviceError
    from aot_runtime.opening import open_bundle

    from .bandwidth import bandwidth_data, bandwidth_lines, default_sizes, measure

    try:
        opened = open_bundle(bundle, device)
    except (ArchMismatchError, DeviceError) as error:
        raise Unusable(*error.lines) from error
    with status_line("measuring"):
        measured = measure(opened, sizes or default_sizes(opened), rounds)
    if as_json:
        write_json(bandwidth_data(measured))
    else:
        write_lines(bandwidth_lines(measured))
