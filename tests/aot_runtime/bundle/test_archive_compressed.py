"""Compressed code objects in an archive: readers see the plain files, and decompress only requested bytes."""

from __future__ import annotations

import os
import sys
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

import pytest

from aot_runtime import BundleError
from aot_runtime.bundle.archive import Archive, compressed, parts
from aot_runtime.bundle.zstd import compress, decompress
from tests.support.zstd_frames import BLOCK, LIBRARY, bomb, need_zstd

need_zstd()

FRAME = compress(b"x" * 9000)


def archive(folder: Path, files: Mapping[str, bytes]) -> Archive:
    (folder / "a").write_bytes(b"".join(parts(files)))
    return Archive(folder / "a")


def test_what_gets_shorter_by_a_page_is_compressed(tmp_path: Path):
    """Only code objects are compressed, whatever their names."""
    names = ("bundle.json", "bundle.json.zst", "stubs/x.zst", "code/below/x", "other/code/x.hsaco")
    plain = dict.fromkeys(names, b"x" * 9000) | {"code/random": os.urandom(9000), "code/short": b"x" * 4096}
    long = {"code/0123.hsaco": b"x" * 4097, "code/1.cubin": b"y" * 9000}
    stored = compressed(plain | long)
    assert stored.keys() == plain.keys() | {"code/0123.hsaco.zst", "code/1.cubin.zst"}
    assert stored.items() >= plain.items()
    opened = archive(tmp_path, stored)
    assert {name: opened.read(name, 1 << 20) for name in opened.names()} == plain | long
    assert opened.stored() == stored and "code/0123.hsaco" in opened.names("code")
    assert opened.read("code/0123.hsaco", 10) == b"x" * 11 and opened.read("code/0123.hsaco", 4097) == b"x" * 4097
    with pytest.raises(FileNotFoundError):
        opened.read("code/0123.hsaco.zst", 1 << 20)


FRAMES = [b"", b"x" * 50, FRAME[:-1], FRAME + b"x", FRAME * 2, FRAME[:4] + b"\xff" + FRAME[5:]]


@pytest.mark.parametrize("frame", FRAMES)
def test_what_is_no_frame(tmp_path: Path, frame: bytes):
    with pytest.raises(BundleError, match=r"a: code/1\.zst: not a (single )?zstd frame"):
        archive(tmp_path, {"bundle.json": b"{}", "code/1.zst": frame}).read("code/1", 1 << 20)


def test_bombs(tmp_path: Path):
    """A bomb of 1 GiB in 32 KiB gives only what was asked for. A frame with a window of 16 MiB is refused."""
    opened = archive(tmp_path, {"bundle.json": b"{}", "code/1.zst": bomb(8192)})
    tracemalloc.start()
    assert opened.read("code/1", 1000) == opened.read("code/1", 1000) == b"x" * 1001
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert decompress(bomb(2), 2 * BLOCK) == b"x" * 2 * BLOCK
    with pytest.raises(BundleError, match="Frame requires too much memory"):
        decompress(bomb(2, window_log=24), 2 * BLOCK)


def test_a_file_that_is_there_plain_and_compressed(tmp_path: Path):
    with pytest.raises(BundleError, match="one is there twice"):
        archive(tmp_path, {"bundle.json": b"{}", "code/1": b"x", "code/1.zst": FRAME})


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Plain members are read; for compressed ones the error names the missing package."""
    opened = archive(tmp_path, {"bundle.json": b"{}", "code/1.zst": FRAME})
    monkeypatch.setitem(sys.modules, LIBRARY, None)
    assert opened.read("bundle.json", 10) == b"{}"
    with pytest.raises(BundleError, match=r"pip install 'aot-runtime\[zstd\]'"):
        opened.read("code/1", 10_000)
    with pytest.raises(BundleError, match=r"pip install 'aot-runtime\[zstd\]'"):
        compressed({"code/1": b"x"})
