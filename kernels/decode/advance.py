"""Prepare the next step of decoding on the device, so that captured graphs need nothing from the host."""

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.tensors import Matrix


@triton.jit
def advance_sequences(
    sampled, block_tables: Matrix, tokens: Matrix, positions, slots, seqlens_k,
    batch, blocks_per_sequence, length, block_size, BLOCK: tl.constexpr,
):  # fmt: skip
    """Append each sequence's sampled token, and compute the slot of its key and value. Grid: (cdiv(batch, BLOCK)).

    sampled: int32 [batch]; block_tables: int32 [batch, blocks_per_sequence]; tokens: int32 [batch, length]; positions,
    slots, seqlens_k: int32 [batch], which describe the last token and are updated to the new one. A sequence of
    `length` tokens stays as it is, and its slot is -1. A token without a block is appended, but its slot is -1.
    """
    await_earlier_launches()
    sequence = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    present = sequence < batch
    position = tl.load(positions + sequence, present, 0) + 1
    grows = present & (position >= 0) & (position < length)
    row = tokens.ptr + sequence * tokens.stride_rows
    tl.store(row + position, tl.load(sampled + sequence, present), grows)
    entry = position // block_size
    has_entry = grows & (entry < blocks_per_sequence)
    block = tl.load(block_tables.ptr + sequence * block_tables.stride_rows + entry, has_entry, -1)
    tl.store(slots + sequence, tl.where(block < 0, -1, block * block_size + position % block_size), present)
    tl.store(positions + sequence, position, grows)
    tl.store(seqlens_k + sequence, position + 1, grows)
