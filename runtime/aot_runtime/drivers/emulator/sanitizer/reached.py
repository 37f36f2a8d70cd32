"""An access in one place, lane by lane, and how errors speak of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from aot_runtime.errors import SanitizedAccessError

from ..memory import Allocation, Place
from ..monitor import Touch
from ..wavefronts import Array, Wavefronts

AccessError = TypeVar("AccessError", bound=SanitizedAccessError)


@dataclass(frozen=True, eq=False)
class Reached:
    """What the lanes of some wavefronts reach in one allocation.

    Attributes:
        numbers: uint32 [wavefronts], of each wavefront in the launch.
        own_bytes: of a workgroup's LDS or a lane's scratch.
    """

    waves: Wavefronts
    touch: Touch
    place: Place
    numbers: Array
    own_bytes: int

    @property
    def allocation(self) -> Allocation:
        return self.place.allocation

    @property
    def nbytes(self) -> int:
        return self.touch.nbytes

    @property
    def is_lds(self) -> bool:
        return self.touch.space == "lds"

    @cached_property
    def offsets(self) -> Array:
        """int64 [accesses], into the allocation."""
        return self.place.offsets.ravel()

    @cached_property
    def offset_bits(self) -> int:
        """The bits that any offset has."""
        return int(np.bitwise_or.reduce(self.offsets))

    @property
    def low_bits(self) -> int:
        """The bits that any offset, or the size, has."""
        return self.offset_bits | self.nbytes

    @cached_property
    def wavefronts(self) -> Array:
        """uint32 [accesses], the number of each one's wavefront in the launch."""
        lanes = self.place.lanes
        if self.touch.space == "scalar":
            return self.numbers if lanes is None else self.numbers[lanes]
        return np.repeat(self.numbers, self.waves.lanes if lanes is None else np.count_nonzero(lanes, axis=1))

    def error(self, kind: type[AccessError], index: int, what: str) -> AccessError:
        """An error of one of the accesses; `what` says what is wrong with it."""
        offset = int(self.offsets[index])
        address, whole = self._where(offset)
        error = kind(f"{what}: {self.nbytes} bytes at {address:#x}, {whole}", address, self.nbytes)
        error.member, error.lane = self._member(index)
        return error

    def _where(self, offset: int) -> tuple[int, str]:
        """(address, the allocation in words)."""
        found = self.allocation
        if self.touch.space in ("global", "scalar"):
            place = f"offset {offset:#x} of the {found.nbytes} bytes at {found.base:#x}"
            return found.base + offset, place
        what = "LDS of a workgroup" if self.is_lds else "scratch of a lane"
        stride = -(-self.own_bytes // 16) * 16
        return offset % stride, f"of {self.own_bytes} bytes of {what}"

    def _member(self, index: int) -> tuple[int, int | None]:
        """(wavefront of the group, lane; None of a scalar load)."""
        lanes = self.place.lanes
        if self.touch.space == "scalar":
            return (index if lanes is None else int(np.flatnonzero(lanes)[index])), None
        if lanes is None:
            return divmod(index, self.waves.lanes)
        found = np.argwhere(lanes)[index]
        return int(found[0]), int(found[1])
