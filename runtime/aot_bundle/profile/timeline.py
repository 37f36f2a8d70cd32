"""What one compute unit does, as a file that chrome://tracing and Perfetto open (the Trace Event Format of Chrome)."""

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
"""That are shown of iterations that are alike."""
LONGEST = 400_000
"""Instructions that a timeline has at most; it ends there."""


def timeline(timed: TimedCall) -> dict[str, Any]:
    """The events of a compute unit in each launch: a process for each, in it a thread for each wavefront.

    Instructions are shown from their issue to the end of what they occupy, and before them what they waited for. Of
    iterations that are alike there are the first. Times are in microseconds of the modelled clock, from the start of
    the compute unit's first workgroup; the launches begin at 0 each.
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
    # What goes on in a pipe after the wavefront has issued would overlap its next instruction.
    until = min(done, issued + 4) if cost.unit is Unit.MATRIX else done
    yield {"name": line.mnemonic, "cat": cost.unit.name.lower(), "ph": "X", "ts": issued / microsecond,
           "dur": (until - issued) / microsecond, **place, "args": {"pc": hex(line.pc), "text": line.text}}  # fmt: skip


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
