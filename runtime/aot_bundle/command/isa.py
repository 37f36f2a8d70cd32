"""`aotbundle isa`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from aot_bundle.terminal import write_json, write_lines

from .failures import EXIT_FAILED, Unusable
from .parameters import BUNDLE, OpName


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.option("--op", type=OpName(), metavar="OP", help="Only the variants of this op.")
@click.option(
    "--require", "requirements", metavar="EXPRESSION", multiple=True,
    help="What each variant has to meet; may be repeated.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def isa(bundle: Path, op: str | None, requirements: tuple[str, ...], as_json: bool) -> None:
    """Show what the code of a bundle's variants consists of, or hold it to requirements. Needs no device.

    It is about hot loops: the innermost ones of those with matrix instructions, or where there are none of those that
    load from memory; of other kernels about all code. LOOP has the instructions of the longest, LOADS the least bits
    that a lane loads from memory at a time, MATRIX the kinds of matrix instructions. Code is read for the architectures
    that the emulator knows, with the extra `emulator`.

    A requirement is an expression over spills, vgpr_spills, sgpr_spills, vgprs, agprs, sgprs, scratch_bytes, lds_bytes,
    waves_per_simd, code_bytes, load_bits, matrix, loop_instructions, op, kernel, config, aligned and axes. With
    requirements, only the variants that do not meet one are shown, and the exit status is 1 where there are any. An op
    without an axis that a requirement reads is not held to it. `aotbuild --require` has the same before it writes.

    \b
    Examples:
      aotbundle isa dist/attention-gfx942 --op flash_attention
      aotbundle isa dist/attention-gfx942 --require 'vgpr_spills == 0 or not aligned'
      aotbundle isa dist/memory-gfx942 --require 'load_bits >= 32 and waves_per_simd >= 2' --json
    """
    from aot_bundle.text_table import terminal_width
    from aot_runtime.bundle.reading import read_index
    from aot_runtime.errors import DeviceError, ExpressionError

    from .code_tables import bundle_code, code_data, code_lines, code_rows, unmet_data
    from .variants import only

    index = only(read_index(bundle), op)
    code = bundle_code(bundle, index)
    try:
        if not requirements:
            rows = code_rows(index, code)
            if as_json:
                write_json(code_data(rows))
            else:
                write_lines(code_lines(index, rows, terminal_width()))
            return
        from aot_bundle.requirements import parse_requirements, unmet_lines, unmet_requirements

        unmet = list(unmet_requirements(index, parse_requirements(requirements, index.ops), code))
    except (DeviceError, ExpressionError) as error:
        raise Unusable(*error.lines) from None
    if as_json:
        write_json(unmet_data(index, unmet))
    else:
        write_lines(unmet_lines(index, unmet))
    sys.exit(EXIT_FAILED if unmet else 0)
