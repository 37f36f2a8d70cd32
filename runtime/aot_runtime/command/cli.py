"""The `aotbundle` command. What a command needs is imported when it runs, so that `--help` is quick."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aot_runtime.errors import AotError

if TYPE_CHECKING:
    from aot_runtime.call.callspec import CallSpec

EXIT_FAILED, EXIT_USAGE = 1, 2


class _Failure(click.ClickException):
    exit_code = EXIT_FAILED

    def show(self, file: Any = None) -> None:
        click.echo(f"aotbundle: error: {self.message}", err=True)


class _Unusable(_Failure):
    exit_code = EXIT_USAGE


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (AotError, PermissionError) as error:
            raise _Failure("\n".join([str(error), *getattr(error, "__notes__", ())])) from error


class _Pair(click.ParamType):
    """`NAME=VALUE`, the value being converted."""

    def __init__(self, convert: Callable[[str], Any], form: str):
        self.name, self._convert = form, convert

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        if isinstance(value, tuple):
            return value[0], value[1]
        name, equals, text = str(value).partition("=")
        try:
            if not name.strip() or not equals:
                raise ValueError
            return name.strip(), self._convert(text.strip())
        except ValueError:
            self.fail(f"'{value}' is not {self.name}", param, ctx)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",")) if text else ()


_PATHS = click.Path(path_type=Path)


def _call_options(command: Callable[..., None]) -> Callable[..., None]:
    """Arguments and options that describe a call of a bundle's op; the command gets them as `call`."""

    @functools.wraps(command)
    def with_call(
        scalars: tuple[tuple[str, str], ...], settings: tuple[tuple[str, str], ...], given: tuple[str, ...],
        unaligned: tuple[str, ...], **rest: Any,
    ) -> None:  # fmt: skip
        from aot_runtime.call.callspec import CallSpec

        pairs = {name: dict(rest.pop(name)) for name in ("shapes", "dims", "dtypes", "strides")}
        command(
            call=CallSpec(
                **pairs, given=frozenset(given), unaligned=frozenset(unaligned), scalars=dict((*scalars, *settings))
            ),
            **rest,
        )

    with_options: Callable[..., None] = with_call
    for decorate in reversed(
        (
            click.argument("bundle", type=_PATHS),
            click.argument("op"),
            click.argument("scalars", metavar="[SCALAR=VALUE]…", nargs=-1, type=_Pair(str, "SCALAR=VALUE")),
            click.option(
                "--shape", "shapes", multiple=True, type=_Pair(_integers, "TENSOR=N,N,…"), help="A tensor's shape."
            ),
            click.option(
                "--dim",
                "dims",
                multiple=True,
                type=_Pair(int, "DIM=N"),
                help="A dim's extent; gives every required input that has no --shape its shape.",
            ),
            click.option(
                "--given",
                multiple=True,
                metavar="TENSOR",
                help="An optional input that is passed, shaped by --dim.",
            ),
            click.option(
                "--dtype",
                "dtypes",
                multiple=True,
                type=_Pair(str, "NAME=DTYPE"),
                help="The dtype of a dtype variable or a tensor.",
            ),
            click.option(
                "--strides",
                multiple=True,
                type=_Pair(_integers, "TENSOR=N,N,…"),
                help="A tensor's strides in elements. [default: packed]",
            ),
            click.option(
                "--unaligned",
                multiple=True,
                metavar="TENSOR",
                help="A tensor whose address is no multiple of 16 bytes.",
            ),
            click.option(
                "--set",
                "settings",
                multiple=True,
                type=_Pair(str, "SCALAR=VALUE"),
                help="A scalar's value, as SCALAR=VALUE by itself.",
            ),
        )
    ):
        with_options = decorate(with_options)
    return with_options


class _Progress:
    """How far a launch is, on a line of the terminal that is written over; plain lines, not often, elsewhere."""

    _PAUSE_S = 5.0

    def __init__(self) -> None:
        self._terminal, self._last = sys.stderr.isatty(), time.monotonic()

    def show(self, kernel: str, done: int, total: int) -> None:
        if self._terminal:
            click.echo(f"\r{kernel}: {done} of {total} workgroups ", nl=done == total, err=True)
        elif time.monotonic() - self._last > self._PAUSE_S:
            self._last = time.monotonic()
            click.echo(f"{kernel}: {done} of {total} workgroups", err=True)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aotbuild")
def main() -> None:
    """Look into bundles of compiled kernels, check them, and check this machine.

    Exit status: 0 all is well; 1 a fault was found; 2 wrong usage.
    """


@main.command()
@click.argument("paths", metavar="BUNDLE|FOLDER…", nargs=-1, required=True, type=_PATHS)
def ls(paths: tuple[Path, ...]) -> None:
    """List bundles: their architecture, ops, variants and sizes.

    \b
    Examples:
      aotbundle ls dist
      aotbundle ls dist/attention-gfx942 dist/rows-gfx942
    """
    from .show import find_bundles, list_bundles

    text, faults = list_bundles(find_bundles(paths))
    click.echo(text)
    if faults:
        raise AotError("\n".join(faults))


@main.command()
@click.argument("bundle", type=_PATHS)
@click.option("--op", help="Only the variants of this op.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def show(bundle: Path, op: str | None, as_json: bool) -> None:
    """Show every variant of a bundle: its point, config, registers, spills, LDS, waves per SIMD and code size.

    In SPILLS, VGPRs and SGPRs; in WAVES, waves per SIMD and what limits them; FILE is the code object.

    \b
    Examples:
      aotbundle show dist/rows-gfx942
      aotbundle show dist/attention-gfx942 --op flash_attention --json
    """
    import json

    from aot_runtime.bundle.reading import read_index

    from .show import bundle_data, bundle_text, variant_rows

    index = read_index(bundle)
    rows = variant_rows(index, op)
    click.echo(json.dumps(bundle_data(index, rows), indent=1) if as_json else bundle_text(index, rows))


@main.command()
@click.argument("paths", metavar="BUNDLE|FOLDER…", nargs=-1, required=True, type=_PATHS)
def verify(paths: tuple[Path, ...]) -> None:
    """Check bundles: index, files and hashes, and each variant against its code object. Needs no device.

    \b
    Examples:
      aotbundle verify dist/rows-gfx942
      aotbundle verify dist
    """
    from aot_runtime.bundle.verify import verify_bundle

    from .show import find_bundles

    faulty = False
    for folder in find_bundles(paths):
        faults = verify_bundle(folder)
        faulty |= bool(faults)
        for fault in faults:
            click.echo(f"{folder}: {fault}")
        click.echo(f"{folder}: {f'{len(faults)} fault(s)' if faults else 'ok'}")
    sys.exit(EXIT_FAILED if faulty else 0)


@main.command()
@click.argument("bundle", metavar="BUNDLE|FOLDER", type=_PATHS)
@click.option("--device", help="hip, hip:1, cuda, emulator, …  [default: the first GPU of the bundle's kind]")
@click.option("--op", help="Only the cases of this op.")
@click.option("--json", "as_json", is_flag=True, help="The whole report, as JSON.")
def selftest(bundle: Path, device: str | None, op: str | None, as_json: bool) -> None:
    """Check that this device computes what it should: calls whose results BUNDLE has, made and compared.

    Needs no sources. Each output may be off by the bound that the build stored; what is printed is the largest error.
    Exit status: 0 all cases pass; 1 one fails, or the bundle is damaged; 2 wrong usage, no device that fits, or a
    bundle without golden vectors.

    \b
    Examples:
      aotbundle selftest dist/attention-gfx942
      aotbundle selftest dist/rows-gfx942 --device emulator --op softmax --json
    """
    import json

    from aot_runtime.call.selftest import head_text, make_report, prepare, report_data, result_text, run_case
    from aot_runtime.errors import ArchMismatchError, ArgumentError, DeviceError, NoVectorsError
    from aot_runtime.opening import open_bundle

    try:
        opened = open_bundle(bundle, device)
        cases = prepare(opened, op)
    except (ArchMismatchError, ArgumentError, DeviceError, NoVectorsError) as error:
        raise _Unusable(str(error)) from error
    if not as_json:
        click.echo(head_text(opened))
    results = []
    for number, prepared in enumerate(cases, 1):
        with _status(f"{number}/{len(cases)} {prepared.case.op} {prepared.case.name}"):
            results.append(run_case(opened, prepared))
        if not as_json:
            click.echo(result_text(results[-1]))
    report = make_report(opened, results)
    failed = sum(not result.passed for result in results)
    passed = f"all {len(results)} cases pass" if not failed else f"{failed} of {len(results)} cases FAILED"
    click.echo(json.dumps(report_data(report), indent=1) if as_json else passed)
    sys.exit(EXIT_FAILED if failed else 0)


@contextmanager
def _status(text: str) -> Iterator[None]:
    """Show what is going on at the terminal's last line while it goes on; nothing in a log."""
    shown = sys.stderr.isatty()
    if shown:
        click.echo(text, err=True, nl=False)
    try:
        yield
    finally:
        if shown:
            click.echo("\r\x1b[K", err=True, nl=False)


@main.command()
@_call_options
@click.option("--num-cus", type=click.IntRange(1), help="Compute units of the device, for ops that depend on them.")
@click.option("--source", is_flag=True, help="Print the generated planner as well.")
def explain(bundle: Path, op: str, call: CallSpec, num_cus: int | None, source: bool) -> None:
    """Say which variants a call of OP gets, and why, or why it is refused. Needs no device.

    \b
    Examples:
      aotbundle explain dist/rows-gfx942 softmax --dim rows=8 --dim cols=1000 --dtype T=float16
      aotbundle explain dist/rows-gfx942 softmax --shape x=8,1000 --dtype T=float16 --strides x=1024,1
      aotbundle explain dist/attention-gfx942 flash_attention --shape q=1,8,128,64 --shape k=1,8,128,64 \\
          --shape v=1,8,128,64 --dtype T=float16 --unaligned q causal=true scale=0.125
    """
    from aot_runtime.bundle.reading import read_index
    from aot_runtime.call.callspec import plan_call
    from aot_runtime.call.explain import explain_decision
    from aot_runtime.call.planner import op_planner

    index = read_index(bundle)
    planner = op_planner(index, op)
    click.echo(explain_decision(planner, plan_call(index, planner, call, num_cus), index.blobs))
    if source:
        click.echo(f"\n{planner.source}")


@main.command()
@_call_options
@click.option(
    "--content",
    multiple=True,
    type=_Pair(str, "TENSOR=NUMBER|FILE.npy"),
    help="What a tensor holds. [default: N(0, 1) if it is of floats, else 0]",
)
@click.option("--by-instruction", is_flag=True, help="A line for each instruction as well.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def profile(
    bundle: Path, op: str, call: CallSpec, content: tuple[tuple[str, str], ...], by_instruction: bool, as_json: bool
) -> None:
    """Run a call of OP on the emulator and count what its kernels do; needs no GPU.

    Instructions by class and by loop, matrix flops, bytes and cache lines of loads and stores, LDS bank conflicts, and
    the lower bounds of time that follow from the arch's peak rates. Tensors are made up, unless --content says what
    they hold: counts of most kernels depend on shapes only.

    \b
    Examples:
      aotbundle profile dist/rows-gfx942 softmax --shape x=64,1024 --dtype T=float16
      aotbundle profile dist/attention-gfx942 flash_attention --dim batch=1 --dim heads=4 --dim heads_kv=4 \\
          --dim seqlen_q=256 --dim seqlen_k=256 --dim head_dim=64 --dim head_dim_v=64 \\
          --dtype T=float16 --set causal=true
      aotbundle profile dist/rows-gfx942 softmax --shape x=8,1000 --dtype T=float32 --by-instruction
      aotbundle profile dist/rows-gfx942 softmax --shape x=8,1000 --dtype T=float32 --content x=x.npy --json
    """
    import json

    from aot_emulator import EmulatorDriver
    from aot_emulator.profile.profile_call import profile_call
    from aot_emulator.profile.profile_report import profile_data, profile_text

    found = profile_call(EmulatorDriver(), bundle, op, call, dict(content), _Progress().show)
    if as_json:
        click.echo(json.dumps(profile_data(found, by_instruction), indent=1))
    else:
        click.echo(profile_text(found, by_instruction))


@main.group()
def bench() -> None:
    """Measure this device.

    \b
    Examples:
      aotbundle bench memory dist/memory-gfx942
    """


class _Size(click.ParamType):
    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from .bandwidth import parse_size

        try:
            return parse_size(str(value))
        except ValueError:
            self.fail(f"'{value}' is no size; write 1GiB, 64MiB, 100KiB or a number of bytes", param, ctx)


@bench.command()
@click.argument("bundle", metavar="BUNDLE|FOLDER", type=_PATHS)
@click.option("--device", help="hip, hip:1, cuda, emulator, …  [default: the first GPU of the bundle's kind]")
@click.option("--size", "sizes", multiple=True, type=_Size(), help="Bytes of an array.  [default: 64MiB to 2GiB]")
@click.option("--rounds", type=click.IntRange(1), default=11, show_default=True, help="Of which medians are shown.")
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def memory(bundle: Path, device: str | None, sizes: tuple[int, ...], rounds: int, as_json: bool) -> None:
    """Measure how fast a device copies, reads and writes its memory, with the bundle of manifests/memory.yaml.

    What other kernels reach can be held against it. Arrays that fit in the last cache are faster than memory.

    \b
    Examples:
      aotbundle bench memory dist/memory-gfx942
      aotbundle bench memory dist/memory-sm_90 --size 1GiB --size 4GiB --json
    """
    import json

    from aot_runtime.errors import ArchMismatchError, DeviceError
    from aot_runtime.opening import open_bundle

    from .bandwidth import bandwidth_data, bandwidth_text, default_sizes, measure

    try:
        opened = open_bundle(bundle, device)
    except (ArchMismatchError, DeviceError) as error:
        raise _Unusable(str(error)) from error
    with _status("measuring"):
        measured = measure(opened, sizes or default_sizes(opened), rounds)
    click.echo(json.dumps(bandwidth_data(measured), indent=1) if as_json else bandwidth_text(measured))


@main.command()
@click.argument("bundle", required=False, type=_PATHS)
def doctor(bundle: Path | None) -> None:
    """Check this machine: packages, drivers, devices and settings, and whether BUNDLE fits a device here.

    \b
    Examples:
      aotbundle doctor
      aotbundle doctor dist/attention-gfx942
    """
    from .doctor import diagnose

    found = diagnose(bundle)
    click.echo(found.text)
    sys.exit(0 if found.healthy else EXIT_FAILED)
