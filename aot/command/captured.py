"""Options of `aotbuild` for capture files of Triton programs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from aot.build import Request

CAPTURED_SUFFIX = ".jsonl"
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@dataclass(frozen=True)
class CapturedOptions:
    """The options of a build of capture files, see `aot.capture.build.CaptureRequest`."""

    triton: str | None
    python: Path | None
    headers: Path | None
    sources: Path | None
    ptxas: Path | None
    inductor: Path | None
    all_stages: bool
    wheel: bool
    keep_going: bool
    bundle: bool

    def check(self, has_captures: bool) -> None:
        """Raise `UsageError` for options that do not go together."""
        given = [field.name for field in fields(self) if getattr(self, field.name)]
        if given and not has_captures:
            raise click.UsageError(f"--{_NAMES[given[0]]} needs a capture file ({CAPTURED_SUFFIX})")
        if self.triton and self.python:
            raise click.UsageError("--triton and --python exclude each other")

    def build(self, captures: tuple[Path, ...], request: Request) -> int:
        """Build capture files with the options that builds of manifests have, too. Returns the exit status.

        Raises `BuildError` and `CacheError`, and exits for a malformed file.
        """
        from aot.capture.build import CaptureRequest, build_captures
        from aot_capture.records import CaptureError

        try:
            return build_captures(
                CaptureRequest(
                    captures=captures, targets=request.targets, output=request.output, jobs=request.jobs,
                    timeout=request.timeout, cache=request.cache, neighbours=request.neighbours, pack=request.pack,
                    signer=request.signer, dry_run=request.dry_run, tracebacks=request.tracebacks, quiet=request.quiet,
                    **{field.name: getattr(self, field.name) for field in fields(self) if field.name != "bundle"},
                )
            )  # fmt: skip
        except CaptureError as error:
            raise click.UsageError(str(error)) from None

    def manifests(self, captures: tuple[Path, ...], output: Path, quiet: bool) -> tuple[Path, ...]:
        """Write a manifest of each capture file to the output folder, if a bundle is asked for, and return them.

        Raises `BuildError` for a capture of which no kernel can be an op, and exits for a malformed file.
        """
        if not self.bundle:
            return ()
        from aot.capture.bundle import manifest_of
        from aot.errors import BuildError
        from aot_bundle.terminal import write
        from aot_capture.records import CaptureError

        paths = []
        for capture in captures:
            folder = output / f"{capture.stem}-manifest"
            try:
                made = manifest_of(capture, folder, self.sources)
            except CaptureError as error:
                raise click.UsageError(str(error)) from None
            except OSError as error:
                raise BuildError(f"{folder} cannot be written: {error.strerror}") from None
            if not quiet:
                write(*(f"note: not in the bundle: {line}" for line in made.left_out), err=True)
            if not made.ops:
                raise BuildError(f"{capture}: no kernel can be an op of a bundle: {'; '.join(made.left_out)}")
            paths.append(made.path)
        return tuple(paths)


_NAMES = {
    "triton": "triton", "python": "python", "headers": "python-headers", "sources": "sources", "ptxas": "ptxas",
    "inductor": "inductor", "all_stages": "all-stages", "wheel": "wheel", "keep_going": "keep-going",
    "bundle": "bundle",
}  # fmt: skip
_OPTIONS = (
    click.option(
        "--triton", metavar="VERSION",
        help="For a capture file: compile by this version of Triton, in an environment that pip makes once.",
    ),
    click.option(
        "--python", type=_FILE, metavar="PYTHON",
        help="For a capture file: compile by the Triton of this Python.",
    ),
    click.option(
        "--python-headers", "headers", type=_FOLDER, metavar="FOLDER",
        help="For a capture file: where Python.h of the captured Python is, for the C launchers of Triton up to 3.6.",
    ),
    click.option(
        "--sources", type=_FOLDER, metavar="FOLDER",
        help="For a capture file made with --no-source: the program's files. [default: where they were captured]",
    ),
    click.option(
        "--ptxas", type=_FILE, metavar="PTXAS",
        help="For a capture file: assemble by this ptxas, as a program with TRITON_PTXAS_PATH does.",
    ),
    click.option(
        "--inductor", type=_FILE, metavar="FILE",
        help="For a capture file: ship these bytes of torch.compiler.save_cache_artifacts, too.",
    ),
    click.option(
        "--wheel", is_flag=True,
        help="For a capture file: write a wheel, too, which `aotbuild install-cache NAME` installs from.",
    ),
    click.option(
        "--keep-going", is_flag=True,
        help="For a capture file: write the other kernels if some cannot be rebuilt. The exit status is 1.",
    ),
    click.option(
        "--all-stages", is_flag=True,
        help="For a capture file: ship all stages of each compilation, not the code objects alone.",
    ),
    click.option(
        "--bundle", is_flag=True,
        help="For a capture file: also build a bundle, whose ops are the kernels, with Triton's own arguments.",
    ),
)  # fmt: skip


def captured_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of capture files to a command, which receives them as one argument, `captured`."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> None:
        own = {field.name: options.pop(field.name) for field in fields(CapturedOptions)}
        return command(*arguments, captured=CapturedOptions(**own), **options)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
