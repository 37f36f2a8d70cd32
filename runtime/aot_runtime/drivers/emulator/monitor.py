"""What watches a launch as it is executed: the sanitizer and the counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from .decode import Instruction
from .memory import Place
from .wavefronts import Array, Wavefronts

Action = Literal["load", "store", "atomic"]
Watch = Callable[[Array], None]
"""Is given the values that were stored in a place, in `gather`'s form. May raise `EmulationError`."""


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
    """Sees a launch, and does nothing. An `EmulationError` that a method raises stops the launch."""

    def begin(self, access: Any, first: int) -> None:
        """A batch begins. access: what it reaches (`transfers.Access`); first: number of its first workgroup."""

    def instruction(self, waves: Wavefronts, instruction: Instruction) -> None:
        """`instruction` is about to be executed."""

    def access(self, waves: Wavefronts, touch: Touch) -> None:
        """The instruction reaches for memory."""

    def reach(self, waves: Wavefronts, touch: Touch, place: Place) -> Watch | None:
        """The access is within bounds, and about to happen in a place; an instruction may have several.

        Of scalar loads, the place's lanes are wavefronts. Returns what wants to see the values that are stored.
        """
        return None

    def derive(self, part: Wavefronts, sources: tuple[Wavefronts, ...]) -> None:
        """`part` takes the place of some or all of the wavefronts of `sources`."""

    def release(self, groups: list[Wavefronts]) -> None:
        """All living wavefronts of these workgroups have come to a barrier, and go on."""

    def end(self, waves: Wavefronts) -> None:
        """`waves` have ended."""


def report(monitors: tuple[Monitor, ...], waves: Wavefronts, *touch: Any) -> Touch | None:
    """Tell monitors of an access; touch: the fields of a `Touch`. Returns it; None if no one is told."""
    if not monitors:
        return None
    seen = Touch(*touch)
    for monitor in monitors:
        monitor.access(waves, seen)
    return seen


def watched(
    monitors: tuple[Monitor, ...], waves: Wavefronts, touch: Touch | None, places: list[Place]
) -> list[Place]:  # fmt: skip
    """Tell monitors where an access goes, if they were told of it; the places, with the watches that they want."""
    if touch is None:
        return places
    found = []
    for place in places:
        wanted = [monitor.reach(waves, touch, place) for monitor in monitors]
        watches = tuple(watch for watch in wanted if watch is not None)
        found.append(replace(place, watches=watches) if watches else place)
    return found
