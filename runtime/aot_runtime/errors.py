"""The runtime's errors, all derived from `AotError`. Lack of host memory remains Python's own `MemoryError`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .texts import escaped


class AotError(Exception):
    """Base class of the errors raised by aotbuild and its runtime. Pickling keeps the attributes.

    `args` are the lines of the message. `str` escapes line breaks and control characters in each, since a message may
    quote untrusted text.
    """

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the lines of the message. The first one states the fault."""
        return tuple(str(argument) for argument in self.args)

    def __str__(self) -> str:
        return "\n  ".join(map(escaped, self.lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[AotError], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> AotError:
    """Unpickle an error without calling `__init__`, whose arguments may differ from `args`."""
    error: AotError = BaseException.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class BundleError(AotError):
    """A bundle is missing, malformed, altered, or too new for this reader."""


class ArchMismatchError(BundleError):
    """A bundle or code object was compiled for a different architecture than the device's."""


class VersionMismatchError(BundleError):
    """A bundle's version is not the requested one."""


class NoVectorsError(BundleError):
    """A bundle or op has no self-test vectors."""


class TrustError(BundleError):
    """A trust policy does not accept a bundle, or the policy is unusable. Nothing of the bundle was used.

    Attributes:
        reason: one of
            - `unsigned`: the bundle has no signature;
            - `malformed`: the signature file cannot be parsed;
            - `key`, `identity`: the policy does not list the signer;
            - `revoked`, `expired`: the policy lists the key or identity as such;
            - `signature`: the signature does not verify;
            - `certificate`: the certificate has an unknown issuer, or was not valid when it was used;
            - `altered`: the signature is for a different index;
            - `name`: the signer may not sign bundles of this name;
            - `version`: the bundle is older than the policy allows;
            - `policy`: the policy or its trusted root cannot be used;
            - `library`: the extra `trust` or `sigstore` is not installed.
    """

    def __init__(self, message: str, reason: str = ""):
        super().__init__(message)
        self.reason = reason


class ExpressionError(AotError):
    """An expression uses a forbidden construct or an unknown name, or cannot be evaluated."""


class ArgumentError(AotError, ValueError):
    """An argument breaks the op's contract. Nothing was launched."""


class NoVariantError(ArgumentError):
    """The call is valid, but the bundle has no variant for it.

    The advice in the message is computed when it is first read, since that takes longer than planning a call.

    Attributes:
        remedy: lines with the command and calls file that build the missing variant; empty if unknown.
    """

    def __init__(self, *lines: str, explain: Callable[[], tuple[tuple[str, ...], tuple[str, ...]]] | None = None):
        super().__init__(*lines)
        self._explain = explain
        self._explanation: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def _explained(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        explain, self._explain = self._explain, None
        if explain is not None:
            self._explanation = explain()
        return self._explanation

    @property
    def remedy(self) -> tuple[str, ...]:
        return self._explained()[1]

    @property
    def lines(self) -> tuple[str, ...]:
        advice, remedy = self._explained()
        return (*super().lines, *advice, *remedy)

    def __reduce__(self) -> tuple[Any, ...]:
        self._explained()
        return super().__reduce__()


class CallsFileError(AotError):
    """A calls file cannot be read or written, or is malformed."""


class DeviceError(AotError):
    """No usable GPU, or no driver library for it, was found."""


class CaptureError(AotError):
    """A call would have allocated or synchronised while its stream was being captured."""


class DriverCallError(DeviceError):
    """A call of the GPU driver failed.

    Attributes:
        call: the driver function, e.g. `hipModuleLoadData`.
        status: the integer status.
        code: the name of the status, e.g. `hipErrorInvalidImage`.
        meaning: the driver's description of the status.
    """

    def __init__(self, call: str, status: int, code: str, meaning: str):
        super().__init__(f"{call} failed: {code} ({status}): {meaning}")
        self.call, self.status, self.code, self.meaning = call, status, code, meaning


class DeviceMemoryError(DriverCallError, MemoryError):
    """The device is out of memory."""
