"""Reference counts and content keys of the blocks of a paged cache. No device is used here: a block is a number."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

Key = bytes
"""A hash of all tokens up to the end of a block, and of everything else that keys and values depend on."""


class BlockPool:
    """Blocks 0 to count - 1 with reference counts.

    A free block keeps its key and can be shared again until it is taken. The least recently used one is taken first.
    """

    def __init__(self, count: int):
        self.count = count
        self._users = [0] * count
        self._idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))
        self._by_key: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}

    @property
    def free(self) -> int:
        """The number of free blocks."""
        return len(self._idle)

    def users(self, block: int) -> int:
        """The reference count of a block."""
        return self._users[block]

    def take(self) -> int:
        """Take a block for new content. Raises `LookupError` if none is free."""
        if not self._idle:
            raise LookupError(f"all {self.count} blocks of the cache are in use")
        block, _ = self._idle.popitem(last=False)
        self._by_key.pop(self._keys.pop(block, b""), None)
        self._users[block] = 1
        return block

    def share(self, key: Key) -> int | None:
        """Share the block with this key; None if there is none."""
        block = self._by_key.get(key)
        if block is not None:
            self._idle.pop(block, None)
            self._users[block] += 1
        return block

    def has(self, key: Key) -> bool:
        """True if a block has the key."""
        return key in self._by_key

    def idle_with(self, key: Key) -> bool:
        """True if a free block has the key, so that sharing it leaves one free block less."""
        return self._by_key.get(key) in self._idle

    def publish(self, block: int, key: Key) -> None:
        """Make a block with final content available for sharing, unless another block has the key already."""
        if self._users[block] and key not in self._by_key and block not in self._keys:
            self._by_key[key] = block
            self._keys[block] = key

    def give_back(self, block: int) -> None:
        """Release a block. Raises `ValueError` if it is free already."""
        if not self._users[block]:
            raise ValueError(f"block {block} has no users")
        self._users[block] -= 1
        if not self._users[block]:
            self._idle[block] = None
            self._idle.move_to_end(block, last=block in self._keys)  # blocks without a key are taken first


def keys_of(tokens: Sequence[int], block_size: int, salt: str = "") -> Iterator[Key]:
    """The keys of the full blocks of a text. salt: further data that keys and values depend on, such as an adapter."""
    key = hashlib.sha256(salt.encode()).digest()
    for end in range(block_size, len(tokens) + 1, block_size):
        content = np.asarray(tokens[end - block_size : end], np.int64).tobytes()
        key = hashlib.sha256(key + content).digest()
        yield key


def blocks_for(tokens: int, block_size: int) -> int:
    """The number of blocks for a sequence of `tokens` tokens."""
    return -(-tokens // block_size)
