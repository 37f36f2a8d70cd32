"""`aotbuild check`: random calls of every op on the emulator."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aot.command.caches import cache_options
from aot.command.logs import log_as_asked
from aot.command.parameters import EXIT_FAILED, EXIT_USAGE, TIMEOUT_S, Archs, ManifestPath, filters_of
from aot.targets import Target, parse_arch
from aot_bundle.terminal import error_lines, write, write_error, write_json

if TYPE_CHECKING:
    from aot.cache.shared_cache import CacheSettings

EPILOG = """\b
Examples:
  aotbuild check manifests/first.yaml
  aotbuild check manifests/rows.yaml --op softmax --filter dtype=half --count 2
  aotbuild check manifests/rows.yaml --op silu_mul --seed 7 --case 1

Exit status: 0 nothing was found; 1 something is wrong, or could not be checked; 2 wrong usage or manifest.
"""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("manifests", nargs=-1, required=True, type=ManifestPath(path_type=Path))
@click.option(
    "--arch", "targets", type=Archs(), multiple=True, default=[(parse_arch("gfx942"),)],
    help="Architectures to check for, separated by commas; the emulator must have them. [default: gfx942]",
)  # fmt: skip
@click.option(
    "--filter", "filters", multiple=True, metavar="AXIS=VALUE,…",
    help="Check only variants with these values, as for a build.",
)  # fmt: skip
@click.option("--op", "ops", multiple=True, metavar="OP", help="Check this op only; may be repeated.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of everything random.")
@click.option("--count", type=click.IntRange(1), default=6, show_default=True, help="Calls of each op.")
@click.option("--case", type=click.IntRange(0), help="Make this call only, by its number.")
@click.option(
    "--time-limit", type=click.FloatRange(min=0, min_open=True), default=120, show_default=True, metavar="SECONDS",
    help="Time limit of a launch, extended on a busy machine. An op is given up after a launch that exceeds it.",
)  # fmt: skip
@click.option("-j", "--jobs", type=click.IntRange(1), help="Worker processes that compile. [default: by cores, memory]")
@cache_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-v", "--verbose", count=True, help="Also print findings that repeat earlier ones, and log progress.")
@click.option("-q", "--quiet", is_flag=True, help="Print only ops with findings.")
def check(
    manifests: tuple[Path, ...], targets: tuple[tuple[Target, ...], ...], filters: tuple[str, ...],
    ops: tuple[str, ...], seed: int, count: int, case: int | None, time_limit: float, jobs: int | None,
    caches: CacheSettings, as_json: bool, verbose: int, quiet: bool,
) -> None:  # fmt: skip
    """Check ops by random calls on the emulator.

    A few variants of every op of MANIFESTS are compiled, and called in strict mode with small tensors whose extents no
    block divides: packed, and with gaps and dims in another order. No access may be out of bounds, race, or read memory
    that nothing wrote. Every element of an output must be written, and nothing else. Results may depend neither on
    strides
    nor on the order of wavefronts, and must agree with the op's `reference`, if it has one.
    """
    from aot.build import Request
    from aot.cache.layered_cache import CacheError
    from aot.errors import BuildError
    from aot.manifest.yamlfile import ManifestError
    from aot_runtime.errors import DeviceError

    log_as_asked(verbose, quiet)
    words = [word for text in filters for word in ("--filter", text)]
    build = Request(
        manifests=manifests,
        targets=tuple(dict.fromkeys(target for group in targets for target in group)),
        output=Path(),
        jobs=jobs,
        filters=filters_of((*filters, *(f"op={op}" for op in ops))),
        requirements=(),
        dry_run=False,
        timeout=TIMEOUT_S,
        cache=caches,
        line_info=True,
        tracebacks=bool(verbose),
        quiet=quiet or as_json,
    )
    try:
        from aot.check.check_ops import CheckRequest
        from aot.check.check_ops import check as run

        request = CheckRequest(build, seed, count, case, time_limit, tuple(words))
        reports = run(request, (lambda report: None) if as_json else _Printer(verbose > 0, quiet))
    except (ManifestError, DeviceError) as error:
        for message in getattr(error, "messages", [str(error)]):
            write_error("aotbuild", message)
        sys.exit(EXIT_USAGE)
    except (BuildError, CacheError) as error:
        write_error("aotbuild", *error_lines(error))
        sys.exit(EXIT_FAILED)
    if reports is None:
        sys.exit(EXIT_FAILED)
    passed = all(report.passed for report in reports)
    if as_json:
        write_json({"seed": seed, "passed": passed, "ops": [report.data for report in reports]})
    elif not quiet:
        wrong = sum(not report.passed for report in reports)
        found = f"{wrong} of them wrong" if wrong else "nothing found"
        write(f"{len(reports)} {'op' if len(reports) == 1 else 'ops'}, {found}; seed {seed}")
    sys.exit(0 if passed else EXIT_FAILED)


class _Printer:
    """Prints the report of each op."""

    def __init__(self, every: bool, quiet: bool):
        self.every, self.quiet = every, quiet

    def __call__(self, report: object) -> None:
        from aot.check.findings import OpReport

        assert isinstance(report, OpReport)
        if not (self.quiet and report.passed):
            write(*report.lines(24, self.every))
