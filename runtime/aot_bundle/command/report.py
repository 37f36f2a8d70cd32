"""`aotbundle report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .failures import Unusable
from .output import write_whole
from .parameters import BUNDLE, policy_of, trust_option

if TYPE_CHECKING:
    from .comparing.bundles import Differences

FILES = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.option("-o", "--output", required=True, type=FILES, metavar="FILE.html", help="The page to write.")
@click.option("--code", is_flag=True, help="Add the columns of `isa` on the code of each variant.")
@click.option(
    "--selftest", "selftest_file", type=FILES, metavar="FILE.json", help="Output of `aotbundle selftest --json`."
)
@click.option(
    "--profile", "profile_files", multiple=True, type=FILES, metavar="FILE.json",
    help="Output of `aotbundle profile --json`; may be repeated.",
)  # fmt: skip
@click.option(
    "--time", "time_files", multiple=True, type=FILES, metavar="FILE.json",
    help="Output of `aotbundle profile --time --json`; may be repeated.",
)  # fmt: skip
@click.option("--against", type=BUNDLE, metavar="BUNDLE", help="An older bundle to compare with, as by `diff`.")
@trust_option
def report(
    bundle: Path, output: Path, code: bool, selftest_file: Path | None, profile_files: tuple[Path, ...],
    time_files: tuple[Path, ...], against: Path | None, trust: Path | None,
) -> None:  # fmt: skip
    """Write a report on a bundle as a self-contained HTML page.

    It has the ops with their contracts, plots and tables of registers, spills, LDS, occupancy and code size, the
    provenance and signature, and a table of all variants to filter and sort. On request it adds results of a self-test,
    instruction mix and roofline of profiled calls, modelled times, and a comparison with another bundle. Needs the
    extra `report` (with --code also `emulator`) and no device.

    \b
    Examples:
      aotbundle report dist/rows-gfx942 -o rows.html
      aotbundle selftest dist/rows-gfx942 --device emulator --op softmax --json > selftest.json
      aotbundle report dist/rows-gfx942 -o rows.html --code --selftest selftest.json
      aotbundle report dist/attention-gfx942 -o attention.html --against dist/first-gfx942
    """
    from aot_runtime.bundle.reading import read_index
    from aot_runtime.errors import ArgumentError, DeviceError

    try:
        from .reporting.given import read_modelled, read_profiled, read_tested
        from .reporting.page import Material, report_page
    except ImportError as error:
        raise Unusable(f"a report needs the extra `report`: {error}; pip install 'aotbuild[report]'") from None
    from .code_tables import bundle_code
    from .listing import list_index
    from .origin import signature_of
    from .variants import variant_rows

    index = read_index(bundle)
    try:
        tested = read_tested(selftest_file, index) if selftest_file else None
        profiled = [read_profiled(path, index) for path in profile_files]
        modelled = [read_modelled(path, index) for path in time_files]
        facts = [*map(bundle_code(bundle, index).facts, index.variants)] if code else None
    except (ArgumentError, DeviceError) as error:
        raise Unusable(str(error)) from None
    signature = signature_of(bundle, policy_of(trust))
    differences = _differences(against, bundle) if against else None
    listed, rows = list_index(bundle, index), variant_rows(index)
    page = report_page(Material(index, listed, rows, signature, facts, tested, profiled, differences, modelled))
    write_whole(output, page)


def _differences(old: Path, new: Path) -> Differences:
    """Compare with an older bundle; in a file or folder of several, the one of this name and architecture."""
    from .comparing.bundles import compare, find_pairs

    pairs = find_pairs(old, new)
    if not pairs.both:
        raise Unusable(f"{old} has no bundle of the name and architecture of {new}")
    return compare(*pairs.both[0])
