"""Compare a kernel's parameters in its code object with those of its launch.

The builder checks this before it writes a bundle, and `verify` afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from aot_runtime.bundle.kernel_metadata import KernelArg, KernelMetadata
from aot_runtime.contract.records import POINTER

_HIDDEN = "hidden_"
"""Prefix of arguments that HIP appends, such as the launch shape and a buffer for host calls."""


class Argument(Protocol):
    """An argument that a launch passes, with its offset and size in the kernarg segment in bytes."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def size(self) -> int: ...


def signature_faults(
    kernel: KernelMetadata, arguments: Iterable[Argument], *, kernarg_bytes: int, num_warps: int, warp_size: int
) -> Iterator[str]:
    """Yield a description of each difference between a kernel and its launch.

    Args:
        kernarg_bytes: size of the passed kernarg segment.
        num_warps: warps per workgroup.
        warp_size: lanes per warp.
    """
    hidden = [arg for arg in kernel.args if arg.kind.startswith(_HIDDEN)]
    yield from _argument_faults([arg for arg in kernel.args if not arg.kind.startswith(_HIDDEN)], arguments)
    for what, passed, found in (
        ("kernarg bytes", kernarg_bytes, min([kernel.kernarg_bytes, *(arg.offset for arg in hidden)])),
        ("threads of a workgroup", num_warps * warp_size, kernel.max_workgroup_size),
        ("lanes of a wave", warp_size, kernel.warp_size),
    ):
        if passed != found:
            yield f"it is launched with {passed} {what}, the code object has {found}"


def _argument_faults(explicit: Iterable[KernelArg], arguments: Iterable[Argument]) -> Iterator[str]:
    found = {arg.offset: (arg.size, arg.kind) for arg in explicit}
    for arg in arguments:
        said = (arg.size, "pointer" if arg.type.startswith(POINTER) else "value")
        actual = found.pop(arg.offset, None)
        if actual is None:
            yield f"kernarg '{arg.name}' at offset {arg.offset} is not in the code object"
        elif actual != said:
            found_there = f"in the code object a {_kind(actual)}"
            yield f"kernarg '{arg.name}' at offset {arg.offset} is a {_kind(said)}, {found_there}"
    for offset, actual in sorted(found.items()):
        yield f"the code object has a {_kind(actual)} at offset {offset}, which is not passed"


def _kind(size_and_kind: tuple[int, str]) -> str:
    size, kind = size_and_kind
    return f"{kind} of {size} bytes"
