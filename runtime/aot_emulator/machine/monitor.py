"""Interface for observers of a running launch."""

from __future__ import annotations

from typing import Protocol

from aot_emulator.errors import EmulationError, Thread
from aot_emulator.isa.decoding import Instruction
from aot_emulator.state.access import Access, Touch
from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import Wavefronts


class BatchView(Protocol):
    """A batch of workgroups that run together, as monitors see it.

    Attributes:
        numbers: int64 [workgroups], numbers of the batch's workgroups in the launch.
        workgroups, wavefronts: workgroups in the batch; wavefronts per workgroup.
        access: the memory of the batch.
        kernarg: address range of the kernarg segment.
    """

    numbers: Array
    workgroups: int
    wavefronts: int
    access: Access
    kernarg: range

    def thread(self, waves: Wavefronts, wave: int, lane: int | None) -> Thread:
        """Return the position in the launch of a lane of a group's wavefront."""

    def place(self, workgroup: int) -> tuple[int, int, int]:
        """Return the grid coordinates of a workgroup."""

    def locate(self, error: EmulationError, instruction: Instruction) -> None:
        """Add the location of an instruction to an error that has none."""


class Monitor:
    """Base class of observers; its methods do nothing. An `EmulationError` raised by a method stops the launch."""

    def begin(self, batch: BatchView) -> None:
        """Called when a batch of the launch starts."""

    def instruction(self, waves: Wavefronts, instruction: Instruction) -> None:
        """Called before `instruction` is executed."""

    def access(self, waves: Wavefronts, touch: Touch) -> None:
        """Called when the current instruction accesses memory."""

    def divide(self, waves: Wavefronts, part: Wavefronts) -> None:
        """Called when wavefronts diverge: `part` splits off from the group `waves`."""

    def join(self, first: Wavefronts, second: Wavefronts, joined: Wavefronts) -> None:
        """Called when two groups at the same pc are merged into one."""

    def barrier(self, groups: list[Wavefronts]) -> None:
        """Called when a barrier releases `groups`, which hold all live wavefronts of their workgroups."""
