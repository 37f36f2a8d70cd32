"""`aotbuild tune`: the best configs of an op, by a device's clock or by the model of time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot.command.caches import cache_options
from aot.command.logs import log_as_asked
from aot.command.parameters import EXIT_FAILED, EXIT_USAGE, TIMEOUT_S, Archs, ManifestPath, SchedulerAddress
from aot.targets import Target
from aot_bundle.terminal import Console, error_lines, write_error

if TYPE_CHECKING:
    from aot.cache.shared_cache import CacheSettings
    from aot.manifest.calls import CallEntrySpec

EPILOG = """\b
Examples:
  aotbuild tune softmax --arch gfx942 --dry-run
  aotbuild tune softmax --arch gfx942 --group wide --dim rows=304 --dim cols=16384 --dtype T=float16 -o tuned.yaml
  aotbuild tune softmax --arch gfx942 --device hip
  aotbuild tune matmul --arch sm_90 --device cuda --group large
  aotbuild tune matmul --costs dist/gemm-sm_90 --device cuda

Exit status: 0 done; 1 no candidate was left, or something failed; 2 wrong usage, manifest or space.
"""


class _Pair(click.ParamType):
    """NAME=VALUE. The value of a shape is numbers with commas between them."""

    name = "pair"

    def __init__(self, value: type = str, shape: bool = False):
        self.value, self.shape = value, shape

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        try:
            if not (name and equals and text):
                raise ValueError
            return name, [int(number) for number in text.split(",")] if self.shape else self.value(text)
        except ValueError:
            self.fail(
                f"'{value}' is not NAME={'N,N,…' if self.shape else 'N' if self.value is int else 'VALUE'}", param, ctx
            )


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("op", required=False)
@click.argument("manifest", required=False, type=ManifestPath(path_type=Path))
@click.option(
    "--arch", "targets", type=Archs(), help="The architecture, or the name of a GPU; a shortlist may name it."
)
@click.option(
    "--model", is_flag=True, help="Use the model of time, which needs no GPU. This is the default without --device."
)
@click.option("--device", metavar="DEVICE", help="Measure on a device: hip, hip:1, cuda, ….")
@click.option(
    "--space", type=click.Path(path_type=Path), metavar="FILE",
    help="The candidates. [default: tuning/spaces/OP.yaml beside the manifest]",
)  # fmt: skip
@click.option("--shortlist", type=click.Path(path_type=Path), metavar="FILE",
              help="A space that names its op and manifest, as --write-shortlist writes it.")  # fmt: skip
@click.option("--group", "groups", multiple=True, metavar="NAME", help="Only this group; may be repeated.")
@click.option("--for", "calls", multiple=True, type=click.Path(path_type=Path), metavar="CALLS.yaml",
              help="Compare on the op's calls in this file, as for `aotbuild --for`.")  # fmt: skip
@click.option(
    "--dim", "dims", multiple=True, type=_Pair(int), metavar="DIM=N", help="A dim of the one call to compare on."
)
@click.option("--shape", "shapes", multiple=True, type=_Pair(shape=True), metavar="TENSOR=N,N,…",
              help="The shape of a tensor of the call.")  # fmt: skip
@click.option("--dtype", "dtypes", multiple=True, type=_Pair(), metavar="NAME=DTYPE", help="A dtype of the call.")
@click.option("--set", "scalars", multiple=True, type=_Pair(), metavar="SCALAR=VALUE", help="A scalar of the call.")
@click.option("--given", multiple=True, metavar="TENSOR", help="An optional input of the call, shaped by --dim.")
@click.option("--content", multiple=True, type=_Pair(), metavar="TENSOR=NUMBER|LOW..HIGH|FILE.npy",
              help="Content of a tensor; LOW..HIGH: random integers. [default: N(0, 1), integers 0]")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Tuning file to write. [default: tuning/OP.yaml beside the manifest]")  # fmt: skip
@click.option("--results", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="File of times, from which an interrupted run resumes. [default: tuned/OP-ARCH.jsonl]")  # fmt: skip
@click.option("--write-shortlist", "shortlist_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write the best candidates of each group as a space, for --shortlist.")  # fmt: skip
@click.option(
    "--keep", type=click.IntRange(1), default=16, show_default=True, help="Candidates of each group of the shortlist."
)
@click.option("--costs", "costs", type=click.Path(path_type=Path, exists=True), metavar="BUNDLE",
              help="Fit the constants of OP's costs to times of random calls of a built bundle.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="With --costs, the seed of the calls.")
@click.option("--count", type=click.IntRange(6), default=90, show_default=True,
              help="With --costs, the number of calls. One of three is not used for the fit.")  # fmt: skip
@click.option("--margin", type=click.FloatRange(0, 100), metavar="PERCENT",
              help="Time that the best candidate has to save. [default: 2 if measured, 10 if modelled]")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=11, show_default=True,
              help="With --device, rounds to take medians of.")  # fmt: skip
@click.option("-j", "--jobs", type=click.IntRange(1), help="Processes that compile or model. [default: by cores]")
@click.option("--scheduler", type=SchedulerAddress(), help="Compile on a dask.distributed cluster, as a build does.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=TIMEOUT_S, show_default=True,
              metavar="SECONDS", help="Time limit of compiling one kernel.")  # fmt: skip
@cache_options
@click.option("--dry-run", is_flag=True, help="Print how many candidates and calls there are; compile nothing.")
@click.option("-v", "--verbose", count=True, help="Log progress; -vv: more.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def tune(
    op: str | None, manifest: Path | None, targets: tuple[Target, ...] | None, model: bool, device: str | None,
    space: Path | None, shortlist: Path | None, groups: tuple[str, ...], calls: tuple[Path, ...],
    dims: tuple[tuple[str, int], ...], shapes: tuple[tuple[str, list[int]], ...], dtypes: tuple[tuple[str, str], ...],
    scalars: tuple[tuple[str, str], ...], given: tuple[str, ...], content: tuple[tuple[str, str], ...],
    output: Path | None, results: Path | None, shortlist_file: Path | None, keep: int, costs: Path | None, seed: int,
    count: int, margin: float | None, rounds: int, jobs: int | None, scheduler: str | None, timeout: float,
    caches: CacheSettings, dry_run: bool, verbose: int, quiet: bool,
) -> None:  # fmt: skip
    """Find the best configs of OP among the candidates of its space.

    Candidates are compiled. Those that do not fit, that spill more than the present config, or that do not meet the
    space's
    requirements are left out. The others are timed on the calls that the space declares or that are given here. A
    config
    replaces another in the tuning file if it is faster, and is marked as measured or modelled; a modelled config never
    replaces a measured one.
    """
    if targets is None and not shortlist and not costs:
        raise click.UsageError("Missing option '--arch'.")
    if targets is not None and len(targets) != 1:
        raise click.UsageError("--arch takes one architecture: an op is tuned for one at a time")
    if model and device:
        raise click.UsageError("--model and --device exclude each other")
    if space and shortlist:
        raise click.UsageError("--space and --shortlist exclude each other")
    if op is None and not shortlist:
        raise click.UsageError("OP is missing; it may be omitted only with --shortlist")
    words = (dims, shapes, dtypes, scalars, given)
    if any(words) and calls:
        raise click.UsageError("--for excludes --dim, --shape, --dtype, --set and --given")

    from aot.build import Request
    from aot.cache.layered_cache import CacheError
    from aot.errors import BuildError
    from aot.manifest.yamlfile import ManifestError
    from aot_runtime.errors import AotError

    log_as_asked(verbose, quiet)
    console = Console(quiet=quiet)
    build = Request(
        manifests=(manifest,) if manifest else (), targets=targets or (), output=Path(), jobs=jobs, filters={},
        requirements=(), dry_run=False, timeout=timeout, cache=caches, line_info=False, quiet=quiet,
        scheduler=scheduler,
    )  # fmt: skip
    try:
        from aot.tune.costs import CostRequest, fit_costs
        from aot.tune.request import TuneRequest
        from aot.tune.tune_op import tune as run

        call = _call(*words) if any(words) else None
        request = TuneRequest(
            op, build, device, space or shortlist, call, calls, dict(content), groups, results, output,
            shortlist_file, keep, None if margin is None else margin / 100, rounds, dry_run,
        )  # fmt: skip
        if costs is not None:
            fit_costs(CostRequest(request, costs, seed, count), console)
        else:
            run(request, console)
    except ManifestError as error:
        for message in error.messages:
            write_error("aotbuild", message)
        sys.exit(EXIT_USAGE)
    except (BuildError, CacheError, AotError) as error:
        write_error("aotbuild", *error_lines(error))
        sys.exit(EXIT_FAILED)


def _call(dims: Any, shapes: Any, dtypes: Any, scalars: Any, given: tuple[str, ...]) -> CallEntrySpec:
    """Return the call that the options describe. Raises `ManifestError`."""
    from pydantic import ValidationError

    from aot.manifest.calls import CallEntrySpec
    from aot.manifest.yamlfile import ManifestError

    words = {"op": "op", "dims": dict(dims), "shapes": dict(shapes), "dtypes": dict(dtypes), "scalars": dict(scalars),
             "given": list(given)}  # fmt: skip
    try:
        return CallEntrySpec.model_validate(words)
    except ValidationError as error:
        raise ManifestError(
            [f"the command line: {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        ) from None
