"""The blocks of a paged cache: who uses each, which tokens' keys and values it has, and which of them can be shared.

Nothing here touches a device: a block is its number.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

Key = bytes
"""Names all the tokens up to the end of a block, and what else their keys and values depend on."""


class BlockPool:
    """Blocks 0 to count - 1, each with the number of its users.

    A block without users keeps its key, and can be shared again, until it is taken for other tokens; of such blocks the
    one that has been unused for the longest time is taken first.
    """

    def __init__(self, count: int):
        self.count = count
        self._users = [0] * count
        self._idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(count))
        self._by_key: dict[Key, int] = {}
        self._keys: dict[int, Key] = {}

    @property
    def free(self) -> int:
        """How many blocks have no users."""
        return len(self._idle)

    def users(self, block: int) -> int:
        """How many have the block."""
        return self._users[block]

    def take(self) -> int:
        """A block for new content, with one user. Raises `LookupError` where none is free."""
        if not self._idle:
            raise LookupError(f"all {self.count} blocks of the cache are in use")
        block, _ = self._idle.popitem(last=False)
        self._by_key.pop(self._keys.pop(block, b""), None)
        self._users[block] = 1
        return block

    def share(self, key: Key) -> int | None:
        """The block that has the key, with one more user; None where there is none."""
        block = self._by_key.get(key)
        if block is not None:
            self._idle.pop(block, None)
            self._users[block] += 1
        return block

    def has(self, key: Key) -> bool:
        """Whether a block has the key."""
        return key in self._by_key

    def idle_with(self, key: Key) -> bool:
        """Whether a block has the key and no users, so that to share it makes one fewer free."""
        return self._by_key.get(key) in self._idle

    def publish(self, block: int, key: Key) -> None:
        """Let others share a block, whose content is final. Where another block has the key already, that stays."""
        if self._users[block] and key not in self._by_key and block not in self._keys:
            self._by_key[key] = block
            self._keys[block] = key

    def give_back(self, block: int) -> None:
        """One user less. Raises `ValueError` where there is none."""
        if not self._users[block]:
            raise ValueError(f"block {block} has no users")
        self._users[block] -= 1
        if not self._users[block]:
            self._idle[block] = None
            self._idle.move_to_end(block, last=block in self._keys)  # what nobody can share is taken first


def keys_of(tokens: Sequence[int], block_size: int, salt: str = "") -> Iterator[Key]:
    """The key of each whole block of a text. salt: what keys and values depend on besides, as an adapter's name."""
    key = hashlib.sha256(salt.encode()).digest()
    for end in range(block_size, len(tokens) + 1, block_size):
        content = np.asarray(tokens[end - block_size : end], np.int64).tobytes()
        key = hashlib.sha256(key + content).digest()
        yield key


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that a sequence of so many tokens needs."""
    return -(-tokens // block_size)
