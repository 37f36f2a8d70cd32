"""Scratch memory of a plan's calls: workspaces, and memory that code objects require.

On the default stream, a call takes one block for all of it, which calls of all plans reuse. On other streams, it is
allocated for each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from aot_runtime.contract.records import GLOBAL_SCRATCH, PROFILE_SCRATCH
from aot_runtime.device.memory import DeviceMemory, rounded

from .choosing import Decision


class Scratch(NamedTuple):
    """Source lines of a plan's `run` that bind each space's address to its name. Empty spaces get no name.

    Attributes:
        here, elsewhere: lines that provide the memory on the default stream, and on another one.
        further: lines that then compute the other addresses, and fill spaces with zeros if required.
        ending: lines that return the memory once all work is enqueued, or after a failure.
    """

    names: frozenset[str]
    here: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    ending: tuple[str, ...] = ()


def scratch_name(kernarg: str, number: int) -> str:
    """Return the name of the space for a scratch pointer of a launch, which manifests do not name."""
    return f"_{kernarg[1:]}{number}"


def scratch_of(decision: Decision, numbers: Sequence[int], memory: DeviceMemory, namespace: dict[str, Any]) -> Scratch:
    """Return the scratch memory of the launches with these numbers. Sizes are names, so one source serves all."""
    spaces = [space for space in _spaces(decision, numbers) if space[1]]
    if not spaces:
        return Scratch(frozenset())
    namespace |= {"_workspace": memory.workspace, "_new_scratch": memory.new_scratch}
    namespace |= {f"_bytes_{name}": nbytes for name, nbytes, _ in spaces}
    total = sum(rounded(nbytes) for _, nbytes, _ in spaces)
    free = memory.scratch(total)
    offsets: tuple[str, ...] = ()
    if free is None:
        here = elsewhere = tuple(f"{name}, _owner_{name} = _workspace(_bytes_{name}, _stream)" for name, _, _ in spaces)
        ending: tuple[str, ...] = ()
    else:
        first, *others = _placed(spaces, namespace)
        namespace |= {"_bytes": total, "_pop_scratch": free.pop, "_push_scratch": free.append}
        elsewhere = (f"{first}, _owner = _workspace(_bytes, _stream)",)
        here = ("try: _owner = _pop_scratch()", "except _none_left: _owner = _new_scratch(_bytes)")
        here += (f"{first} = _owner.address",)
        offsets = tuple(f"{name} = {first} + _at_{name}" for name in others)
        ending = ("if not _stream: _push_scratch(_owner)  # work that comes after this call's may have it",)
    zeroing = (f"_fill({name}, 0, _bytes_{name}, _stream)" for name, _, zero in spaces if zero)
    return Scratch(frozenset(name for name, _, _ in spaces), here, elsewhere, (*offsets, *zeroing), ending)


def _spaces(decision: Decision, numbers: Sequence[int]) -> Iterator[tuple[str, int, bool]]:
    """Return (name, bytes, zeroed) of all spaces that the launches use."""
    yield from decision.workspaces
    for number in numbers:
        variant, (x, y, z) = decision.launches[number].variant, decision.launches[number].grid
        for kernarg, scratch in ((GLOBAL_SCRATCH, variant.global_scratch), (PROFILE_SCRATCH, variant.profile_scratch)):
            yield scratch_name(kernarg, number), scratch.bytes * x * y * z, False


def _placed(spaces: Sequence[tuple[str, int, bool]], namespace: dict[str, Any]) -> list[str]:
    offset = 0
    for name, nbytes, _ in spaces:
        namespace[f"_at_{name}"] = offset
        offset += rounded(nbytes)
    return [name for name, _, _ in spaces]
