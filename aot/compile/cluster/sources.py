"""The files that a job is compiled from, on their way to a machine that does not have them."""

from __future__ import annotations

import functools
import hashlib
import tempfile
import zlib
from pathlib import Path, PurePosixPath

import msgspec

from ..errors import KernelFileError


@functools.lru_cache(maxsize=64)
def packed_sources(root: str, sources: tuple[tuple[str, str], ...]) -> bytes:
    """The content of each of a job's `sources`. Raises `KernelFileError` where one is not what was hashed."""
    return zlib.compress(msgspec.msgpack.encode([(file, _read(Path(root), file, digest)) for file, digest in sources]))


def _read(root: Path, file: str, digest: str) -> bytes:
    try:
        content = (root / file).read_bytes()
    except OSError as error:
        raise KernelFileError(f"file {file} cannot be read: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise KernelFileError(f"file {file} changed during the build; build again")
    return content


@functools.lru_cache(maxsize=64)
def unpacked_root(packed: bytes) -> Path:
    """A folder from which the files lie as they did from the project's root, once for this process."""
    files = msgspec.msgpack.decode(zlib.decompress(packed), type=list[tuple[str, bytes]])
    root = Path(tempfile.mkdtemp(prefix="aotbuild-sources-"))
    above = max((PurePosixPath(file).parts.count("..") for file, _ in files), default=0)
    for level in range(above):  # for files that are beside the root
        root /= str(level)
    root.mkdir(parents=True, exist_ok=True)
    for file, content in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root
