"""The `aotbuild` command."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from aot_bundle.command.failures import Told
from aot_bundle.terminal import error_lines, write, write_error
from aot_runtime.contract.arch import GPU_NAMES

from . import __version__
from .command.cache import cache
from .command.caches import cache_options
from .command.check import check
from .command.init import init
from .command.logs import log_as_asked
from .command.parameters import (
    EXIT_FAILED,
    EXIT_USAGE,
    TIMEOUT_S,
    Archs,
    ManifestPath,
    SchedulerAddress,
    filters_of,
)
from .command.tune import tune
from .targets import TARGETS, Target

if TYPE_CHECKING:
    from aot_bundle.trust.signing import Signer

    from .compile.shared_cache import CacheSettings

SUBCOMMANDS: Mapping[str, click.Command] = {"cache": cache, "check": check, "init": init, "tune": tune}

EPILOG = """\b
Examples:
  aotbuild --arch gfx942 attention
  aotbuild --arch gfx942 manifests/attention.yaml
  aotbuild --arch mi300x,h100 manifests/rows.yaml -o dist
  aotbuild --arch gfx942 --filter op=softmax,dtype=half manifests/rows.yaml
  aotbuild --arch gfx942,sm_90 --pack manifests/first.yaml
  aotbuild --arch gfx942 --dry-run manifests/*.yaml
  aotbuild --arch gfx942 --require 'spills == 0' manifests/memory.yaml
  aotbuild init examples/foreign/kernels.py:add_kernel
  aotbuild check manifests/first.yaml
  aotbuild tune softmax --arch gfx942 --dry-run
  aotbuild --arch gfx942 --scheduler tcp://127.0.0.1:8786 manifests/first.yaml
  aotbuild --arch gfx942 --shared-cache /mnt/team/aotbuild manifests/first.yaml
  aotbuild cache ls

Exit status: 0 all built; 1 something did not compile or could not be written; 2 wrong usage or manifest.
"""


class _Terminated(KeyboardInterrupt):
    """The build was sent SIGTERM. It ends as by Ctrl-C: what it started ends with it."""


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM raises `_Terminated` meanwhile, unless somebody handles it already."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    is_main = threading.current_thread() is threading.main_thread()
    handles = is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if handles:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        if handles:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class BuildCommand(Told):
    """A command that builds, unless its first word is one of its subcommands, `commands`."""

    commands = SUBCOMMANDS

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in self.commands:
            name, *rest = args
            return self.commands[name].make_context(f"{info_name} {name}", rest, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str()) for name, command in self.commands.items()])


class _FirstWord(ManifestPath):
    """A manifest. The first word may be a subcommand's, too, which completion in shells offers."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        words = [] if ctx.params.get("manifests") or ctx.params.get("targets") else [*SUBCOMMANDS]
        found = [CompletionItem(word) for word in words if word.startswith(incomplete)]
        return [*found, *super().shell_complete(ctx, param, incomplete)]


def _list_archs(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        for target in TARGETS:
            gpus = " ".join(gpu for gpu, arch in GPU_NAMES.items() if arch == target.arch)
            write(f"{target.arch:<10}{target.tier:<14}{gpus}".rstrip())
        ctx.exit()


def _list_manifests(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from aot.manifest.shipped import shipped_manifests, summary

        for name, path in shipped_manifests().items():
            write(f"{name:<22}{summary(path)}")
        ctx.exit()


def _filters(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, frozenset[str]]:
    return filters_of(texts)


def _signer(_: click.Context, __: click.Parameter, path: Path | None) -> Signer | None:
    if path is None:
        return None
    from aot_bundle.trust.signing import read_signer
    from aot_runtime.errors import TrustError

    try:
        return read_signer(path)
    except (ValueError, TrustError) as error:
        raise click.BadParameter(str(error)) from None


def _compresses(_: click.Context, __: click.Parameter, compress: bool) -> bool:
    from aot_runtime.bundle.zstd import need_library
    from aot_runtime.errors import BundleError

    try:
        return compress and bool(need_library())
    except BundleError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    cls=BuildCommand,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("manifests", nargs=-1, required=True, type=_FirstWord(path_type=Path))
@click.option(
    "--arch",
    "targets",
    type=Archs(),
    multiple=True,
    required=True,
    help="Targets: architectures (gfx942), GPUs (mi300x) or `native`, with commas between them; may be repeated.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("dist"),
    show_default=True,
    help="Folder that bundles are written to, one <bundle>-<arch> each.",
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    help="Variants that are compiled at once. [default: by cores and memory, or as many as the cluster can]",
)
@click.option(
    "--scheduler",
    type=SchedulerAddress(),
    help="Compile on the workers of a dask.distributed cluster: tcp://HOST:PORT, or tls://HOST:PORT.",
)
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="AXIS=VALUE,…",
    callback=_filters,
    help="Build only variants with these values; alternatives with |. `dtype` is any dtype variable, `op` the op.",
)
@click.option(
    "--for",
    "calls",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="CALLS.yaml",
    help="Build only the variants that the calls of this file get, which `aot_runtime.record` writes; may be repeated.",
)
@click.option(
    "--neighbours",
    is_flag=True,
    help="With --for, build what differs from these in one thing, too: aligned or general, or the value of one axis.",
)
@click.option(
    "--add",
    is_flag=True,
    help="With --for, build all that the bundle in the output folder has, too, so that it only grows.",
)
@click.option(
    "--require",
    "requirements",
    multiple=True,
    metavar="EXPRESSION",
    help="What the code of every variant has to meet, as for `aotbundle isa`; else no bundle is written.",
)
@click.option(
    "--sign",
    "signer",
    type=click.Path(path_type=Path),
    metavar="KEY",
    callback=_signer,
    help="Sign each bundle with the private key in this file, as `aotbundle sign` does.",
)
@click.option(
    "--pack",
    is_flag=True,
    help="Write one file <bundle>.aotb for all targets, as `aotbundle merge` does, instead of folders.",
)
@click.option(
    "--compress",
    is_flag=True,
    callback=_compresses,
    help="With --pack, compress the code objects, as `aotbundle merge` does. Needs the extra zstd.",
)
@click.option("--dry-run", is_flag=True, help="Print how many variants there are per op; compile nothing.")
@click.option(
    "--list-archs",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_archs,
    help="Print the targets, how well each is supported and names of its GPUs, and exit.",
)
@click.option(
    "--list-manifests",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_manifests,
    help="Print the names of the shipped manifests and what they are, and exit.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for one variant, and for each file of kernels or references that is run.",
)
@cache_options
@click.option("--line-info", is_flag=True, help="Keep source lines in the code objects, for profilers.")
@click.option(
    "-v",
    "--verbose",
    count=True,
    help="Log what is done, and print the compiler's traceback of each failure; -vv: more.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.version_option(__version__)
def main(
    manifests: tuple[Path, ...], targets: tuple[tuple[Target, ...], ...], output: Path, jobs: int | None,
    scheduler: str | None, filters: dict[str, frozenset[str]], calls: tuple[Path, ...], neighbours: bool,
    add: bool, requirements: tuple[str, ...], signer: Signer | None, pack: bool, compress: bool, dry_run: bool,
    timeout: float, caches: CacheSettings, line_info: bool, verbose: int, quiet: bool,
) -> None:  # fmt: skip
    """Compile every kernel variant that MANIFESTS list into bundles of code objects. Needs no GPU.

    A manifest is given by its path, or by the name of one that is shipped (see --list-manifests): a file of that very
    name comes first.
    """
    from aot.compile.cache import CacheError
    from aot.manifest.yamlfile import ManifestError

    from .session import BuildError, Request, build

    if neighbours and not calls:
        raise click.UsageError("--neighbours are those of calls: it goes with --for")
    if add and (not calls or pack):
        raise click.UsageError("--add is for a bundle in a folder, and for calls: it goes with --for, without --pack")
    if compress and not pack:
        raise click.UsageError("--compress is for archives: it goes with --pack")
    log_as_asked(verbose, quiet)
    request = Request(
        manifests,
        tuple(dict.fromkeys(target for group in targets for target in group)),
        output,
        jobs,
        filters,
        requirements,
        dry_run,
        timeout,
        caches,
        line_info,
        bool(verbose),
        quiet,
        signer,
        calls,
        neighbours,
        pack,
        compress,
        scheduler,
        add,
    )
    try:
        with _ended_by_sigterm():
            sys.exit(build(request))
    except ManifestError as error:
        for message in error.messages:
            write_error("aotbuild", message)
        sys.exit(EXIT_USAGE)
    except (BuildError, CacheError) as error:
        write_error("aotbuild", *error_lines(error))
        sys.exit(EXIT_FAILED)
    except _Terminated:
        write("aotbuild: terminated; no bundle was written", err=True)
        sys.exit(128 + signal.SIGTERM)
    except KeyboardInterrupt:
        write("aotbuild: interrupted; nothing was written, and what was compiled is in the cache", err=True)
        sys.exit(130)
