"""What may watch a launch as it is executed, and what it is shown."""

from __future__ import annotations

from typing import Protocol

from aot_emulator.isa.decoding import Instruction
from aot_emulator.state.access import Access, Touch
from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import Wavefronts
from aot_runtime.errors import EmulationError, Thread


class BatchView(Protocol):
    """A batch of workgroups that are run together.

    Attributes:
        numbers: int64 [workgroups], of the batch's workgroups in the launch.
        workgroups, wavefronts: workgroups of the batch; wavefronts of each.
        access: what they reach.
        kernarg: addresses of the kernarg segment.
    """

    numbers: Array
    workgroups: int
    wavefronts: int
    access: Access
    kernarg: range

    def thread(self, waves: Wavefronts, wave: int, lane: int | None) -> Thread:
        """Where a lane of a group's wavefront is in the launch."""

    def place(self, workgroup: int) -> tuple[int, int, int]:
        """Where a workgroup is in the grid, from its number."""

    def locate(self, error: EmulationError, instruction: Instruction) -> None:
        """Say that an error is of an instruction, unless it is known of which it is."""


class Monitor:
    """Sees a batch's launch, and does nothing. An `EmulationError` that a method raises stops the launch."""

    def begin(self, batch: BatchView) -> None:
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
