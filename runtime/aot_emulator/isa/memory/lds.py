"""DS instructions: LDS access and cross-lane moves (ISA chapter "Data Share Operations")."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.operands import Registers, Step, vector_register
from aot_emulator.state.access import load, store
from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import Wavefronts

from .atomics import LDS_ATOMICS, Atomic, perform
from .transfers import LDS_LOADS, LDS_STORES, Transfer, data_register, from_registers, to_registers

Addresses = Callable[[Wavefronts], Array]

_TRANSFER = re.compile(r"(?P<action>read|load|write|store)(?P<two>_?2(addr)?)?(st64|_stride64)?_(?P<form>\w+)")
"""CDNA: read_b32, read2_b32, read2st64_b32; RDNA: load_b32, load_2addr_b32, load_2addr_stride64_b32."""


def bind(instruction: Instruction, layout: Registers) -> Step | None:
    """Return the step of a DS instruction, or None if it is not one or not implemented."""
    name = instruction.mnemonic
    if not name.startswith("ds_"):
        return None
    if instruction.field("gds"):
        raise instruction.unsupported("global data share")
    operation = name.removeprefix("ds_")
    if operation == "nop":
        return lambda waves: None
    if operation in _LANE_MOVES:
        return _LANE_MOVES[operation](instruction, layout)
    found = _TRANSFER.fullmatch(operation)
    if found is not None:
        is_load = found["action"] in ("read", "load")
        transfers = LDS_LOADS[instruction.arch.isa] if is_load else LDS_STORES
        if found["form"] in transfers:
            bind_one, bind_two = (_bind_load, _bind_load_two) if is_load else (_bind_store, _bind_store_two)
            return (bind_two if found["two"] else bind_one)(instruction, layout, transfers[found["form"]])
    if operation in _TRANSPOSED:
        return _bind_transposed_load(instruction, layout, _TRANSPOSED[operation])
    atomic = LDS_ATOMICS[instruction.arch.isa].get(operation.replace("rtn_", ""))
    return _bind_atomic(instruction, layout, atomic, "rtn_" in operation) if atomic is not None else None


def _addresses(instruction: Instruction, layout: Registers, offset: int) -> Addresses:
    row = vector_register(instruction, instruction.fields["addr"], False, layout, 1)
    return lambda waves: (waves.u32[row] + np.uint32(offset)).astype(np.int64)


def _offset(instruction: Instruction) -> int:
    return instruction.fields["offset0"] | instruction.fields["offset1"] << 8


def _two_offsets(instruction: Instruction, nbytes: int) -> tuple[int, int]:
    unit = nbytes * (64 if "st64_" in instruction.mnemonic or "stride64_" in instruction.mnemonic else 1)
    return instruction.fields["offset0"] * unit, instruction.fields["offset1"] * unit


def _bind_load(instruction: Instruction, layout: Registers, transfer: Transfer) -> Step:
    addresses = _addresses(instruction, layout, _offset(instruction))
    row, nbytes = data_register(instruction, "vdst", layout, transfer.words), transfer.nbytes

    def step(waves: Wavefronts) -> None:
        places = waves.memory.in_lds(waves, "load", addresses(waves), nbytes, waves.active)
        to_registers(waves, row, transfer, load(places, nbytes, waves.shape))

    return step


def _bind_load_two(instruction: Instruction, layout: Registers, transfer: Transfer) -> Step:
    nbytes = transfer.nbytes
    both = [_addresses(instruction, layout, offset) for offset in _two_offsets(instruction, nbytes)]
    row = data_register(instruction, "vdst", layout, 2 * transfer.words)

    def step(waves: Wavefronts) -> None:
        found = []
        for addresses in both:
            places = waves.memory.in_lds(waves, "load", addresses(waves), nbytes, waves.active)
            found.append(load(places, nbytes, waves.shape))
        for part, values in enumerate(found):
            to_registers(waves, row + part * transfer.words, transfer, values)

    return step


_TRANSPOSED = {"read_b64_tr_b16": 16, "read_b64_tr_b8": 8, "read_b64_tr_b4": 4}
"""Element width of transposed loads. The order of 6-bit elements is undocumented, so they are not supported."""


def _bind_transposed_load(instruction: Instruction, layout: Registers, bits: int) -> Step:
    """Return the step of ds_read_b64_tr (CDNA4, "MFMA Transpose Load from LDS").

    16 lanes load a matrix with 16 columns, whose rows span one or more lanes, and each lane receives a column. The
    order of the lanes is the one that Triton assumes.
    """
    addresses, nbytes = _addresses(instruction, layout, _offset(instruction)), 8
    row = data_register(instruction, "vdst", layout, nbytes // 4)

    def step(waves: Wavefronts) -> None:
        if waves.active is not None:
            raise instruction.unsupported("transposed load with inactive lanes")
        places = waves.memory.in_lds(waves, "load", addresses(waves), nbytes, None)
        to_registers(waves, row, Transfer(nbytes), _transpose(load(places, nbytes, waves.shape), bits))

    return step


def _transpose(words: Array, bits: int) -> Array:
    """Transpose the elements held by each 16 lanes from rows to columns. words: uint32 [words, wavefronts, lanes]."""
    octets = np.ascontiguousarray(np.moveaxis(words, 0, -1)).view(np.uint8)
    if bits == 4:
        elements = np.stack([octets & np.uint8(15), octets >> np.uint8(4)], axis=-1)
    else:
        elements = octets.view(f"u{bits // 8}")
    waves, lanes = words.shape[1:]
    count = 64 // bits  # elements per lane, and rows per matrix
    rows = elements.reshape(waves, lanes // 16, count, 16)
    columns = np.ascontiguousarray(rows.swapaxes(2, 3)).reshape(waves, lanes, count)
    if bits == 4:
        columns = columns[..., 0::2] | columns[..., 1::2] << np.uint8(4)
    return np.moveaxis(np.ascontiguousarray(columns).view(np.uint32), -1, 0)


def _bind_store(instruction: Instruction, layout: Registers, transfer: Transfer) -> Step:
    addresses = _addresses(instruction, layout, _offset(instruction))
    row, nbytes = data_register(instruction, "data0", layout, transfer.words), transfer.nbytes

    def step(waves: Wavefronts) -> None:
        values = from_registers(waves, row, transfer)
        places = waves.memory.in_lds(waves, "store", addresses(waves), nbytes, waves.active, values)
        store(places, nbytes, values)

    return step


def _bind_store_two(instruction: Instruction, layout: Registers, transfer: Transfer) -> Step:
    nbytes = transfer.nbytes
    both = [_addresses(instruction, layout, offset) for offset in _two_offsets(instruction, nbytes)]
    rows = [data_register(instruction, name, layout, transfer.words) for name in ("data0", "data1")]

    def step(waves: Wavefronts) -> None:
        for row, addresses in zip(rows, both, strict=True):
            values = from_registers(waves, row, transfer)
            places = waves.memory.in_lds(waves, "store", addresses(waves), nbytes, waves.active, values)
            store(places, nbytes, values)

    return step


def _bind_atomic(instruction: Instruction, layout: Registers, atomic: Atomic, returns: bool) -> Step:
    addresses, nbytes = _addresses(instruction, layout, _offset(instruction)), 4 * atomic.words
    names = ("data0", "data1")[: atomic.operands]
    if instruction.arch.isa == "cdna":  # CDNA's DS cmpst has the comparand first, unlike memory atomics
        names = names[::-1]
    rows = [data_register(instruction, name, layout, atomic.words) for name in names]
    target = data_register(instruction, "vdst", layout, atomic.words) if returns else None
    flushing = atomic.flushing

    def step(waves: Wavefronts) -> None:
        keeps = waves.mode.keep_in32 if atomic.words == 1 else waves.mode.keep_in16_64
        places = waves.memory.in_lds(waves, "atomic", addresses(waves), nbytes, waves.active)
        operands = [waves.u32[row : row + atomic.words] for row in rows]
        old = perform(atomic if keeps else flushing, places, operands, waves.shape)
        if target is not None:
            to_registers(waves, target, Transfer(nbytes), old)

    return step


# Cross-lane moves through the LDS crossbar, without memory access


def _lane_names(instruction: Instruction) -> Callable[[Array], Array]:
    """Return a function that maps addresses to source lanes; on RDNA3, within each half of a wave64."""
    lane = np.arange(instruction.arch.lanes)
    reach = 32 if instruction.arch.isa == "rdna3" else instruction.arch.lanes
    return lambda addresses: addresses >> 2 & reach - 1 | lane & ~(reach - 1)


def _bind_bpermute(instruction: Instruction, layout: Registers) -> Step:
    """Return the step of a gather between lanes. Inactive source lanes give 0, or their value with `fi`."""
    addresses = _addresses(instruction, layout, _offset(instruction))
    source = data_register(instruction, "data0", layout, 1)
    target = data_register(instruction, "vdst", layout, 1)
    inactive_too, named = "_fi_" in instruction.mnemonic, _lane_names(instruction)

    def step(waves: Wavefronts) -> None:
        lanes = named(addresses(waves))
        values = waves.u32[source] if inactive_too else _active_values(waves, source)
        waves.write(target, np.take_along_axis(values, lanes, 1))

    return step


def _bind_permute(instruction: Instruction, layout: Registers) -> Step:
    """Return the step of a scatter between active lanes. The highest sender wins; lanes without a sender get 0."""
    addresses = _addresses(instruction, layout, _offset(instruction))
    source = data_register(instruction, "data0", layout, 1)
    target, named = data_register(instruction, "vdst", layout, 1), _lane_names(instruction)

    def step(waves: Wavefronts) -> None:
        lanes = named(addresses(waves))
        received = np.zeros(waves.shape, np.uint32)
        wave, lane = np.nonzero(np.ones(lanes.shape, bool) if waves.active is None else waves.active)
        received[wave, lanes[wave, lane]] = waves.u32[source][wave, lane]  # in lane order: the last one wins
        waves.write(target, received)

    return step


def _bind_swizzle(instruction: Instruction, layout: Registers) -> Step:
    offset, lane = _offset(instruction), np.arange(instruction.arch.lanes)
    if offset & 0x8000 and not offset & 0x7F00:  # quad permutation
        lanes = (lane & ~3) + (offset >> 2 * (lane & 3) & 3)
    elif not offset & 0x8000:  # and, or, xor masks within 32 lanes
        lanes = lane & 32 | ((lane & offset & 31) | offset >> 5 & 31) ^ (offset >> 10 & 31)
    else:
        raise instruction.unsupported(f"swizzle mode {offset:#x}")
    source = data_register(instruction, "addr", layout, 1)  # the data, in the address's field
    target = data_register(instruction, "vdst", layout, 1)
    return lambda waves: waves.write(target, _active_values(waves, source)[:, lanes])


def _active_values(waves: Wavefronts, row: int) -> Array:
    return waves.u32[row] if waves.active is None else np.where(waves.active, waves.u32[row], np.uint32(0))


_LANE_MOVES: dict[str, Callable[[Instruction, Registers], Step]] = {
    "bpermute_b32": _bind_bpermute,
    "bpermute_fi_b32": _bind_bpermute,
    "permute_b32": _bind_permute,
    "swizzle_b32": _bind_swizzle,
}
