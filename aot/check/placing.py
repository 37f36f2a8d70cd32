"""Tensors in the emulator's memory: with nothing written between, before and behind their elements, and how they are
found afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot_emulator.state.device_memory import Memory
from aot_runtime.contract.layout import Layout, make_layout
from aot_runtime.device.array import DeviceArray
from aot_runtime.device.device import Device
from aot_runtime.errors import SanitizerError

Array = np.ndarray[Any, Any]
_NEAR = 1 << 19
"""Bytes beside a tensor within which an address is told by the tensor."""


@dataclass(frozen=True)
class Spot:
    """An address in words; the tensor that it is in or beside, and its element there, if it is one's."""

    text: str = ""
    tensor: str = ""
    index: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Placed:
    """A tensor in an allocation of its own.

    Attributes:
        base, nbytes: of the allocation, which ends with the last element. Its first `shift` bytes are no element's.
        elements: int64 of the tensor's shape: where each element is, in bytes from `base`.
        before: what is in the allocation before the call, uint8 [nbytes].
    """

    name: str
    array: DeviceArray
    memory: Memory
    base: int
    nbytes: int
    elements: Array
    before: Array

    @property
    def is_element(self) -> Array:
        """bool [nbytes]."""
        found = np.zeros(self.nbytes, bool)
        found[self._bytes.ravel()] = True
        return found

    @property
    def _bytes(self) -> Array:
        return self.elements[..., None] + np.arange(self.array.layout.itemsize)

    def written(self) -> Array:
        """bool [nbytes]."""
        return self.memory.written(self.base, self.nbytes)

    def unwritten_elements(self) -> Array:
        """Which elements were not written as a whole: bool of the tensor's shape."""
        return np.asarray(~self.written()[self._bytes].all(-1))

    def content(self) -> Array:
        """uint8 [nbytes]."""
        return np.array(self.memory.bytes_at(self.base, self.nbytes))

    def values(self) -> Array:
        """The elements, of the tensor's shape and dtype."""
        return self.array.numpy()

    def spot(self, offset: int) -> Spot:
        """What is at an offset from the start of the allocation."""
        held = np.argwhere((self.elements <= offset) & (offset < self.elements + self.array.layout.itemsize))
        if len(held):
            index = tuple(int(i) for i in held[0])
            return Spot(f"'{self.name}' at {list(index)}", self.name, index)
        if offset >= self.nbytes:
            past = offset - self.nbytes
            return Spot(f"{f'{past} bytes' if past else 'right'} behind the end of '{self.name}'", self.name)
        before = self.elements <= offset
        if not before.any():
            return Spot(f"{int(self.elements.min()) - offset} bytes before the start of '{self.name}'", self.name)
        last = np.unravel_index(int(np.where(before, self.elements, -1).argmax()), self.elements.shape)
        text = f"between the elements of '{self.name}', behind {[int(i) for i in last]}"
        return Spot(text, self.name)


def place(device: Device, memory: Memory, name: str, layout: Layout, values: Array | None) -> Placed:
    """A tensor of a layout. Only its elements are written, and without `values` nothing is."""
    layout = make_layout(device.key, layout.dtype, layout.shape, layout.strides, layout.aligned)
    shift = 0 if layout.aligned else layout.itemsize
    nbytes = shift + (layout.high - layout.low) * layout.itemsize
    elements = np.full(layout.shape, shift - layout.low * layout.itemsize, np.int64)
    for dim, (extent, stride) in enumerate(zip(layout.shape, layout.strides, strict=True)):
        ends = [1] * len(layout.shape)
        ends[dim] = extent
        elements += (np.arange(extent) * stride * layout.itemsize).reshape(ends)
    if not layout.size:
        return Placed(name, DeviceArray(device, 0, layout, None), memory, 0, 0, elements, np.zeros(0, np.uint8))
    owner = _Owned(memory, memory.allocate(nbytes))
    array = DeviceArray(device, owner.address + shift - layout.low * layout.itemsize, layout, owner)
    content, chosen = np.zeros(nbytes, np.uint8), np.zeros(nbytes, bool)
    if values is not None:
        where = elements[..., None] + np.arange(layout.itemsize)
        content[where] = np.ascontiguousarray(values).view(np.uint8).reshape(where.shape)
        chosen[where] = True
        memory.write_some(owner.address, content, chosen)
    before = np.array(memory.bytes_at(owner.address, nbytes))
    return Placed(name, array, memory, owner.address, nbytes, elements, before)


class _Owned:
    """An allocation that is nobody else's before and after: the runtime's own keeps and hands out again."""

    def __init__(self, memory: Memory, address: int):
        self.memory, self.address = memory, address

    def used_on(self, stream: int) -> None:
        """The emulator's work is done when it is given."""

    def __del__(self) -> None:
        self.memory.free(self.address)


def spot_of(placed: Mapping[str, Placed], error: SanitizerError) -> Spot:
    """Where a fault's address is among the tensors of a call; nowhere, if it is near none."""
    if error.address is None:
        return Spot()
    address = error.address
    beside = {name: max(item.base - address, address - item.base - item.nbytes + 1, 0) for name, item in placed.items()}
    near = min((name for name, item in placed.items() if item.nbytes), key=lambda name: beside[name], default="")
    if not near or beside[near] > _NEAR:
        return Spot()
    return placed[near].spot(address - placed[near].base)
