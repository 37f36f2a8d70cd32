"""`aotbundle selftest`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from aot_bundle.terminal import write, write_json

from .failures import EXIT_FAILED, Unusable
from .parameters import DEVICE_OPTION, BundlePath, OpName, status_line


@click.command()
@click.argument("bundle", metavar="BUNDLE|FOLDER|NAME", type=BundlePath(by_device=True))
@DEVICE_OPTION
@click.option(
    "--op",
    "ops",
    type=OpName(),
    multiple=True,
    metavar="OP",
    help="Only the cases of this op; may be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="The whole report, as JSON.")
def selftest(bundle: Path, device: str | None, ops: tuple[str, ...], as_json: bool) -> None:
    """Check this device: make the recorded calls of BUNDLE and compare their results.

    Needs no sources. Prints the largest error of each output, which must be within the bound stored by the build.
    Exit status: 0 all cases pass; 1 a case fails, or the bundle is damaged; 2 wrong usage, no suitable device, or a
    bundle without self-test vectors.

    \b
    Examples:
      aotbundle selftest dist/attention-gfx942
      aotbundle selftest dist/rows-gfx942 --device emulator --op softmax --op rms_norm --json
    """
    from aot_runtime.call.selftests import head_text, make_report, prepare, report_data, result_lines, run_case
    from aot_runtime.errors import ArchMismatchError, ArgumentError, DeviceError, NoVectorsError
    from aot_runtime.opening import open_bundle

    try:
        opened = open_bundle(bundle, device)
        cases = prepare(opened, *ops)
    except (ArchMismatchError, ArgumentError, DeviceError, NoVectorsError) as error:
        raise Unusable(*error.lines) from error
    if not as_json:
        write(head_text(opened))
    results = []
    for number, prepared in enumerate(cases, 1):
        with status_line(f"{number}/{len(cases)} {prepared.case.op} {prepared.case.name}"):
            results.append(run_case(opened, prepared))
        if not as_json:
            write(*result_lines(results[-1]))
    report = make_report(opened, results)
    failed = sum(not result.passed for result in results)
    passed = _passed(len(results)) if not failed else f"{failed} of {len(results)} cases FAILED"
    if as_json:
        write_json(report_data(report))
    else:
        write(passed)
    sys.exit(EXIT_FAILED if failed else 0)


def _passed(count: int) -> str:
    return "the only case passes" if count == 1 else f"all {count} cases pass"
