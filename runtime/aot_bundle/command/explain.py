"""`aotbundle explain`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from aot_bundle.terminal import write, write_json

from .call_options import call_options

if TYPE_CHECKING:
    from aot_bundle.callspec import CallSpec


@click.command()
@call_options
@click.option("--num-cus", type=click.IntRange(1), help="Compute units of the device. [default: a whole GPU's]")
@click.option("--num-xcds", type=click.IntRange(1), help="XCDs of the device. [default: a whole GPU's]")
@click.option("--json", "as_json", is_flag=True, help="Print the launches as JSON.")
def explain(
    bundle: Path, op: str, call: CallSpec, num_cus: int | None, num_xcds: int | None, as_json: bool
) -> None:  # fmt: skip
    """Explain which variants a call of OP gets and why, or why it is invalid. Needs no device.

    \b
    Examples:
      aotbundle explain dist/rows-gfx942 softmax --dim rows=8 --dim cols=1000 --dtype T=float16
      aotbundle explain dist/rows-gfx942 softmax --shape x=8,1000 --dtype T=float16 --strides x=1024,1 --num-cus 38
      aotbundle explain dist/attention-gfx942 flash_attention --shape q=1,8,128,64 --shape k=1,8,128,64 \\
          --shape v=1,8,128,64 --dtype T=float16 --unaligned q causal=true scale=0.125
    """
    from aot_bundle.callspec import plan_call
    from aot_runtime.bundle.reading import read_index
    from aot_runtime.call.explanation import decision_data, decision_lines
    from aot_runtime.call.planner import op_planner

    index = read_index(bundle)
    planner = op_planner(index, op, bundle)
    decision = plan_call(index, planner, call, num_cus, num_xcds)
    if as_json:
        write_json(decision_data(planner, decision, index.blobs))
    else:
        write(*decision_lines(planner, decision, index.blobs))
