"""Zstandard frames, by Python's own library from 3.14 on and before by its backport, imported when first needed."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from aot_runtime.errors import BundleError

LEVEL = 19
"""What is compressed is compressed once, and read often."""
_WINDOW_LOG = 23
"""A frame that asks for a longer window than this is refused where its content is shorter: 8 MiB, that of level 19."""


def compress(content: bytes) -> bytes:
    """One frame, which says how long its content is. Raises `BundleError` where the library is missing."""
    return need_library().compress(content, level=LEVEL)


def longest_frame(limit: int) -> int:
    """Bytes that a frame of so many bytes may have: what cannot be compressed gets a little longer."""
    return limit + (limit >> 8) + 128


def decompress(frame: bytes, limit: int) -> bytes:
    """The content of what is one frame and nothing else; of a longer content, the first `limit` + 1 bytes.

    Memory is bounded by `limit` too, whatever the frame asks for. Raises `BundleError` for what is no such frame, and
    where the library is missing.
    """
    zstd = need_library()
    window = {zstd.DecompressionParameter.window_log_max: max(_WINDOW_LOG, min(limit.bit_length(), 30))}
    decompressor = zstd.ZstdDecompressor(options=window)
    try:
        content: bytes = decompressor.decompress(frame, max_length=limit + 1)
    except zstd.ZstdError as error:
        raise BundleError(f"that is no frame of zstd with {limit} bytes at most: {error}") from None
    if len(content) <= limit and (not decompressor.eof or decompressor.unused_data):
        raise BundleError("that is not one frame of zstd: it is truncated, or something follows it")
    return content


def need_library() -> Any:
    """The module, whatever it is called. Raises `BundleError` where it is missing."""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return importlib.import_module(name)
    except ImportError:
        raise BundleError("zstd needs Python 3.14 or backports.zstd: pip install 'aot-runtime[zstd]'") from None
