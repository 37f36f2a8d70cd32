"""Frames of zstd by hand, from the format's description (RFC 8878)."""

from __future__ import annotations

import sys

import pytest

LIBRARY = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
BLOCK = 128 << 10
"""Maximum size of a block of a frame."""


def need_zstd() -> None:
    """Skip a test where the library is missing."""
    pytest.importorskip(LIBRARY, reason="compressing needs the extra `zstd`")


def bomb(blocks: int, window_log: int = 21) -> bytes:
    """Return a frame without its decompressed size: blocks of 4 bytes that expand to 128 KiB of the letter x each."""
    letters = [(BLOCK << 3 | 1 << 1 | (at == blocks - 1)).to_bytes(3, "little") + b"x" for at in range(blocks)]
    return b"\x28\xb5\x2f\xfd\x00" + bytes([window_log - 10 << 3]) + b"".join(letters)
