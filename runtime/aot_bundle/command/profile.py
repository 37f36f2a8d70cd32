"""`aotbundle profile`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aot_bundle.terminal import Console, write, write_json, write_lines, write_status

from .call_options import call_options
from .failures import Unusable
from .output import write_whole
from .parameters import Pair

if TYPE_CHECKING:
    from aot_bundle.callspec import CallSpec


class _Progress:
    """Progress of a launch, on one updated line of a terminal, or as occasional lines elsewhere."""

    _PAUSE_S = 5.0

    def __init__(self) -> None:
        self._terminal, self._last = Console(err=True).is_terminal, time.monotonic()

    def show(self, kernel: str, done: int, total: int) -> None:
        text = f"{kernel}: {done} of {total} workgroups"
        if self._terminal:
            write_status(text if done < total else "")
        elif time.monotonic() - self._last > self._PAUSE_S:
            self._last = time.monotonic()
            write(text, err=True)


@click.command()
@call_options
@click.option(
    "--content",
    multiple=True,
    type=Pair(str, "TENSOR=NUMBER|LOW..HIGH|FILE.npy"),
    help="A tensor's values; LOW..HIGH: random integers. [default: N(0, 1) for floats, else 0]",
)
@click.option("--by-instruction", is_flag=True, help="Also list each instruction.")
@click.option("--time", "timed", is_flag=True, help="Model the time of the call instead.")
@click.option(
    "--timeline",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.json",
    help="With --time, write a timeline of one compute unit, for chrome://tracing or Perfetto.",
)
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def profile(
    bundle: Path, op: str, call: CallSpec, content: tuple[tuple[str, str], ...], by_instruction: bool, timed: bool,
    timeline: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Profile a call of OP on the emulator. Needs no GPU.

    Counts instructions by class and loop, matrix flops, bytes and cache lines of loads and stores, and LDS bank
    conflicts. Also gives lower bounds of the time, from the architecture's peak rates. Tensors have arbitrary values
    unless --content is given, as the counts of most kernels depend on shapes only.

    With --time, a few workgroups are run and replayed through a model of the compute unit and of memory. It gives
    modelled microseconds and rates, a breakdown of the time, and the instructions that wait longest (gfx942, gfx950,
    gfx90a; faster with the extra `timing`).

    \b
    Examples:
      aotbundle profile dist/rows-gfx942 softmax --shape x=64,1024 --dtype T=float16
      aotbundle profile dist/attention-gfx942 flash_attention --dim batch=1 --dim heads=4 --dim heads_kv=4 \\
          --dim seqlen_q=256 --dim seqlen_k=256 --dim head_dim=64 --dim head_dim_v=64 \\
          --dtype T=float16 --set causal=true
      aotbundle profile dist/rows-gfx942 softmax --shape x=8,1000 --dtype T=float32 --by-instruction
      aotbundle profile dist/rows-gfx942 softmax --shape x=8,1000 --dtype T=float32 --content x=x.npy --json
      aotbundle profile dist/rows-gfx942 softmax --shape x=4096,1024 --dtype T=float16 --time --timeline timeline.json
    """
    from aot_runtime.errors import DeviceError

    if timed and by_instruction:
        raise click.UsageError("--by-instruction and --time exclude each other")
    if timeline and not timed:
        raise click.UsageError("--timeline needs --time")

    try:
        from aot_emulator import EmulatorDriver
    except DeviceError as error:  # names the missing package
        raise Unusable(*error.lines) from None
    if timed:
        _time(bundle, op, call, dict(content), timeline, as_json)
        return
    from aot_bundle.profile.profile_call import profile_call
    from aot_bundle.profile.profile_report import profile_data, profile_lines

    found = profile_call(EmulatorDriver(), bundle, op, call, dict(content), _Progress().show)
    if as_json:
        write_json(profile_data(found, by_instruction))
    else:
        write_lines(profile_lines(found, by_instruction))


def _time(
    bundle: Path, op: str, call: CallSpec, content: dict[str, str], timeline_file: Path | None, as_json: bool
) -> None:
    import json

    from aot_bundle.profile.time_call import time_call
    from aot_bundle.profile.time_report import time_data, time_lines
    from aot_bundle.profile.timeline import timeline
    from aot_emulator import EmulatorDriver

    found = time_call(EmulatorDriver(), bundle, op, call, content)
    if timeline_file:
        write_whole(timeline_file, json.dumps(timeline(found)))
    if as_json:
        write_json(time_data(found))
    else:
        write_lines(time_lines(found))
