"""Model the time of a call of an op, for `aotbundle profile --time`. Nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from aot_bundle.callspec import CallSpec
from aot_bundle.profile.profile_call import make_call, open_for
from aot_emulator.isa.archs import ARCHS, Arch
from aot_emulator.machine.launch_options import Options
from aot_emulator.machine.launch_records import Launch
from aot_emulator.profile.counters import Statistics
from aot_emulator.state.device_memory import Memory
from aot_emulator.timing.constants import machine_of
from aot_emulator.timing.sampling import Sampled, SamplingRunner
from aot_runtime.call.choosing import LaunchDecision
from aot_runtime.device.drivers.protocol import Driver
from aot_runtime.opening import Bundle


class SteeredDriver(Driver, Protocol):
    """A driver whose launch runner can be replaced."""

    def run_by(self, runner: Callable[[Launch, Memory, Options], Statistics]) -> AbstractContextManager[None]:
        """Run launches in the `with` block by `runner`."""


@dataclass(frozen=True)
class TimedLaunch:
    """A launch with its modelled time."""

    decision: LaunchDecision
    kernel: str
    config: str
    settings: Mapping[str, Any]
    sampled: Sampled = field(repr=False)


@dataclass(frozen=True)
class TimedCall:
    """Modelled time of a call, with its launches in order."""

    bundle: str
    id: str
    op: str
    arch: Arch
    launches: tuple[TimedLaunch, ...]

    @property
    def seconds(self) -> float:
        return sum(launch.sampled.time.seconds for launch in self.launches)


def time_call(
    driver: SteeredDriver, folder: Path, op_name: str, call: CallSpec, content: Mapping[str, str] | None = None
) -> TimedCall:
    """Model the time of a call of a bundle's op. Arguments and errors are those of `profile_call`.

    Raises:
        DeviceError: the time model does not support the bundle's architecture.
        UnsupportedInstructionError: the time model has no cost for an instruction.
    """
    bundle = open_for(driver, folder, op_name)
    machine_of(bundle.index.target.arch)  # raises for an unsupported architecture before anything is run
    return time_on(driver, bundle, op_name, call, content)


def time_on(
    driver: SteeredDriver, bundle: Bundle, op_name: str, call: CallSpec, content: Mapping[str, str] | None = None
) -> TimedCall:
    """Model the time of a call like `time_call`, for a bundle that is open on `driver`."""
    made = make_call(bundle, op_name, call, content or {})
    runner = SamplingRunner()
    with driver.run_by(runner):
        made.run()
    launches = []
    for launch, sampled in zip(made.launched, runner.found, strict=True):
        declared = made.planner.op.launches[launch.index]
        config = declared.configs[launch.variant.config]
        name, settings = config.name or str(launch.variant.config), {**config.values, **config.options}
        launches.append(TimedLaunch(launch, declared.kernel, name, settings, sampled))
    index = bundle.index
    return TimedCall(index.name, index.id, op_name, ARCHS[index.target.arch], tuple(launches))
