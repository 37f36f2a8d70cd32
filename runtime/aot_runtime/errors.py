"""Every error that the runtime raises; all of them derive from `AotError`. Low memory of the host is Python's own
`MemoryError`, which is passed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .texts import escaped


class AotError(Exception):
    """Base of every error raised by aotbuild and its runtime. It is pickled with its attributes.

    Its arguments are its lines. As text each of them stays one line, and what a terminal would obey is escaped: they
    may quote what a bundle, a file or a server says.
    """

    @property
    def lines(self) -> tuple[str, ...]:
        """The text, line by line; the first one says what is wrong."""
        return tuple(str(argument) for argument in self.args)

    def __str__(self) -> str:
        return "\n  ".join(map(escaped, self.lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[AotError], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> AotError:
    """An error as it was; its class may make it of other arguments than Python keeps in `args`."""
    error: AotError = BaseException.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class BundleError(AotError):
    """A bundle is missing, malformed, altered, or too new for this reader."""


class ArchMismatchError(BundleError):
    """A bundle or a code object was compiled for another architecture than the device has."""


class VersionMismatchError(BundleError):
    """A bundle has another version than was asked for."""


class NoVectorsError(BundleError):
    """A bundle, or an op of it, has no selftest vectors to test a device with."""


class TrustError(BundleError):
    """A bundle is not accepted by a trust policy, or the policy cannot be read; nothing of the bundle is used.

    Attributes:
        reason: `unsigned`; `malformed`: the signature file; `key`, `identity`: the policy does not know it; `revoked`,
            `expired`: the key or identity is; `signature`: it is not the signer's; `certificate`: the identity's was
            not made by who may, or not valid when it was used; `altered`: it is about another index; `name`: the
            signer may not sign a bundle of that name; `version`: the bundle is too old; `policy`: that, or the trusted
            root that it names, cannot be used; `library`: the extra `trust` or `sigstore` is missing.
    """

    def __init__(self, message: str, reason: str = ""):
        super().__init__(message)
        self.reason = reason


class ExpressionError(AotError):
    """An expression uses a forbidden construct or an unknown name, or cannot be evaluated."""


class ArgumentError(AotError, ValueError):
    """An argument of a call breaks the op's contract: nothing was launched."""


class NoVariantError(ArgumentError):
    """The contract holds, but the bundle has no code object for these arguments.

    Attributes:
        may_be_had: whether the bundle's manifest may have such code, which a build for the call makes.
        remedy: lines that say how to have it built: the entry of a calls file, and the command; none where that is
            not known, or where there is none.
    """

    may_be_had = False
    remedy: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        return (*super().lines, *self.remedy)


class CallsFileError(AotError):
    """A calls file cannot be read or written, or is something else."""


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


@dataclass(frozen=True)
class Thread:
    """A lane of a launch, or with lane None a whole wavefront."""

    workgroup: tuple[int, int, int]
    wavefront: int
    lane: int | None = None

    def __str__(self) -> str:
        lane = "" if self.lane is None else f", lane {self.lane}"
        return f"workgroup {self.workgroup}, wavefront {self.wavefront}{lane}"


class EmulationError(DeviceError):
    """The emulator stopped a kernel.

    Attributes:
        kernel: the kernel's symbol; None where the fault is not in one.
        pc: byte offset of the instruction in the kernel's code, or None.
        mnemonic: the instruction's name, or None.
        instruction: the whole of it as text, where it is known.
        thread: which one, where it is known.
        code: the code object, by the name that bundles give it; `aotbundle show` has its variants.
        source: `file:line` that the instruction was made of, where the code object was built with `--line-info`; or "".
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
        """Say where it happened, unless that is known."""
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
        """(wavefront of those that are executed together, lane), until `thread` says it."""


class SanitizerError(EmulationError):
    """A fault that the emulator's strict mode found.

    Attributes:
        kind: `bounds`, `alignment`, `uninitialised`, `wait`, `hazard`, `race` or `barrier`.
        address, nbytes: of the access, if it is one of memory; in LDS and scratch from their start.
    """

    def __init__(self, kind: str, message: str, thread: Thread):
        super().__init__(message)
        self.kind, self.thread = kind, thread
        self.address: int | None = None
        self.nbytes = 0


class InstructionBudgetError(EmulationError):
    """A launch executed more instructions than its budget allows: most likely a loop that never ends."""
