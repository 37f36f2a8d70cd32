"""Status codes of the emulator's driver calls, numbered as in HIP and CUDA."""

from __future__ import annotations

from aot_runtime.errors import DriverCallError

INVALID_VALUE, OUT_OF_MEMORY = 1, 2
INVALID_DEVICE, INVALID_IMAGE, INVALID_HANDLE, NOT_FOUND = 101, 200, 400, 500
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_IMPLICIT = 900, 901, 906

CODES = {
    INVALID_VALUE: "emulatorErrorInvalidValue",
    OUT_OF_MEMORY: "emulatorErrorOutOfMemory",
    INVALID_DEVICE: "emulatorErrorInvalidDevice",
    INVALID_IMAGE: "emulatorErrorInvalidImage",
    INVALID_HANDLE: "emulatorErrorInvalidHandle",
    NOT_FOUND: "emulatorErrorNotFound",
    CAPTURE_UNSUPPORTED: "emulatorErrorStreamCaptureUnsupported",
    CAPTURE_INVALIDATED: "emulatorErrorStreamCaptureInvalidated",
    CAPTURE_IMPLICIT: "emulatorErrorStreamCaptureImplicit",
}


def call_error(call: str, status: int, meaning: str) -> DriverCallError:
    """Return the error for a failed driver call."""
    return DriverCallError(call, status, CODES[status], meaning)
