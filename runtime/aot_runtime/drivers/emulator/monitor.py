"""What watches a launch as it is executed: the sanitizer and the counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .decode import Instruction
from .wavefronts import Array, Wavefronts

Action = Literal["load", "store", "atomic"]


@dataclass(frozen=True, eq=False)
class Touch:
    """What an instruction reaches for, before it does and before its bounds are checked.

    Attributes:
        space: `scalar` is global memory by way of the scalar unit.
        addresses: [wavefronts, lanes], of scalar loads [wavefronts]. uint64 in global memory; int64 from the start of
            the workgroup's LDS or of the lane's scratch.
        nbytes: of a lane's access.
        lanes: those that take part, bool of addresses' shape; None: all.
    """

    space: Literal["global", "scalar", "lds", "scratch"]
    action: Action
    addresses: Array
    nbytes: int
    lanes: Array | None


class Monitor:
    """Sees a batch's launch, and does nothing. An `EmulationError` that a method raises stops the launch."""

    def instruction(self, waves: Wavefronts, instruction: Instruction) -> None:
        """`instruction` is about to be executed."""

    def access(self, waves: Wavefronts, touch: Touch) -> None:
        """The instruction reaches for memory."""


def report(monitors: tuple[Monitor, ...], waves: Wavefronts, *touch: Any) -> None:
    """Tell monitors of an access; touch: the fields of a `Touch`."""
    if monitors:
        seen = Touch(*touch)
        for monitor in monitors:
            monitor.access(waves, seen)
