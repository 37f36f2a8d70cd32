"""What wavefronts can reach, and how: global memory, LDS and scratch.

Every vector access of memory, LDS or scratch is a `Place` list made by `Access`: there the bounds are checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from aot_runtime.errors import MemoryAccessError

from .arrays import Array
from .device_memory import POISON, Allocation, Memory, gather, scatter
from .wavefronts import Wavefronts

Space = Literal["global", "scalar", "lds", "scratch"]
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

    space: Space
    action: Action
    addresses: Array
    nbytes: int
    lanes: Array | None
    values: Array | None = None


Observer = Callable[[Wavefronts, Touch], None]
"""What is told of accesses."""


@dataclass(frozen=True)
class Place:
    """Bytes that some lanes reach.

    Attributes:
        data: uint8, all of an allocation, of a batch's LDS or of its scratch.
        offsets: int64 [lanes that access] or [wavefronts, lanes], into data.
        lanes: which lanes these are, bool [wavefronts, lanes]; None: all of them, and offsets has two dims.
    """

    data: Array
    offsets: Array
    lanes: Array | None


class Access:
    """What a batch's wavefronts can reach: global memory, the LDS of their workgroups, scratch of their lanes.

    Args:
        memory: global memory.
        lds_bytes, workgroups: LDS of each workgroup, and how many there are.
        scratch_bytes, shape: scratch of each lane, and (wavefronts, lanes).
        observer: what is told of every access.
        lds_is_bounded: an access past a workgroup's LDS is an error. Else it is as on hardware: loads give 0, and
            nothing is stored.
    """

    def __init__(
        self,
        memory: Memory,
        lds_bytes: int,
        workgroups: int,
        scratch_bytes: int,
        shape: tuple[int, int],
        observer: Observer | None = None,
        lds_is_bounded: bool = True,
    ):
        self.memory, self.lds_bytes, self.scratch_bytes, self._observer = memory, lds_bytes, scratch_bytes, observer
        self._lds_is_bounded = lds_is_bounded
        self.lds_stride = -(-lds_bytes // 16) * 16
        self.scratch_stride = -(-scratch_bytes // 16) * 16
        self.lds = np.full(self.lds_stride * workgroups, POISON, np.uint8)
        self.scratch = np.full(self.scratch_stride * math.prod(shape), POISON, np.uint8)

    def in_memory(
        self,
        waves: Wavefronts,
        action: Action,
        addresses: Array,
        nbytes: int,
        lanes: Array | None,
        values: Array | None = None,
    ) -> list[Place]:
        """Where accesses of global memory go. addresses: uint64 [wavefronts, lanes]. Raises `MemoryAccessError`."""
        self._report(waves, "global", action, addresses, nbytes, lanes, values)
        every = addresses
        if lanes is not None:
            addresses = addresses[lanes]
            if not addresses.size:
                return []
        places = []
        for allocation, mine in self._spans(addresses, nbytes, every, lanes):
            reached, own = addresses, lanes
            if mine is not None:
                reached = addresses[mine]
                own = mine if lanes is None else _within(lanes, mine)
            places.append(Place(allocation.data, (reached - np.uint64(allocation.base)).view(np.int64), own))
        return places

    def scalar_loads(
        self, waves: Wavefronts, addresses: Array, nbytes: int, loading: Array | None = None
    ) -> list[tuple[Allocation, Array | None]]:
        """The allocations that scalar loads fall into, as `Memory.spans` has it.

        addresses: uint64 [wavefronts]. loading: the wavefronts that load, some at least, bool [wavefronts]; None: all.
        The masks are over those.
        """
        self._report(waves, "scalar", "load", addresses, nbytes, loading)
        return self._spans(addresses if loading is None else addresses[loading], nbytes, addresses, loading)

    def _report(
        self,
        waves: Wavefronts,
        space: Space,
        action: Action,
        addresses: Array,
        nbytes: int,
        lanes: Array | None,
        values: Array | None = None,
    ) -> None:
        if self._observer is not None:
            self._observer(waves, Touch(space, action, addresses, nbytes, lanes, values))

    def _spans(
        self, addresses: Array, nbytes: int, every: Array, lanes: Array | None
    ) -> list[tuple[Allocation, Array | None]]:
        """`Memory.spans`. every: the addresses of all lanes, to name the one at fault."""
        try:
            return self.memory.spans(addresses, nbytes)
        except MemoryAccessError as error:
            _blame(error, every == np.uint64(error.address), lanes)
            raise

    def in_lds(
        self,
        waves: Wavefronts,
        action: Action,
        addresses: Array,
        nbytes: int,
        lanes: Array | None,
        values: Array | None = None,
    ) -> list[Place]:
        """Where accesses of LDS go. addresses: int64 [wavefronts, lanes]. Raises `MemoryAccessError`."""
        self._report(waves, "lds", action, addresses, nbytes, lanes, values)
        if not self._lds_is_bounded:
            inside = (addresses >= 0) & (addresses <= self.lds_bytes - nbytes)
            lanes = inside if lanes is None else inside & lanes
        base = (waves.workgroup * self.lds_stride)[:, None]
        return self._in_array(self.lds, base, addresses, nbytes, lanes, self.lds_bytes, "of LDS of a workgroup")

    def in_scratch(
        self,
        waves: Wavefronts,
        action: Action,
        addresses: Array,
        nbytes: int,
        lanes: Array | None,
        values: Array | None = None,
    ) -> list[Place]:
        """Where accesses of scratch go. addresses: int64 [wavefronts, lanes]. Raises `MemoryAccessError`."""
        self._report(waves, "scratch", action, addresses, nbytes, lanes, values)
        base = (waves.slot[:, None] * waves.lanes + np.arange(waves.lanes)) * self.scratch_stride
        return self._in_array(self.scratch, base, addresses, nbytes, lanes, self.scratch_bytes, "of scratch of a lane")

    def _in_array(
        self, data: Array, base: Array, addresses: Array, nbytes: int, lanes: Array | None, size: int, what: str
    ) -> list[Place]:
        offsets, every = addresses + base, addresses
        if lanes is not None:
            addresses, offsets = addresses[lanes], offsets[lanes]
            if not addresses.size:
                return []
        low, high = int(addresses.min()), int(addresses.max())
        if low < 0 or high + nbytes > size:
            wrong = low if low < 0 else high
            text = f"{nbytes} bytes at {wrong:#x} are outside the {size} bytes {what}"
            error = MemoryAccessError(text, wrong, nbytes)
            _blame(error, every == wrong, lanes)
            raise error
        return [Place(data, offsets, lanes)]


def _blame(error: MemoryAccessError, wrong: Array, lanes: Array | None) -> None:
    found = np.argwhere(wrong if lanes is None else wrong & lanes)[0]
    error.member = int(found[0]), int(found[1]) if len(found) > 1 else None


def _within(lanes: Array, mine: Array) -> Array:
    result = np.zeros(lanes.shape, bool)
    result[lanes] = mine
    return result


def load(places: list[Place], nbytes: int, shape: tuple[int, ...]) -> Array:
    """Read a value a lane, in `gather`'s form; lanes that no place has are 0."""
    if len(places) == 1 and places[0].lanes is None:
        return gather(places[0].data, places[0].offsets, nbytes)
    dtype: Any = {1: np.uint8, 2: np.uint16}.get(nbytes, np.uint32)
    result = np.zeros(shape if nbytes < 4 else (nbytes // 4, *shape), dtype)
    for place in places:
        result[..., place.lanes] = gather(place.data, place.offsets, nbytes)
    return result


def store(places: list[Place], nbytes: int, values: Array) -> None:
    """Write a value a lane, given in `gather`'s form."""
    for place in places:
        scatter(place.data, place.offsets, nbytes, values if place.lanes is None else values[..., place.lanes])
