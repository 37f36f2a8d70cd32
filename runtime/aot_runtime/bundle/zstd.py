"""Zstandard frames, by the standard library from Python 3.14 on, by its backport before. Imported on first use."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from aot_runtime.errors import BundleError

LEVEL = 19
"""Compression level. Compression is done once, so it may be slow."""
_WINDOW_LOG = 23
"""Longest window that a frame may request if its content is shorter: 8 MiB, as for level 19."""


def compress(content: bytes) -> bytes:
    """Compress to one frame that records the content's size. Raises `BundleError` if the library is missing."""
    return need_library().compress(content, level=LEVEL)


def longest_frame(limit: int) -> int:
    """Return the largest size of a frame of `limit` bytes. Incompressible content gets slightly longer."""
    return limit + (limit >> 8) + 128


def decompress(frame: bytes, limit: int) -> bytes:
    """Decompress exactly one frame, to at most `limit` + 1 bytes.

    Memory is bounded by `limit`, whatever the frame requests. Raises `BundleError` if the frame is malformed or the
    library is missing.
    """
    zstd = need_library()
    window = {zstd.DecompressionParameter.window_log_max: max(_WINDOW_LOG, min(limit.bit_length(), 30))}
    decompressor = zstd.ZstdDecompressor(options=window)
    try:
        content: bytes = decompressor.decompress(frame, max_length=limit + 1)
    except zstd.ZstdError as error:
        raise BundleError(f"not a zstd frame of at most {limit} bytes: {error}") from None
    if len(content) <= limit and (not decompressor.eof or decompressor.unused_data):
        raise BundleError("not a single zstd frame: it is truncated, or followed by other data")
    return content


def need_library() -> Any:
    """Import and return the zstd module. Raises `BundleError` if it is missing."""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return importlib.import_module(name)
    except ImportError:
        raise BundleError("zstd needs Python 3.14 or backports.zstd: pip install 'aot-runtime[zstd]'") from None
