"""Options of launches.

**Order.** `Order.LOCKSTEP` starts all wavefronts of a batch together and always steps those at the lowest pc.
Wavefronts that leave a loop early thus wait for the others. `Order.SERIAL` runs the first wavefront of each
workgroup up to the next barrier or the end, then the second, and so on. It exposes missing barriers that lockstep
hides. Both orders give the same result for a kernel without races.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from aot_emulator.state.numerics import Numerics
from aot_runtime.errors import DeviceError

STRICT_VARIABLE = "AOTBUILD_EMULATOR_STRICT"
IGNORE_VARIABLE = "AOTBUILD_EMULATOR_IGNORE"
TIME_LIMIT_VARIABLE = "AOTBUILD_EMULATOR_TIME_LIMIT"

FAULTS = ("bounds", "alignment", "uninitialised", "half", "wait", "hazard", "race", "barrier")
"""Kinds of faults that strict mode detects."""


class Order(Enum):
    """Scheduling order of wavefronts; see the module."""

    LOCKSTEP = "lockstep"
    SERIAL = "serial"


@dataclass(frozen=True)
class Options:
    """Options of launches.

    Attributes:
        order: scheduling order of wavefronts.
        batch_wavefronts: maximum number of wavefronts per batch; a batch has at least one workgroup.
        budget: average number of instructions per wavefront after which a launch is considered endless.
        launch_budget: total number of instructions that a launch may execute; None: unlimited.
        preload: start at the entry point for hardware that preloads kernel arguments.
        time_limit_s: maximum duration of a launch in seconds; None: unlimited.
        strict: detect faults (`sanitizer`). Memory allocated while the driver was not strict counts as initialised.
        ignored: kinds of faults from `FAULTS` that strict mode ignores.
        profile: also count memory accesses, in `Statistics.traffic`.
        numerics: behaviour of results that AMD does not document, or on which sources disagree.
        lds_is_bounded: raise an error for an access past a workgroup's LDS. Otherwise such loads return 0 and stores
            are dropped, as on hardware (rocBLAS clears registers this way); `strict` still reports a bounds fault.
        progress: called after each batch with the numbers of completed and total workgroups.
    """

    order: Order = Order.LOCKSTEP
    batch_wavefronts: int = 256
    budget: int = 50_000_000
    launch_budget: int | None = None
    preload: bool = True
    time_limit_s: float | None = None
    strict: bool = False
    ignored: frozenset[str] = frozenset()
    profile: bool = False
    numerics: Numerics = field(default_factory=Numerics)
    lds_is_bounded: bool = True
    progress: Callable[[int, int], None] | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.ignored) - set(FAULTS))
        if unknown:
            raise ValueError(f"unknown kinds of faults: {', '.join(unknown)}; known: {', '.join(FAULTS)}")


def options_of_environment() -> Options:
    """Return the options set by environment variables. Raises `DeviceError` for an invalid value."""
    strict = os.environ.get(STRICT_VARIABLE, "") not in ("", "0")
    ignored = frozenset(filter(None, os.environ.get(IGNORE_VARIABLE, "").replace(" ", "").split(",")))
    limit = os.environ.get(TIME_LIMIT_VARIABLE) or None
    try:
        return Options(strict=strict, ignored=ignored, time_limit_s=None if limit is None else float(limit))
    except ValueError as error:
        raise DeviceError(f"{IGNORE_VARIABLE} or {TIME_LIMIT_VARIABLE}: {error}") from None
