"""Timeline of one compute unit in Chrome's Trace Event Format, for chrome://tracing and Perfetto."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from aot_emulator.state.arrays import Array
from aot_emulator.timing import replay as numbers
from aot_emulator.timing.compute_unit import REASONS
from aot_emulator.timing.costs import Unit
from aot_emulator.timing.sampling import Sampled

from .time_call import TimedCall

ITERATIONS = 6
"""Maximum number of identical loop iterations shown."""
LONGEST = 400_000
"""Maximum number of instructions in a timeline, which is truncated there."""


def timeline(timed: TimedCall) -> dict[str, Any]:
    """Return the events of a compute unit: a process for each launch, with a thread for each wavefront.

    Each instruction is shown from issue until its unit is free, preceded by its wait. Only the first of identical loop
    iterations are shown. Times are in microseconds of the modelled clock; each launch starts at 0.
    """
    events: list[dict[str, Any]] = []
    for process, launch in enumerate(timed.launches):
        symbol = launch.decision.variant.symbol
        events.append(_named("process_name", process, 0, f"launch {launch.decision.index}: {symbol}, modelled"))
        events += _launch(process, launch.sampled)
    return {"displayTimeUnit": "ns", "traceEvents": events, "otherData": {"measured": False, "arch": timed.arch.name}}


def _launch(process: int, sampled: Sampled) -> Iterator[dict[str, Any]]:
    sample, resident = sampled.samples[0], sampled.time.resident
    waves = len(sampled.trace.waves[0])
    for wave in range(waves * resident):
        name = f"SIMD {wave % 4}, workgroup {wave // waves}, wavefront {wave % waves}"
        yield _named("thread_name", process, wave, name)
    total = sum(len(wave.unfolded(ITERATIONS)) for wave in sampled.trace.waves[0]) * resident
    rows = np.zeros((min(total, LONGEST), numbers.EVENT_COLUMNS))
    sample.replayed(sampled.time.conditions, resident, ITERATIONS, rows)
    for row in rows:
        yield from _shown(process, sampled, row)


def _shown(process: int, sampled: Sampled, row: Array) -> Iterator[dict[str, Any]]:
    wave, index, ready, issued, done = (float(row[column]) for column in range(numbers.EVENT_REASON))
    line, cost = sampled.trace.lines[int(index)], sampled.trace.costs[int(index)]
    microsecond = sampled.time.clock_ghz * 1e3
    place = {"pid": process, "tid": int(wave)}
    if issued > ready:
        reason = REASONS[int(row[numbers.EVENT_REASON])].replace("lds", "LDS")
        yield {"name": f"waits: {reason}", "cat": "wait", "ph": "X", "ts": ready / microsecond,
               "dur": (issued - ready) / microsecond, **place}  # fmt: skip
    # Clip matrix instructions, whose execution in the pipe overlaps the wavefront's next instruction.
    until = min(done, issued + 4) if cost.unit is Unit.MATRIX else done
    yield {"name": line.mnemonic, "cat": cost.unit.name.lower(), "ph": "X", "ts": issued / microsecond,
           "dur": (until - issued) / microsecond, **place, "args": {"pc": hex(line.pc), "text": line.text}}  # fmt: skip


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
