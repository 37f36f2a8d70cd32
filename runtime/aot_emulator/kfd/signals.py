"""HSA signals, in ROCr's memory layout (`amd_signal_t` in amd_hsa_signal.h)."""

from __future__ import annotations

from collections.abc import Callable

from .address_space import AddressSpace

_VALUE, _MAILBOX, _EVENT, _START, _END = 8, 16, 24, 32, 40


def value_of(memory: AddressSpace, signal: int) -> int:
    """Return the value of a signal."""
    return memory.word(signal + _VALUE, "<q")


def complete(memory: AddressSpace, signal: int, started: int, ended: int, raise_event: Callable[[int], None]) -> None:
    """Decrement a completion signal, store the packet's timestamps, and raise the event that wakes waiters.

    Args:
        signal: address of the signal; 0: none.
        started, ended: timestamps of the GPU clock.
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
