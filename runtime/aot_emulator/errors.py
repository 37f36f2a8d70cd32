"""The emulator's errors. Each says which instruction of which kernel, and where known which thread, is at fault."""

from __future__ import annotations

from typing import NamedTuple

from aot_runtime.errors import DeviceError


class Thread(NamedTuple):
    """A lane of a launch, or a whole wavefront if `lane` is None."""

    workgroup: tuple[int, int, int]
    wavefront: int
    lane: int | None = None

    def __str__(self) -> str:
        lane = "" if self.lane is None else f", lane {self.lane}"
        return f"workgroup {self.workgroup}, wavefront {self.wavefront}{lane}"


class EmulationError(DeviceError):
    """The emulator stopped a kernel.

    Attributes:
        kernel: the kernel's symbol, or None if the fault is not in a kernel.
        pc: byte offset of the instruction in the kernel's code, or None.
        mnemonic: the instruction's mnemonic, or None.
        instruction: the disassembled instruction, or None if unknown.
        thread: the thread at fault, or None if unknown.
        code: the code object's name in the bundle, or None; `aotbundle show` lists its variants.
        source: source location `file:line` of the instruction; empty unless built with `--line-info`.
    """

    def __init__(self, message: str, kernel: str | None = None, pc: int | None = None, mnemonic: str | None = None):
        self.message, self.kernel, self.pc, self.mnemonic = message, kernel, pc, mnemonic
        super().__init__(message)
        self.thread: Thread | None = None
        self.instruction: str | None = None
        self.code: str | None = None
        self.source = ""

    @property
    def lines(self) -> tuple[str, ...]:
        place = "" if self.pc is None else f"{self.instruction or self.mnemonic} at pc {self.pc:#x} of {self.kernel}"
        place += f", at {self.source}" if self.source else ""
        whole = ": ".join(filter(None, [", ".join(filter(None, [place, str(self.thread or "")])), self.message]))
        return (whole + (f" (code object {self.code})" if self.code else ""),)

    def locate(
        self,
        kernel: str,
        pc: int,
        mnemonic: str,
        instruction: str | None = None,
        code: str | None = None,
        source: str = "",
    ) -> None:
        """Set the location, unless it is already known."""
        if self.pc is None:
            self.kernel, self.pc, self.mnemonic, self.instruction = kernel, pc, mnemonic, instruction
            self.code, self.source = code, source


class UnsupportedInstructionError(EmulationError):
    """An instruction, or a modifier of one, that the emulator does not implement."""


class MemoryAccessError(EmulationError):
    """An access outside every allocation, or outside a workgroup's LDS or a lane's scratch.

    Attributes:
        address: the first address at fault.
        nbytes: size of the access.
    """

    def __init__(self, message: str, address: int, nbytes: int):
        super().__init__(message)
        self.address, self.nbytes = address, nbytes
        self.member: tuple[int, int | None] | None = None
        """(wavefront within the batch executed together, lane), until `thread` is set."""


class SanitizerError(EmulationError):
    """A fault found by the emulator's strict mode.

    Attributes:
        kind: `bounds`, `alignment`, `uninitialised`, `wait`, `hazard`, `race` or `barrier`.
        address, nbytes: address and size of a memory access. LDS and scratch addresses count from their start.
    """

    def __init__(self, kind: str, message: str, thread: Thread):
        super().__init__(message)
        self.kind, self.thread = kind, thread
        self.address: int | None = None
        self.nbytes = 0


class InstructionBudgetError(EmulationError):
    """A launch exceeded its instruction budget, most likely in an endless loop."""
