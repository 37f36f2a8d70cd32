"""How launches are run.

**Order.** `Order.LOCKSTEP` starts all wavefronts of a batch together and always steps those at the lowest pc, which
lets the ones behind catch up: after a loop that some leave early they all go on together again. `Order.SERIAL` lets the
first wavefront of each workgroup go as far as the next barrier or the end, then the second, and so on: a missing
barrier that lockstep hides shows. Both give the same result for a kernel without races.
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
"""The kinds of faults that strict mode finds."""


class Order(Enum):
    """In which order wavefronts are run; see the module."""

    LOCKSTEP = "lockstep"
    SERIAL = "serial"


@dataclass(frozen=True)
class Options:
    """How launches are run.

    Attributes:
        order: of the wavefronts.
        batch_wavefronts: wavefronts at a time, at least one workgroup.
        budget: instructions that one wavefront may execute on average, before a launch is taken for endless.
        launch_budget: instructions that all wavefronts of a launch may execute together; None: no such limit.
        preload: start where hardware that preloads kernel arguments does.
        time_limit_s: seconds that a launch may take; None: no such limit.
        strict: watch for faults (`sanitizer`). Memory that was allocated while the driver was not strict counts as
            written.
        ignored: kinds of faults, of `FAULTS`, that strict mode passes over.
        profile: count accesses of memory too, in `Statistics.traffic`.
        numerics: what is chosen about results where AMD does not document them, or sources disagree.
        lds_is_bounded: an access past a workgroup's LDS is an error. Else it is as on hardware, where loads give 0 and
            nothing is stored; `strict` takes it for a fault of bounds all the same. AMD's rocBLAS zeroes registers so.
        progress: called after each batch with the workgroups that are done, and all of the launch.
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
            raise ValueError(f"{', '.join(unknown)}: no kind of fault; known: {', '.join(FAULTS)}")


def options_of_environment() -> Options:
    """What environment variables ask for. Raises `DeviceError` for a value that has no meaning."""
    strict = os.environ.get(STRICT_VARIABLE, "") not in ("", "0")
    ignored = frozenset(filter(None, os.environ.get(IGNORE_VARIABLE, "").replace(" ", "").split(",")))
    limit = os.environ.get(TIME_LIMIT_VARIABLE) or None
    try:
        return Options(strict=strict, ignored=ignored, time_limit_s=None if limit is None else float(limit))
    except ValueError as error:
        raise DeviceError(f"{IGNORE_VARIABLE} or {TIME_LIMIT_VARIABLE}: {error}") from None
