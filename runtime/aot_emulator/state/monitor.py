"""What watches a launch as it is executed: the sanitizer and the counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aot_emulator.isa.decoding import Instruction

from .wavefronts import Array, Wavefronts

if TYPE_CHECKING:
    from aot_emulator.machine.scheduler import Scheduler

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
        values: of a store, what is written, in the form that `memory.gather` gives.
    """

    space: Literal["global", "scalar", "lds", "scratch"]
    action: Action
    addresses: Array
    nbytes: int
    lanes: Array | None
    values: Array | None = None


class Monitor:
    """Sees a batch's launch, and does nothing. An `EmulationError` that a method raises stops the launch."""

    def begin(self, scheduler: Scheduler) -> None:
        """A batch of the launch starts."""

    def instruction(self, waves: Wavefronts, instruction: Instruction) -> None:
        """`instruction` is about to be executed."""

    def access(self, waves: Wavefronts, touch: Touch) -> None:
        """The instruction reaches for memory."""

    def divide(self, waves: Wavefronts, part: Wavefronts) -> None:
        """Some wavefronts of a group go their own way from now on."""

    def join(self, first: Wavefronts, second: Wavefronts, joined: Wavefronts) -> None:
        """Two groups that stand at the same pc go on as one."""

    def barrier(self, groups: list[Wavefronts]) -> None:
        """These wavefronts, all that live of their workgroups, leave the barrier where they wait."""


def report(monitors: tuple[Monitor, ...], waves: Wavefronts, *touch: Any) -> None:
    """Tell monitors of an access; touch: the fields of a `Touch`."""
    if monitors:
        seen = Touch(*touch)
        for monitor in monitors:
            monitor.access(waves, seen)
