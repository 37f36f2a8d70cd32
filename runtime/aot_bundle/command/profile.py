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
    """How far a launch is, on a line of the terminal that is written over; plain lines, not often, elsewhere."""

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
    help="What a tensor holds; LOW..HIGH: random whole numbers. [default: N(0, 1) if it is of floats, else 0]",
)
@click.option("--by-instruction", is_flag=True, help="A line for each instruction as well.")
@click.option("--time", "timed", is_flag=True, help="Model the time of the call instead: sampled workgroups, replayed.")
@click.option(
    "--timeline",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.json",
    help="With --time, write what one compute unit does, for chrome://tracing or Perfetto.",
)
@click.option("--json", "as_json", is_flag=True, help="Everything, as JSON.")
def profile(
    bundle: Path, op: str, call: CallSpec, content: tuple[tuple[str, str], ...], by_instruction: bool, timed: bool,
    timeline: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Run a call of OP on the emulator and count what its kernels do; needs no GPU.

    Instructions by class and by loop, matrix flops, bytes and cache lines of loads and stores, LDS bank conflicts, and
    the lower bounds of time that follow from the arch's peak rates. Tensors are made up, unless --content says what
    they hold: counts of most kernels depend on shapes only.

    With --time, a few workgroups are run and replayed through a model of the compute unit and of the memory behind it:
    modelled microseconds and rates, what the time goes to, and the instructions that wait longest (gfx942, gfx950,
    gfx90a; quicker with the extra `timing`).

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
        raise click.UsageError("--by-instruction counts, and --time does not: give one of them")
    if timeline and not timed:
        raise click.UsageError("--timeline needs --time")

    try:
        from aot_emulator import EmulatorDriver
    except DeviceError as error:  # which says what is not installed
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
