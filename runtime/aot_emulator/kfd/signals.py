"""HSA signals, as ROCr lays them out in memory (`amd_signal_t` of its amd_hsa_signal.h)."""

from __future__ import annotations

from collections.abc import Callable

from .address_space import AddressSpace

_VALUE, _MAILBOX, _EVENT, _START, _END = 8, 16, 24, 32, 40


def value_of(memory: AddressSpace, signal: int) -> int:
    """The value of a signal."""
    return memory.word(signal + _VALUE, "<q")


def complete(memory: AddressSpace, signal: int, started: int, ended: int, raise_event: Callable[[int], None]) -> None:
    """Count a signal down, as the end of a packet does: with the packet's times, and an event for who sleeps.

    signal: its address; 0: there is none. started, ended: of the GPU's clock.
    """
    if not signal:
        return
    memory.put_word(signal + _START, started)
    memory.put_word(signal + _END, ended)
    memory.put_word(signal + _VALUE, value_of(memory, signal) - 1, "<q")
    mailbox, event = memory.word(signal + _MAILBOX), memory.word(signal + _EVENT, "<I")
    if mailbox:
        memory.put_word(mailbox, event)
        raise_event(event)
