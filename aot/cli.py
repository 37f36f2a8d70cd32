"""The `aotbuild` command."""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from aot_bundle.command.lazy_group import LazyGroup
from aot_bundle.terminal import error_lines, write, write_error
from aot_runtime.contract.gpu_names import GPU_NAMES

from . import __version__
from .command.caches import cache_options
from .command.captured import CAPTURED_SUFFIX, CapturedOptions, captured_options
from .command.logs import log_as_asked
from .command.parameters import (
    EXIT_FAILED,
    EXIT_USAGE,
    TIMEOUT_S,
    Archs,
    ManifestPath,
    SchedulerAddress,
    ShardNumber,
    filters_of,
)
from .targets import TARGETS, Target

if TYPE_CHECKING:
    from aot.cache.shared_cache import CacheSettings
    from aot_bundle.trust.signing import Signer

    from .shards import Shard

SUBCOMMANDS = {
    "cache": ("cache", "List or prune what earlier builds compiled."),
    "capture": ("capture", "Note the Triton kernels that a program compiles."),
    "check": ("check", "Check ops by random calls on the emulator."),
    "init": ("init", "Write a manifest for Triton kernels, an op each, from their bodies and their launches."),
    "install-cache": ("install_cache", "Install a shipped cache of a captured program where Triton looks for it."),
    "run": ("run", "Run a program and prove that it compiles no Triton kernel."),
    "tune": ("tune", "Find the best configs of OP among the candidates of its space."),
}

EPILOG = """\b
Examples:
  aotbuild --arch gfx942 attention
  aotbuild --arch gfx942 manifests/attention.yaml
  aotbuild --arch mi300x,h100 manifests/rows.yaml -o dist
  aotbuild --arch gfx942 --filter op=softmax,dtype=half manifests/rows.yaml
  aotbuild --arch gfx942,sm_90 --pack manifests/first.yaml
  aotbuild --arch gfx942 --dry-run manifests/*.yaml
  aotbuild --arch gfx942 --require 'spills == 0' manifests/memory.yaml
  aotbuild --arch sm_90 kernels.jsonl
  aotbuild --arch sm_90 --triton 3.6.0 --pack kernels.jsonl
  aotbuild install-cache kernels-sm_90-cache.aotc
  aotbuild init examples/foreign/kernels.py:add_kernel
  aotbuild check manifests/first.yaml
  aotbuild tune softmax --arch gfx942 --dry-run
  aotbuild --arch gfx942 --scheduler tcp://127.0.0.1:8786 manifests/first.yaml
  aotbuild --arch gfx942 --shared-cache /mnt/team/aotbuild manifests/first.yaml
  aotbuild --arch gfx942 --shard 3/16 --shared-cache /mnt/team/aotbuild attention
  aotbuild --arch gfx942 --list-jobs manifests/first.yaml
  aotbuild cache ls

Exit status: 0 all built; 1 something did not compile or could not be written; 2 wrong usage or manifest.
"""


class _Terminated(KeyboardInterrupt):
    """SIGTERM was received. The build ends as it does on Ctrl-C, with everything that it started."""


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Raise `_Terminated` on SIGTERM in this context, unless the signal is handled already."""

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


class BuildCommand(LazyGroup):
    """A command that builds, unless its first word is one of its subcommands."""

    allow_interspersed_args = True

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in self.commands:
            name, *rest = args
            return self.commands[name].make_context(f"{info_name} {name}", rest, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


class _FirstWord(ManifestPath):
    """A manifest. For the first word, shells also complete the names of subcommands."""

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


@click.group(
    cls=BuildCommand,
    package="aot.command",
    table=SUBCOMMANDS,
    invoke_without_command=True,
    no_args_is_help=False,
    subcommand_metavar="",
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
    help="Targets: architectures (gfx942), GPUs (mi300x) or `native`, separated by commas; may be repeated.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("dist"),
    show_default=True,
    help="Folder to write bundles to, as <bundle>-<arch>.",
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    help="Variants compiled at once. [default: by cores and memory, or as many as the cluster can]",
)
@click.option(
    "--scheduler",
    type=SchedulerAddress(),
    help="Compile on the workers of a dask.distributed cluster: tcp://HOST:PORT, or tls://HOST:PORT.",
)
@click.option(
    "--shard",
    type=ShardNumber(),
    metavar="NUMBER/COUNT",
    help="Compile this part of the jobs into the cache and write no bundle; a build after all parts compiles nothing.",
)
@click.option(
    "--list-jobs",
    is_flag=True,
    help="Print the compile jobs, or those of the --shard, as JSON; compile nothing.",
)
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="AXIS=VALUE,…",
    callback=_filters,
    help="Build only variants with these values; | separates alternatives. `dtype` is any dtype variable, `op` the op.",
)
@click.option(
    "--for",
    "calls",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="CALLS.yaml",
    help="Build only the variants that the calls in this file need (`aot_runtime.record` writes it); may be repeated.",
)
@click.option(
    "--neighbours",
    is_flag=True,
    help="With --for, also build variants that differ in one thing: aligned or general, or the value of one axis.",
)
@click.option(
    "--add",
    is_flag=True,
    help="With --for, also build all variants of the bundle in the output folder, so that it only grows.",
)
@click.option(
    "--require",
    "requirements",
    multiple=True,
    metavar="EXPRESSION",
    help="Requirement on the code of every variant, as for `aotbundle isa`; if unmet, no bundle is written.",
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
@captured_options
@click.option("--dry-run", is_flag=True, help="Print how many variants there are per op; compile nothing.")
@click.option(
    "--list-archs",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_archs,
    help="Print the targets with their support tier and GPUs, and exit.",
)
@click.option(
    "--list-manifests",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_manifests,
    help="Print the shipped manifests, and exit.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of one variant, and of running each file of kernels or references.",
)
@cache_options
@click.option("--line-info", is_flag=True, help="Keep source lines in the code objects, for profilers.")
@click.option(
    "-v",
    "--verbose",
    count=True,
    help="Log progress, and print the compiler's traceback of each failure; -vv: more.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.version_option(__version__)
def main(
    manifests: tuple[Path, ...], targets: tuple[tuple[Target, ...], ...], output: Path, jobs: int | None,
    scheduler: str | None, filters: dict[str, frozenset[str]], calls: tuple[Path, ...], neighbours: bool,
    add: bool, requirements: tuple[str, ...], signer: Signer | None, pack: bool, compress: bool, dry_run: bool,
    timeout: float, shard: Shard | None, list_jobs: bool, caches: CacheSettings, line_info: bool, verbose: int,
    quiet: bool, captured: CapturedOptions,
) -> None:  # fmt: skip
    """Compile every kernel variant that MANIFESTS list into bundles of code objects. Needs no GPU.

    A manifest is given by its path, or by the name of a shipped one (see --list-manifests). A file of that name takes
    precedence. A manifest whose name ends in .jsonl is a capture file of a Triton program, as `aotbuild capture` writes
    it: its kernels are built as the program's Triton takes them from its cache (see `aotbuild install-cache`).
    """
    from aot.cache.layered_cache import CacheError
    from aot.manifest.yamlfile import ManifestError

    from .build import Request, build
    from .errors import BuildError

    captures = tuple(path for path in manifests if path.suffix == CAPTURED_SUFFIX)
    manifests = tuple(path for path in manifests if path not in captures)
    if neighbours and not (calls or captures):
        raise click.UsageError("--neighbours needs --for, or a capture file")
    if add and (not calls or pack):
        raise click.UsageError("--add needs --for, and excludes --pack")
    if dry_run and (shard or list_jobs):
        raise click.UsageError("--dry-run excludes --shard and --list-jobs")
    if compress and not pack:
        raise click.UsageError("--compress needs --pack")
    captured.check(bool(captures))
    if captures and (scheduler or shard or list_jobs or add):
        raise click.UsageError("--scheduler, --shard, --list-jobs and --add go without capture files")
    log_as_asked(verbose, quiet)
    request = Request(
        manifests=manifests, targets=tuple(dict.fromkeys(target for group in targets for target in group)),
        output=output, jobs=jobs, filters=filters, requirements=requirements, dry_run=dry_run, timeout=timeout,
        cache=caches, line_info=line_info, tracebacks=bool(verbose), quiet=quiet, signer=signer, calls=calls,
        neighbours=neighbours, pack=pack, compress=compress, scheduler=scheduler, add=add, shard=shard,
        list_jobs=list_jobs,
    )  # fmt: skip
    try:
        with _ended_by_sigterm():
            status = captured.build(captures, request) if captures else 0
            manifests += captured.manifests(captures, output, quiet)
            request = dataclasses.replace(request, manifests=manifests)
            sys.exit(max(status, build(request)) if manifests else status)
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
