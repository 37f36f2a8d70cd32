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
    help="A requirement on each variant; may be repeated.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def isa(bundle: Path, op: str | None, requirements: tuple[str, ...], as_json: bool) -> None:
    """Analyse the code of a bundle's variants, or check it against requirements. Needs no device.

    The analysis covers hot loops: the innermost loops with matrix instructions, else the innermost loops that load from
    memory, else all code. LOOP is the number of instructions of the longest loop, LOADS the narrowest load from memory
    in bits per lane, MATRIX the kinds of matrix instructions. Supports the architectures of the emulator, and needs the
    extra `emulator`.

    A requirement is an expression over spills, vgpr_spills, sgpr_spills, vgprs, agprs, sgprs, scratch_bytes, lds_bytes,
    waves_per_simd, code_bytes, load_bits, matrix, loop_instructions, op, kernel, config, aligned and axes. With
    requirements, only variants that fail one are shown, and the exit status is 1 if there are any. Ops without an axis
    that a requirement reads are exempt. `aotbuild --require` makes the same check before it writes a bundle.

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
