"""`aotbuild init`: a first manifest for existing kernels."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import click

from aot.command.parameters import EXIT_FAILED, TIMEOUT_S
from aot_bundle.terminal import error_lines, text_block, write, write_error


def _kernels(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> tuple[tuple[Path, str], ...]:
    found = []
    for text in texts:
        file, _, function = text.rpartition(":")
        if not file.endswith(".py") or not function.isidentifier():
            raise click.BadParameter(f"'{text}' is not FILE:KERNEL, such as kernels/add.py:add_kernel")
        if not Path(file).is_file():
            raise click.BadParameter(f"file {file} does not exist")
        found.append((Path(file), function))
    return tuple(found)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("kernels", nargs=-1, required=True, metavar="FILE:KERNEL…", callback=_kernels)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="MANIFEST",
    help="File that the manifest is written to. [default: standard output]",
)
@click.option("--force", is_flag=True, help="Overwrite the file.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for each file that is run.",
)
def init(kernels: tuple[tuple[Path, str], ...], output: Path | None, force: bool, timeout: float) -> None:
    """Write a manifest for Triton kernels, one op each, from their bodies and their launches in the same file.

    `# decide:` marks what a person must decide. docs/howto/own-kernel.md explains how to declare further assumptions of
    a
    kernel.

    \b
    Examples:
      aotbuild init examples/foreign/kernels.py:add_kernel
      aotbuild init examples/foreign/kernels.py:add_kernel examples/foreign/kernels.py:_layer_norm_fwd_fused
    """
    from aot.draft.manifest_text import manifest_text
    from aot.draft.proposal import propose, with_own_names
    from aot.draft.texts import read_kernel
    from aot.draft.validation import mark_faults
    from aot.forked_process import ForkedProcess
    from aot_runtime.errors import AotError
    from aot_runtime.folders import write_file

    if output is not None and output.exists() and not force:
        raise click.UsageError(f"{output} already exists; --force overwrites it")
    folder = (output.parent if output is not None else Path()).resolve()
    root = _project_root([file.resolve() for file, _ in kernels], folder)
    drafts = []
    with ForkedProcess(timeout) as process:
        for file, function in kernels:
            path = f"{file.resolve().relative_to(root).as_posix()}:{function}"
            try:
                drafts.append(propose(process.run(read_kernel, str(root), path), path))
            except AotError as error:
                write_error("aotbuild", *error_lines(error))
                sys.exit(EXIT_FAILED)
        drafts = with_own_names(drafts)
        mark_faults(drafts, root, process)
    stem = output.stem if output is not None else kernels[0][0].stem
    manifest = output.as_posix() if output is not None else "MANIFEST"
    text = manifest_text(
        _bundle_name(stem),
        _root_key(root, folder, drafts[0].kernel.partition(":")[0]),
        _schema_path(root, folder),
        drafts,
        f"aotbuild --arch gfx942 {manifest}",
    )
    if output is None:
        write(*text_block(text))
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    write_file(output, [text.encode()])
    undecided = text.count("# decide: ")
    things = {0: "nothing is left to decide", 1: "1 line is marked `# decide:`"}
    write(f"{output}: {things.get(undecided, f'{undecided} lines are marked `# decide:`')}")


def _project_root(files: list[Path], folder: Path) -> Path:
    """Return the folder that the kernels' modules are imported from: the one above their packages, the manifest's if
    that is above them, or the working folder."""
    packages = [_above_package(file) for file in files]
    common = Path(os.path.commonpath(packages))
    if any((file.parent / "__init__.py").is_file() for file in files):
        return common
    above = [place for place in (Path.cwd().resolve(), folder) if common.is_relative_to(place)]
    return above[0] if above else common


def _above_package(file: Path) -> Path:
    folder = file.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder


def _root_key(root: Path, folder: Path, kernel: str) -> str:
    """The manifest's `root` key; none if that is the nearest folder with the kernel."""
    nearest = next((place for place in (folder, *folder.parents) if (place / kernel).is_file()), None)
    return "" if nearest == root else Path(os.path.relpath(root, folder)).as_posix()


def _schema_path(root: Path, folder: Path) -> str:
    """Path of the JSON schema of manifests, relative to the manifest if both are in one project."""
    schema = Path(__file__).resolve().parents[1] / "manifest" / "manifest.schema.json"
    return Path(os.path.relpath(schema, folder)).as_posix() if schema.is_relative_to(root) else schema.as_posix()


def _bundle_name(stem: str) -> str:
    name = re.sub(r"_+", "_", re.sub(r"\W", "_", stem)).strip("_")
    return name if name[:1].isalpha() else f"kernels_{name}".rstrip("_")
