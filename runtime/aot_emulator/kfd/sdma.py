"""SDMA commands: copies and fills (*_sdma_pkt_open.h in Linux's amdgpu driver; ROCr's sdma_registers.h).

Commands execute immediately and in order; an unsatisfied poll blocks its ring.
"""

from __future__ import annotations

import operator
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aot_emulator.errors import EmulationError

from .address_space import AddressSpace

NOP, COPY, WRITE, FENCE, TRAP, POLL, ATOMIC, CONSTANT_FILL, TIMESTAMP, CACHE = 0, 1, 2, 5, 6, 8, 10, 11, 13, 17
_LINEAR, _RECTANGLE = 0, 4
_POLLS: dict[int, Callable[[int, int], bool]] = {
    0: lambda value, wanted: True,
    1: operator.lt, 2: operator.le, 3: operator.eq, 4: operator.ne, 5: operator.ge, 6: operator.gt,
}  # fmt: skip
_ADD_64 = 47
_LONGEST = 16
"""Upper bound of the words in a supported command."""


def clock() -> int:
    """Read the GPU's 100 MHz clock, as reported by `GET_CLOCK_COUNTERS`."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) // 10


@dataclass(frozen=True)
class Box:
    """A box in a pitched array: array address, position, and pitches of rows and slices in elements."""

    address: int
    x: int
    y: int
    z: int
    pitch: int
    slice_pitch: int

    def at(self, row: int, plane: int, element: int) -> int:
        """Return the address of a row of the box."""
        place = self.x + (self.y + row) * self.pitch + (self.z + plane) * self.slice_pitch
        return self.address + place * element


@dataclass(frozen=True)
class BoxForm:
    """Encoding of boxes in the commands of a hardware generation.

    Attributes:
        xy_bits, z_bits, slice_bits: bit widths of x and y, of z, and of the slice pitch.
        pitch_at: lowest bit of the row pitch in its word.
    """

    xy_bits: int
    z_bits: int
    pitch_at: int
    slice_bits: int

    @property
    def z_mask(self) -> int:
        return (1 << self.z_bits) - 1

    def xy(self, word: int) -> tuple[int, int]:
        """Decode the x and y of a word."""
        mask = (1 << self.xy_bits) - 1
        return word & mask, word >> 16 & mask

    def box(self, words: tuple[int, ...]) -> Box:
        """Decode a box from five words."""
        x, y = self.xy(words[2])
        pitch, slice_pitch = (words[3] >> self.pitch_at) + 1, (words[4] & (1 << self.slice_bits) - 1) + 1
        return Box(_address(words, 0), x, y, words[3] & self.z_mask, pitch, slice_pitch)


_BOXES = BoxForm(xy_bits=14, z_bits=11, pitch_at=13, slice_bits=28)
BOXES: Mapping[str, BoxForm] = {
    "cdna": _BOXES, "rdna3": _BOXES, "rdna4": BoxForm(xy_bits=16, z_bits=14, pitch_at=16, slice_bits=32),
}  # fmt: skip
"""Box encodings by ISA."""


@dataclass
class Engine:
    """Executes SDMA commands of one device.

    Attributes:
        boxes: encoding of boxes in the commands.
    """

    memory: AddressSpace
    boxes: BoxForm
    raise_event: Callable[[int], None]

    def do(self, raw: bytes) -> int:
        """Execute the command at the start of `raw`. Returns its size in bytes, or 0 if it has to wait.

        Raises `EmulationError` for unsupported commands and unmapped memory.
        """
        words = struct.unpack(f"<{len(raw) // 4}I", raw)
        code, sub = words[0] & 0xFF, words[0] >> 8 & 0xFF
        command = self._commands().get(code)
        if command is None:
            raise EmulationError(f"unsupported SDMA command {code} (sub-command {sub})")
        return 4 * command(words + (0,) * _LONGEST)

    def _commands(self) -> dict[int, Callable[[tuple[int, ...]], int]]:
        return {
            NOP: lambda words: 1 + (words[0] >> 16 & 0x3FFF),
            COPY: self._copy,
            WRITE: self._write,
            FENCE: self._fence,
            TRAP: self._trap,
            POLL: self._poll,
            ATOMIC: self._atomic,
            CONSTANT_FILL: self._fill,
            TIMESTAMP: self._timestamp,
            CACHE: lambda words: 5,
        }

    def _copy(self, words: tuple[int, ...]) -> int:
        sub = words[0] >> 8 & 0xFF
        if sub == _RECTANGLE:
            return self._copy_rectangle(words)
        if sub != _LINEAR:
            raise EmulationError(f"unsupported SDMA copy sub-command {sub}")
        nbytes = (words[1] & 0x3FFFFFFF) + 1
        self.memory.move(_address(words, 5), _address(words, 3), nbytes)
        return 7

    def _copy_rectangle(self, words: tuple[int, ...]) -> int:
        element, form = 1 << (words[0] >> 29), self.boxes
        width, height = (size + 1 for size in form.xy(words[11]))
        depth = (words[12] & form.z_mask) + 1
        source, target = form.box(words[1:6]), form.box(words[6:11])
        for z in range(depth):
            for y in range(height):
                self.memory.move(target.at(y, z, element), source.at(y, z, element), width * element)
        return 13

    def _write(self, words: tuple[int, ...]) -> int:
        count = (words[3] & 0xFFFFF) + 1
        if count > 8:
            raise EmulationError(f"unsupported SDMA write of {count} words; the maximum is 8")
        self.memory.fill(_address(words, 1), struct.pack(f"<{count}I", *words[4 : 4 + count]), 4 * count)
        return 4 + count

    def _fence(self, words: tuple[int, ...]) -> int:
        self.memory.put_word(_address(words, 1), words[3], "<I")
        return 4

    def _trap(self, words: tuple[int, ...]) -> int:
        self.raise_event(words[1] & 0xFFFFFFF)
        return 2

    def _poll(self, words: tuple[int, ...]) -> int:
        if words[0] >> 31:  # memory poll; register polls only flush caches
            found = self.memory.word(_address(words, 1), "<I") & words[4]
            if not _POLLS[words[0] >> 28 & 7](found, words[3]):
                return 0
        return 6

    def _atomic(self, words: tuple[int, ...]) -> int:
        operation = words[0] >> 25
        if operation != _ADD_64:
            raise EmulationError(f"unsupported SDMA atomic {operation}")
        address = _address(words, 1)
        self.memory.put_word(address, (self.memory.word(address) + _address(words, 3)) % (1 << 64))
        return 8

    def _fill(self, words: tuple[int, ...]) -> int:
        element = 1 << (words[0] >> 30)
        nbytes = (words[4] & 0x3FFFFFFF) + element
        self.memory.fill(_address(words, 1), struct.pack("<I", words[3])[:element], nbytes)
        return 5

    def _timestamp(self, words: tuple[int, ...]) -> int:
        self.memory.put_word(_address(words, 1), clock())
        return 3


def _address(words: tuple[int, ...], at: int) -> int:
    return words[at] | words[at + 1] << 32
