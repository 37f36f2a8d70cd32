"""The `aotbuild` command."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .targets import TARGETS, Target, parse_arch

EXIT_FAILED, EXIT_USAGE = 1, 2

EPILOG = """\b
Examples:
  aotbuild --arch gfx942 manifests/attention.yaml
  aotbuild --arch gfx942 --arch sm_90 manifests/*.yaml -o dist
  aotbuild --arch gfx942 --filter 'head_dim=128,dtype=float16' manifests/attention.yaml
  aotbuild --arch gfx942 --dry-run manifests/attention.yaml
  aotbuild --arch gfx942 --require 'spills == 0' manifests/memory.yaml

Exit status: 0 all built; 1 something did not compile or could not be written; 2 wrong usage or manifest.
"""


class _Arch(click.ParamType):
    name = "arch"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        if isinstance(value, Target):
            return value
        try:
            return parse_arch(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _list_archs(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        for target in TARGETS:
            click.echo(f"{target.arch:<10}{target.tier}")
        ctx.exit()


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("manifests", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--arch", "targets", type=_Arch(), multiple=True, required=True, help="Target; may be repeated.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("dist"),
    show_default=True,
    help="Folder that bundles are written to, one <bundle>-<arch> each.",
)
@click.option("-j", "--jobs", type=click.IntRange(1), help="Worker processes. [default: by cores and memory]")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="AXIS=VALUE,…",
    help="Build only variants with these values; alternatives with |. `dtype` is any dtype variable.",
)
@click.option(
    "--require",
    "requirements",
    multiple=True,
    metavar="EXPRESSION",
    help="What the code of every variant has to meet, as for `aotbundle isa`; else no bundle is written.",
)
@click.option("--dry-run", is_flag=True, help="Print how many variants there are per op; compile nothing.")
@click.option(
    "--list-archs",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_list_archs,
    help="Print the targets and how well each is supported, and exit.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="Time limit for one variant, and for each file of kernels or references that is run.",
)
@click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    envvar="AOTBUILD_CACHE_DIR",
    show_envvar=True,
    help="Compiled variants are kept here. [default: ~/.cache/aotbuild]",
)
@click.option("--line-info", is_flag=True, help="Keep source lines in the code objects, for profilers.")
@click.option("-v", "--verbose", is_flag=True, help="Print the compiler's traceback of each failure.")
@click.version_option(package_name="aotbuild")
def main(
    manifests: tuple[Path, ...], targets: tuple[Target, ...], output: Path, jobs: int | None, filters: tuple[str, ...],
    requirements: tuple[str, ...], dry_run: bool, timeout: float, cache_dir: Path | None, line_info: bool,
    verbose: bool,
) -> None:  # fmt: skip
    """Compile every kernel variant that MANIFESTS list into bundles of code objects. Needs no GPU."""
    from aot.compile.cache import CacheError
    from aot.manifest.yamlfile import ManifestError

    from .session import BuildError, Request, build

    request = Request(
        manifests,
        tuple(dict.fromkeys(targets)),
        output,
        jobs,
        parse_filters(filters),
        requirements,
        dry_run,
        timeout,
        cache_dir,
        line_info,
        verbose,
    )
    try:
        sys.exit(build(request))
    except ManifestError as error:
        for message in error.messages:
            click.echo(f"aotbuild: error: {message}", err=True)
        sys.exit(EXIT_USAGE)
    except (BuildError, CacheError) as error:
        click.echo(f"aotbuild: error: {error}", err=True)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        click.echo("aotbuild: interrupted; nothing was written, and what was compiled is in the cache", err=True)
        sys.exit(130)


def parse_filters(texts: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """`a=1|2,b=x` → {a: {1, 2}, b: {x}}, lower case."""
    filters: dict[str, frozenset[str]] = {}
    for text in texts:
        for item in text.split(","):
            axis, equals, values = item.partition("=")
            wanted = frozenset(value.strip().lower() for value in values.split("|"))
            if not equals or not axis.strip() or "" in wanted:
                raise click.BadParameter(
                    f"'{item}' is not axis=value; write e.g. 'head_dim=64|128,dtype=float16'", param_hint="--filter"
                )
            filters[axis.strip().lower()] = filters.get(axis.strip().lower(), frozenset()) | wanted
    return filters
