"""Launches with the monitors that their options enable: the sanitizer and the memory traffic counters."""

from __future__ import annotations

from aot_emulator.machine.execution import Turns, execute_in_turns, finish
from aot_emulator.machine.launch_options import Options
from aot_emulator.machine.launch_records import Launch
from aot_emulator.profile.counters import Statistics
from aot_emulator.profile.traffic import Traffic
from aot_emulator.sanitizer.strict_mode import Sanitizer
from aot_emulator.state.device_memory import Memory


def run_launch(launch: Launch, memory: Memory, options: Options) -> Statistics:
    """Run a launch to completion. Raises `EmulationError`."""
    return finish(run_launch_in_turns(launch, memory, options))


def run_launch_in_turns(launch: Launch, memory: Memory, options: Options) -> Turns[Statistics]:
    """Run a launch like `run_launch`, as a generator that yields so that other launches can make progress."""
    if not options.strict:
        memory.stop_tracking()  # the stores of this launch are not tracked
    sanitizer = Sanitizer(launch, options.ignored) if options.strict else None
    traffic = Traffic(launch.kernel.program.arch.peaks) if options.profile else None
    monitors = [monitor for monitor in (sanitizer, traffic) if monitor is not None]
    execution = yield from execute_in_turns(launch, memory, options, monitors)
    return Statistics.of(execution, traffic)
