"""Access of wavefronts to global memory, LDS and scratch.

`Access` checks the bounds of each vector access and translates it to a list of `Place` objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from aot_emulator.errors import MemoryAccessError

from .arrays import Array
from .device_memory import POISON, Allocation, Memory, gather, scatter
from .wavefronts import Wavefronts

Space = Literal["global", "scalar", "lds", "scratch"]
Action = Literal["load", "store", "atomic"]


@dataclass(frozen=True, eq=False)
class Touch:
    """A memory access of an instruction, as reported to observers before its bounds are checked.

    Attributes:
        space: memory space; `scalar` is global memory accessed by the scalar unit.
        addresses: [wavefronts, lanes], or [wavefronts] for scalar loads. uint64 addresses in global memory; int64
            offsets in the workgroup's LDS or the lane's scratch.
        nbytes: bytes per lane.
        lanes: mask of active lanes, of the shape of `addresses`; None: all.
        values: the values of a store, in the layout of `gather`.
    """

    space: Space
    action: Action
    addresses: Array
    nbytes: int
    lanes: Array | None
    values: Array | None = None


Observer = Callable[[Wavefronts, Touch], None]
"""Callback for each access."""


@dataclass(frozen=True)
class Place:
    """Location of accesses in one array.

    Attributes:
        data: uint8, the array of an allocation, of the batch's LDS, or of its scratch.
        offsets: int64 offsets into `data`, [active lanes] or [wavefronts, lanes].
        lanes: mask of the lanes, bool [wavefronts, lanes]; None: all, and `offsets` is two-dimensional.
    """

    data: Array
    offsets: Array
    lanes: Array | None


class Access:
    """Memory of a batch: global memory, LDS of its workgroups, scratch of its lanes.

    Args:
        memory: global memory.
        lds_bytes, workgroups: LDS per workgroup, and number of workgroups.
        scratch_bytes, shape: scratch per lane, and (wavefronts, lanes).
        observer: called for each access.
        lds_is_bounded: raise an error for accesses past a workgroup's LDS. Otherwise loads return 0 and stores are
            dropped, as on hardware.
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
        """Locate accesses to global memory. addresses: uint64 [wavefronts, lanes]. Raises `MemoryAccessError`."""
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
        """Locate scalar loads, like `Memory.spans`.

        Args:
            addresses: uint64 [wavefronts].
            loading: mask of wavefronts that load, not empty, bool [wavefronts]; None: all. The returned masks refer to
                these wavefronts.
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
        """Call `Memory.spans`, adding the faulting lane to errors. every: addresses of all lanes."""
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
        """Locate accesses to LDS. addresses: int64 [wavefronts, lanes]. Raises `MemoryAccessError`."""
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
        """Locate accesses to scratch. addresses: int64 [wavefronts, lanes]. Raises `MemoryAccessError`."""
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
    """Load a value for each lane, in the layout of `gather`. Lanes without a place get 0."""
    if len(places) == 1 and places[0].lanes is None:
        return gather(places[0].data, places[0].offsets, nbytes)
    dtype: Any = {1: np.uint8, 2: np.uint16}.get(nbytes, np.uint32)
    result = np.zeros(shape if nbytes < 4 else (nbytes // 4, *shape), dtype)
    for place in places:
        result[..., place.lanes] = gather(place.data, place.offsets, nbytes)
    return result


def store(places: list[Place], nbytes: int, values: Array) -> None:
    """Store a value for each lane, given in the layout of `gather`."""
    for place in places:
        scatter(place.data, place.offsets, nbytes, values if place.lanes is None else values[..., place.lanes])
