"""Tensors in the emulator's memory, with unwritten guard bytes before, between and after their elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot_emulator.errors import SanitizerError
from aot_emulator.state.device_memory import Memory
from aot_runtime.contract.layout import Layout, make_layout
from aot_runtime.device.array import DeviceArray
from aot_runtime.device.device import Device

Array = np.ndarray[Any, Any]
_NEAR = 1 << 19
"""Distance in bytes up to which an address is described by a tensor near it."""


@dataclass(frozen=True)
class Spot:
    """An address in words, with the tensor that it is in or beside, and its element if it is in one."""

    text: str = ""
    tensor: str = ""
    index: tuple[int, ...] | None = None


@dataclass(frozen=True)
class GuardedTensor:
    """A tensor in an allocation of its own.

    Attributes:
        base: address of the allocation. Its first `shift` bytes belong to no element.
        nbytes: size of the allocation, which ends with the last element.
        elements: offsets of the elements in bytes from `base`: int64 of the tensor's shape.
        before: content of the allocation before the call, uint8 [nbytes].
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
        """Mark the elements that were not written completely: bool of the tensor's shape."""
        return np.asarray(~self.written()[self._bytes].all(-1))

    def content(self) -> Array:
        """uint8 [nbytes]."""
        return np.array(self.memory.bytes_at(self.base, self.nbytes))

    def values(self) -> Array:
        """The elements, of the tensor's shape and dtype."""
        return self.array.numpy()

    def spot(self, offset: int) -> Spot:
        """Describe an offset from the start of the allocation."""
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


def allocate_tensor(device: Device, memory: Memory, name: str, layout: Layout, values: Array | None) -> GuardedTensor:
    """Allocate a tensor of a layout. Only its elements are written; without `values`, nothing is."""
    layout = make_layout(device.key, layout.dtype, layout.shape, layout.strides, layout.aligned)
    shift = 0 if layout.aligned else layout.itemsize
    nbytes = shift + (layout.high - layout.low) * layout.itemsize
    elements = np.full(layout.shape, shift - layout.low * layout.itemsize, np.int64)
    for dim, (extent, stride) in enumerate(zip(layout.shape, layout.strides, strict=True)):
        ends = [1] * len(layout.shape)
        ends[dim] = extent
        elements += (np.arange(extent) * stride * layout.itemsize).reshape(ends)
    if not layout.size:
        return GuardedTensor(name, DeviceArray(device, 0, layout, None), memory, 0, 0, elements, np.zeros(0, np.uint8))
    owner = _Owned(memory, memory.allocate(nbytes))
    array = DeviceArray(device, owner.address + shift - layout.low * layout.itemsize, layout, owner)
    content, chosen = np.zeros(nbytes, np.uint8), np.zeros(nbytes, bool)
    if values is not None:
        where = elements[..., None] + np.arange(layout.itemsize)
        content[where] = np.ascontiguousarray(values).view(np.uint8).reshape(where.shape)
        chosen[where] = True
        memory.write_some(owner.address, content, chosen)
    before = np.array(memory.bytes_at(owner.address, nbytes))
    return GuardedTensor(name, array, memory, owner.address, nbytes, elements, before)


class _Owned:
    """An allocation that is not reused: the runtime's own would keep the memory and hand it out again."""

    def __init__(self, memory: Memory, address: int):
        self.memory, self.address = memory, address

    def used_on(self, stream: int) -> None:
        """Do nothing: the emulator's work is done when a call returns."""

    def __del__(self) -> None:
        self.memory.free(self.address)


def spot_of(placed: Mapping[str, GuardedTensor], error: SanitizerError) -> Spot:
    """Locate a fault's address relative to the tensors of a call. The result is empty if no tensor is near."""
    if error.address is None:
        return Spot()
    address = error.address
    beside = {name: max(item.base - address, address - item.base - item.nbytes + 1, 0) for name, item in placed.items()}
    near = min((name for name, item in placed.items() if item.nbytes), key=lambda name: beside[name], default="")
    if not near or beside[near] > _NEAR:
        return Spot()
    return placed[near].spot(address - placed[near].base)
