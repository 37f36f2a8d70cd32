"""`aotbuild install-cache`: install a shipped cache where Triton looks for it, or check that Triton would use it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.command.parameters import EXIT_FAILED
from aot_bundle.terminal import error_lines, write, write_error

if TYPE_CHECKING:
    from aot.capture.shipped_cache import ShippedCache


@click.command("install-cache", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "cache",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Cache of Triton. [default: $TRITON_CACHE_DIR, else ~/.triton/cache]",
)
@click.option(
    "--check",
    is_flag=True,
    help="Install nothing: verify the files, and compare Triton and its compiler with those here.",
)
@click.option(
    "--trust",
    type=click.Path(path_type=Path),
    metavar="POLICY.toml",
    help="Accept signatures of this policy alone. [default: $AOTBUNDLE_TRUST; without any, no signature is needed]",
)
@click.option(
    "--python",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="PYTHON",
    help="The Python whose Triton uses the cache. [default: the one that runs this command]",
)
@click.option(
    "--inductor",
    is_flag=True,
    help="Also load Inductor's artefacts into its cache, by PYTHON's torch, which unpickles them.",
)
@click.option("--force", is_flag=True, help="Install also where Triton would find none of the kernels.")
def install_cache(
    source: Path, cache: Path | None, check: bool, trust: Path | None, python: Path | None, inductor: bool, force: bool
) -> None:  # fmt: skip
    """Install SOURCE, which `aotbuild --arch … kernels.jsonl` wrote, where Triton looks for compiled kernels.

    SOURCE is a folder, an archive (.aotc) or the name of an installed wheel. Signature, sizes and hashes are verified
    before anything is written. The cache may be in use, and what it has already stays.

    \b
    Examples:
      aotbuild install-cache dist/kernels-gfx942-cache
      aotbuild install-cache kernels-sm_90-cache.aotc --to /opt/triton-cache --trust policy.toml
      aotbuild install-cache kernels-sm_90-cache.aotc --check
    """
    from aot.capture.installing import default_cache, differences, install, load_inductor
    from aot.capture.shipped_cache import open_shipped
    from aot.capture.wheel import installed_archive
    from aot_runtime.errors import AotError

    try:
        shipped = open_shipped(source if os.path.lexists(source) else installed_archive(str(source)), trust)
        here = _described(shipped, python)
        wrong = differences(shipped, here) if here else []
        if check:
            shipped.check()
        if wrong:
            count = len(shipped.manifest.kernels)
            hint = () if python is not None else ("--python names the program's Python, if it is another",)
            write_error("aotbuild", f"Triton would find none of the {count} kernels here:", *wrong, *hint)
        if check or (wrong and not force):
            if not wrong:
                write(f"{source}: {_summary(shipped)}: {'Triton finds them here' if here else 'whole'}")
            sys.exit(EXIT_FAILED if wrong else 0)
        done = install(shipped, cache or default_cache(), str(here.get("root", "")))
        if inductor:
            load_inductor(shipped, python or Path(sys.executable))
    except AotError as error:
        write_error("aotbuild", *error_lines(error))
        sys.exit(EXIT_FAILED)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        write_error("aotbuild", f"{cache or default_cache()} cannot be written: {error.strerror}{place}")
        sys.exit(EXIT_FAILED)
    signed = f", {shipped.signer}" if shipped.signer else ""
    write(
        f"{cache or default_cache()}: {_summary(shipped)} ({done.written} written, {done.kept} there already){signed}"
    )


def _summary(shipped: ShippedCache) -> str:
    return f"{len(shipped.manifest.kernels)} kernels for {shipped.manifest.arch}"


def _described(shipped: ShippedCache, python: Path | None) -> dict[str, Any]:
    """Describe the Triton that is to use the cache; empty, with a note, if there is none."""
    from aot.capture.environments import named_environment
    from aot.capture.worker_process import describe
    from aot.errors import BuildError

    try:
        environment = named_environment(python or Path(sys.executable))
    except BuildError:
        if python is not None:
            raise
        write("note: there is no Triton here whose files and compiler could be compared (--python)", err=True)
        return {}
    return describe(environment.with_variables(os.environ), [list(shipped.manifest.target)])
