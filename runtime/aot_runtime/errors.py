"""Every error that the runtime raises; all of them derive from `AotError`."""


class AotError(Exception):
    """Base of every error raised by aotbuild and its runtime."""


class BundleError(AotError):
    """A bundle is missing, malformed, altered, or too new for this reader."""


class ArchMismatchError(BundleError):
    """A bundle or a code object was compiled for another architecture than the device has."""


class ExpressionError(AotError):
    """An expression uses a forbidden construct or an unknown name, or cannot be evaluated."""


class ArgumentError(AotError, ValueError):
    """An argument of a call breaks the op's contract: nothing was launched."""


class NoVariantError(ArgumentError):
    """The contract holds, but the bundle has no code object for these arguments."""


class DeviceError(AotError):
    """There is no usable GPU, or no driver library to reach it with."""


class CaptureError(AotError):
    """A call would have allocated or synchronised while its stream was being captured."""


class DriverCallError(DeviceError):
    """A call of the GPU driver failed.

    Attributes:
        call: the driver function, e.g. `hipModuleLoadData`.
        status: its integer status.
        code: the status's own name, e.g. `hipErrorInvalidImage`.
        meaning: the driver's description of that status.
    """

    def __init__(self, call: str, status: int, code: str, meaning: str):
        super().__init__(f"{call} failed: {code} ({status}): {meaning}")
        self.call, self.status, self.code, self.meaning = call, status, code, meaning


class DeviceMemoryError(DriverCallError, MemoryError):
    """The device is out of memory."""


class EmulationError(DeviceError):
    """The emulator stopped a kernel.

    Attributes:
        kernel: the kernel's symbol; None where the fault is not in one.
        code: name of the code object, as a bundle's variants have it; None as above.
        pc: byte offset of the instruction in the kernel's code, or None.
        mnemonic: the instruction's name, or None.
        instruction: its text, with operands, or None.
        workgroup: the workgroup's coordinates in the grid, or None where the fault is in no single one.
        wavefront: the wavefront's number in the workgroup, or None.
        lane: the lane's number in the wavefront, or None.
    """

    def __init__(self, message: str, kernel: str | None = None, pc: int | None = None, mnemonic: str | None = None):
        self.message, self.kernel, self.pc, self.mnemonic = message, kernel, pc, mnemonic
        self.code: str | None = None
        self.instruction: str | None = None
        self.workgroup: tuple[int, int, int] | None = None
        self.wavefront: int | None = None
        self.lane: int | None = None
        self.member: int | None = None  # of the wavefronts executed together, until `workgroup` is known from it
        super().__init__(message)

    def __str__(self) -> str:
        if self.pc is None:
            return self.message
        where = [self.instruction] if self.instruction and self.instruction != self.mnemonic else []
        named = {"workgroup": self.workgroup, "wavefront": self.wavefront, "lane": self.lane, "code object": self.code}
        where += [f"{name} {value}" for name, value in named.items() if value is not None]
        place = f"{self.mnemonic} at pc {self.pc:#x} of {self.kernel}: {self.message}"
        return place + (f" [{', '.join(where)}]" if where else "")

    def locate(
        self,
        kernel: str,
        pc: int,
        mnemonic: str,
        instruction: str | None = None,
        code: str | None = None,
    ) -> None:
        """Say in which instruction it happened, unless that is known."""
        if self.pc is None:
            self.kernel, self.pc, self.mnemonic = kernel, pc, mnemonic
        if self.instruction is None and self.pc == pc:
            self.instruction, self.code = instruction, code


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


class InstructionBudgetError(EmulationError):
    """A launch executed more instructions than its budget allows: most likely a loop that never ends."""


class SanitizerError(EmulationError):
    """Strict emulation found what a GPU would have let pass."""


class SanitizedAccessError(SanitizerError):
    """An access inside its allocation that is wrong nevertheless.

    Attributes:
        address: the first address at fault.
        nbytes: size of the access.
    """

    def __init__(self, message: str, address: int, nbytes: int):
        super().__init__(message)
        self.address, self.nbytes = address, nbytes


class MisalignedAccessError(SanitizedAccessError):
    """An access at an address that is no multiple of what its size needs."""


class UninitializedReadError(SanitizedAccessError):
    """A read of bytes that nothing has written."""


class DataRaceError(SanitizedAccessError):
    """Two wavefronts access the same bytes, at least one of them to write, and nothing orders the two accesses."""


class RegisterHazardError(SanitizerError):
    """A register is used whose load has not been waited for."""


class DivergentBarrierError(SanitizerError):
    """The wavefronts of a workgroup wait at different barriers, or one has ended while others wait."""
