"""Reports of modelled times: text of at most 100 columns, and JSON data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from aot_bundle.text_table import table_lines
from aot_emulator.timing.compute_unit import REASONS
from aot_emulator.timing.sampling import Sampled
from aot_runtime.formats import axis_values_text

from .time_call import TimedCall, TimedLaunch

WIDTH = 100
SHOWN = 12
"""Number of instructions listed."""
_CAVEAT = (
    "Times are MODELLED, not measured: sampled workgroups, executed in emulation, replayed through a",
    "model of the compute unit and of the memory behind it. docs/timing.md says what to trust it for.",
)
_SHARES = {
    "matrix": "matrix pipes: issue, busy, results",
    "vector": "vector pipes: issue, busy",
    "lds": "LDS: issue, queue, data",
    "memory": "memory: issue, bandwidth",
    "latency": "latency of loads",
    "scalar": "scalar instructions, branches",
    "barrier": "barriers",
    "sleep": "sleep",
    "occupancy": "compute units without work",
    "launch": "launch",
}


def time_lines(timed: TimedCall) -> list[str]:
    """Return the report as lines: time, rate, breakdown and longest-waiting instructions of each launch."""
    lines = [f"{timed.op} of bundle {timed.bundle} on {timed.arch.title} ({timed.arch.name})", *_CAVEAT]
    for launch in timed.launches:
        lines += ["", *_launch(launch)]
    if not timed.launches:
        lines.append("nothing to do: no kernel is launched")
    elif len(timed.launches) > 1:
        lines += ["", f"all {len(timed.launches)} launches, one after another: {timed.seconds * 1e6:,.1f} us, modelled"]
    return lines


def _launch(launch: TimedLaunch) -> Iterator[str]:
    sampled, time = launch.sampled, launch.sampled.time
    settings = ", ".join(f"{name}={value}" for name, value in launch.settings.items())
    yield f"launch {launch.decision.index}: {launch.decision.variant.symbol}"
    yield _cut(f"  {axis_values_text(launch.decision.variant.axis_values)}")
    yield _cut(f"  config {launch.config}{': ' if settings else ''}{settings}")
    yield f"  {_how_sampled(sampled)}"
    yield (
        f"  {time.resident} resident on a compute unit, {time.rounds:.3g} rounds on {sampled.plan.num_cus}; "
        f"clock {time.clock_ghz:.2f} GHz"
    )
    yield f"  {time.seconds * 1e6:,.1f} us, modelled: {_rate(sampled)}"
    rows: list[Sequence[str]] = [("THE TIME GOES TO", "SHARE"), *(
        (_SHARES[name], f"{share:.1%}") for name, share in sorted(time.shares.items(), key=lambda item: -item[1])
        if share >= 0.0005
    )]  # fmt: skip
    yield from (f"    {line}" for line in table_lines(rows, (1,)))
    yield "  busy: " + ", ".join(f"{name.replace('lds', 'LDS')} {part:.1%}" for name, part in time.used.items())
    rows = _waiting_rows(sampled)
    if len(rows) > 1:
        yield "  instructions that wait longest"
        yield from (_cut(f"    {line}") for line in table_lines(rows, (0, 1)))


def _how_sampled(sampled: Sampled) -> str:
    run, total = len(sampled.trace.workgroups), sampled.workgroups
    if run == total:
        return f"all {total:,} workgroups were run" if total > 1 else "the one workgroup was run"
    if run > 1:
        return f"{run} of {total:,} workgroups were run; each represents its neighbours"
    alike = sampled.trace.statistics.workgroups
    return f"1 of {total:,} workgroups represents all: the {alike} that were run are alike"


def _rate(sampled: Sampled) -> str:
    seconds = sampled.time.seconds
    memory = f"{sampled.bytes / seconds / 1e9:,.0f} GB/s of device memory"
    if not sampled.flops:
        return memory
    return f"{sampled.flops / seconds / 1e12:,.1f} TFLOP/s of matrix instructions, {memory}"


def _waiting(sampled: Sampled) -> list[int]:
    """Return the indices of the instructions with the longest waits, longest first."""
    by_line = sampled.time.waited.sum(axis=1)
    return [int(at) for at in np.argsort(-by_line, kind="stable")[:SHOWN] if by_line[at] > 0]


def _waiting_rows(sampled: Sampled) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("SHARE", "PC", "FOR", "INSTRUCTION", "SOURCE")]
    for at in _waiting(sampled):
        waited, line = sampled.time.waited[at], sampled.trace.lines[at]
        source = line.source.rsplit("/", 1)[-1]
        reason = REASONS[int(waited.argmax())].replace("lds", "LDS")
        rows.append((f"{waited.sum() / sampled.time.spent:.1%}", f"{line.pc:#x}", reason, line.text, source))
    return rows


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def time_data(timed: TimedCall) -> dict[str, Any]:
    """Return the modelled times as JSON-compatible data, in seconds. `measured` is always false."""
    return {
        "bundle": timed.bundle,
        "id": timed.id,
        "op": timed.op,
        "arch": timed.arch.name,
        "product": timed.arch.title,
        "measured": False,
        "seconds": timed.seconds,
        "launches": [_launch_data(launch) for launch in timed.launches],
    }


def _launch_data(launch: TimedLaunch) -> dict[str, Any]:
    sampled, time = launch.sampled, launch.sampled.time
    return {
        "launch": launch.decision.index,
        "kernel": launch.decision.variant.symbol,
        "point": launch.decision.variant.axis_values,
        "config": launch.config,
        "settings": dict(launch.settings),
        "grid": launch.decision.grid,
        "workgroups": sampled.workgroups,
        "sampled": list(sampled.trace.workgroups),
        "seconds": time.seconds,
        "clock": time.clock_ghz * 1e9,
        "resident": time.resident,
        "rounds": time.rounds,
        "flops": sampled.flops,
        "memory_bytes": sampled.bytes,
        "shares": time.shares,
        "busy": time.used,
        "waits": [
            {
                "pc": sampled.trace.lines[at].pc,
                "text": sampled.trace.lines[at].text,
                "source": sampled.trace.lines[at].source,
                "shares": {
                    name: float(cycles / time.spent)
                    for name, cycles in zip(REASONS, time.waited[at], strict=True)
                    if cycles
                },
            }
            for at in _waiting(sampled)
        ],
    }
