"""kpack archives: files written by hand from AMD's description are read, and forged ones are refused."""

from __future__ import annotations

import hashlib
import itertools
import os
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from aot_bundle.kpack import MAX_CODE_BYTES, MAX_TOC_BYTES, PLAIN, ZSTD, Kpack, open_kpack
from aot_bundle.kpack_writer import Kernel, kpack_parts
from aot_runtime import BundleError
from tests.support.zstd_frames import bomb, need_zstd

# An archive under the scheme "none" with three kernels of two architectures: 16 bytes of header, padding to 64, the
# code objects of 5, 3 and 4 bytes, and at 76 the table of contents, with each field that the description has. That is
# MessagePack: 0x80 + n is a map of n pairs, 0x90 + n an array of n, 0xa0 + n a string of n bytes, and a byte below 0x80
# that number.
PLAIN_FILE = (
    b"KPAK" b"\x01\0\0\0" b"\x4c\0\0\0\0\0\0\0" + bytes(48) + b"first" b"two" b"four"
    b"\x87"
    b"\xaeformat_version" b"\x01"
    b"\xaagroup_name" b"\xa4rocm"
    b"\xafgfx_arch_family" b"\xa6gfx90X"
    b"\xaagfx_arches" b"\x92" b"\xa6gfx900" b"\xa6gfx906"
    b"\xa3toc" b"\x82"
    b"\xabbin/hipcc#0" b"\x82"
    b"\xa6gfx900" b"\x83" b"\xa4type" b"\xa5hsaco" b"\xa7ordinal" b"\x00" b"\xadoriginal_size" b"\x05"
    b"\xa6gfx906" b"\x83" b"\xa4type" b"\xa5hsaco" b"\xa7ordinal" b"\x01" b"\xadoriginal_size" b"\x03"
    b"\xaalib/a.so#0" b"\x81"
    b"\xa6gfx900" b"\x83" b"\xa4type" b"\xa5hsaco" b"\xa7ordinal" b"\x02" b"\xadoriginal_size" b"\x04"
    b"\xb2compression_scheme" b"\xa4none"
    b"\xa5blobs" b"\x93"
    b"\x82" b"\xa6offset" b"\x40" b"\xa4size" b"\x05"
    b"\x82" b"\xa6offset" b"\x45" b"\xa4size" b"\x03"
    b"\x82" b"\xa6offset" b"\x48" b"\xa4size" b"\x04"
)  # fmt: skip

# The same of one kernel under the scheme "zstd-per-kernel": at 64 the number of frames, the size of the frame, 14, and
# the frame: its magic number, that it is of one segment of 5 bytes, and one last block of 5 bytes as they are.
FRAME = b"\x28\xb5\x2f\xfd\x20\x05\x29\0\0first"
ZSTD_FILE = (
    b"KPAK" b"\x01\0\0\0" b"\x56\0\0\0\0\0\0\0" + bytes(48) + b"\x01\0\0\0" b"\x0e\0\0\0" + FRAME +
    b"\x84"
    b"\xb2compression_scheme" b"\xafzstd-per-kernel"
    b"\xabzstd_offset" b"\x40"
    b"\xa9zstd_size" b"\x16"
    b"\xa3toc" b"\x81"
    b"\xa9bin/hipcc" b"\x81"
    b"\xa6gfx942" b"\x83" b"\xa4type" b"\xa5hsaco" b"\xa7ordinal" b"\x00" b"\xadoriginal_size" b"\x05"
)  # fmt: skip


def opened(path: Path, data: bytes) -> dict[tuple[str, str], bytes]:
    """Return all code objects of an archive."""
    path.write_bytes(data)
    with open_kpack(path) as archive:
        return {(name, arch): archive.read(name, arch) for name, arch, _ in archive.entries()}


def messagepack(value: Any) -> bytes:
    """Encode MessagePack by its specification, with the longest form of each length and number."""
    match value:
        case int():
            return struct.pack(">BQ", 0xCF, value)
        case bytes():
            return value
        case str():
            return struct.pack(">BI", 0xDB, len(value.encode())) + value.encode()
        case list():
            return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(messagepack, value))
    return struct.pack(">BI", 0xDF, len(value)) + b"".join(messagepack(part) for pair in value.items() for part in pair)


def archive_of(stored: bytes, **fields: Any) -> bytes:
    """Return an archive whose code objects begin right behind the header, as some of AMD's do."""
    return struct.pack("<4sIQ", b"KPAK", 1, 16 + len(stored)) + stored + messagepack(fields)


def entry(ordinal: int = 0, **fields: Any) -> dict[str, Any]:
    return {"name": {"gfx942": {"ordinal": ordinal, **fields}}}


def test_a_plain_archive(tmp_path: Path):
    assert opened(tmp_path / "a", PLAIN_FILE) == {
        ("bin/hipcc#0", "gfx900"): b"first", ("bin/hipcc#0", "gfx906"): b"two", ("lib/a.so#0", "gfx900"): b"four",
    }  # fmt: skip
    with open_kpack(tmp_path / "a") as archive:
        contents = archive.contents
        assert (contents.group_name, contents.gfx_arch_family) == ("rocm", "gfx90X")
        assert contents.gfx_arches == ("gfx900", "gfx906") and contents.compression_scheme == PLAIN
        assert archive.read("lib/a.so#0") == b"four"
        for name, arch, message in (
            ("lib/a.so", "", "no entry named 'lib/a.so'"),
            ("bin/hipcc#0", "", "is available for 'gfx900', 'gfx906'; pass one of them"),
            ("lib/a.so#0", "gfx906", "is available for 'gfx900'"),
        ):
            with pytest.raises(BundleError, match=message):
                archive.read(name, arch)


def test_a_compressed_archive(tmp_path: Path):
    need_zstd()
    assert opened(tmp_path / "a", ZSTD_FILE) == {("bin/hipcc", "gfx942"): b"first"}
    with open_kpack(tmp_path / "a") as archive:
        assert archive.contents.compression_scheme == ZSTD and archive.places[0].size == len(FRAME)


def test_what_the_description_leaves_open(tmp_path: Path):
    """Unknown and missing fields, metadata of any form, and long forms of numbers and lengths are accepted."""
    blobs = [{"offset": 16, "size": 4}]
    metadata = [{"symbol": 3}, ["x"], 7, {"symbol": "kernel", "cache_key": "k"}, {}]
    for said in metadata:
        data = archive_of(b"code", toc=entry(metadata=said), blobs=blobs, variant_metadata={"name": {"pad": 1}})
        assert opened(tmp_path / "a", data) == {("name", "gfx942"): b"code"}
        with open_kpack(tmp_path / "a") as archive:
            ((_, _, found),) = archive.entries()
            assert found.said.symbol == ("kernel" if "cache_key" in said else "") if isinstance(said, dict) else True


def test_every_byte_and_every_length(tmp_path: Path):
    """Each changed byte, and each beginning of the file, gives an error that names the file, or code that is no longer
    than before."""
    need_zstd()
    for data in (PLAIN_FILE, ZSTD_FILE):
        for at in range(len(data)):
            found = opened_or_refused(tmp_path / "a", data[:at] + bytes([data[at] ^ 0x81]) + data[at + 1 :])
            assert all(len(code) <= len(data) for code in found.values())
        for length in range(0, len(data), 3):
            assert opened_or_refused(tmp_path / "a", data[:length]) == {}


def opened_or_refused(path: Path, data: bytes) -> dict[tuple[str, str], bytes]:
    try:
        return opened(path, data)
    except BundleError as error:
        assert str(path) in str(error)
        return {}


HUGE = 2**63 - 1
ONE = [{"offset": 16, "size": 4}]
LONG_MAP, LONG_ARRAY = (struct.pack(">BI", code, 2**32 - 1) for code in (0xDF, 0xDD))
FORGED = {
    "begins with": b"PK\3\4" + PLAIN_FILE[4:],
    "version 2;": PLAIN_FILE[:4] + b"\2" + PLAIN_FILE[5:],
    "too short for a header": b"KPAK",
    "its table of contents is at 0": PLAIN_FILE[:8] + bytes(8) + PLAIN_FILE[16:],
    "its table of contents is at 18446744073709551615": PLAIN_FILE[:8] + b"\xff" * 8 + PLAIN_FILE[16:],
    "at most 16777216 bytes": struct.pack("<4sIQ", b"KPAK", 1, 16) + bytes(MAX_TOC_BYTES + 1),
    "missing required field `toc`": archive_of(b"", gfx_arches=[]),
    "Expected `object`, got `array`": PLAIN_FILE[:76] + b"\x90",
    "table of contents: ": PLAIN_FILE + b"x",
    "of version 7": archive_of(b"", toc={}, format_version=7),
    "is code object 1 of 1": archive_of(b"code", toc=entry(1), blobs=ONE),
    "is code object 9223372036854775807 of 0": archive_of(b"", toc=entry(HUGE)),
    "4 bytes at 16 are not between": archive_of(b"cod", toc=entry(), blobs=ONE),
    "4 bytes at 15 are not between": archive_of(b"code", toc=entry(), blobs=[{"offset": 15, "size": 4}]),
    "at 9223372036854775807 are not": archive_of(b"code", toc=entry(), blobs=[{"offset": HUGE, "size": HUGE}]),
    "it has 4 bytes or more; its entry says 3": archive_of(b"code", toc=entry(original_size=3), blobs=ONE),
    "268435457 bytes; 268435456 are": archive_of(b"code", toc=entry(original_size=MAX_CODE_BYTES + 1), blobs=ONE),
    "stored as 'lzma'": archive_of(b"", toc={}, compression_scheme="lzma"),
    "it was altered": archive_of(b"code", toc=entry(metadata={"sha256": "0" * 64}), blobs=ONE),
    "`object` of length <= 64": archive_of(b"", toc={"n": {str(at): {"ordinal": 0} for at in range(65)}}),
    "`object` of length <= 65536": archive_of(b"", toc=LONG_MAP),
    "`array` of length <= 65536": archive_of(b"", toc={}, blobs=LONG_ARRAY),
    "more than 65536 entries": archive_of(
        b"code", toc={f"n{at}": {f"a{of}": {"ordinal": 0} for of in range(64)} for at in range(1025)}, blobs=ONE
    ),
    "truncated": archive_of(b"", toc={}, other=LONG_ARRAY),
}


@pytest.mark.parametrize("message", FORGED)
def test_forged(tmp_path: Path, message: str):
    with pytest.raises(BundleError) as caught:
        opened(tmp_path / "a", FORGED[message])
    assert message in str(caught.value)


def frames(*stored: bytes, count: int | None = None, **fields: Any) -> bytes:
    """Return an archive of these frames of zstd, each preceded by its size."""
    run = struct.pack("<I", len(stored) if count is None else count) + b"".join(stored)
    fields = {"zstd_offset": 16, "zstd_size": len(run), "toc": entry(original_size=5), **fields}
    return archive_of(run, compression_scheme=ZSTD, **fields)


SIZED = struct.pack("<I", len(FRAME)) + FRAME
BOMB = struct.pack("<I", len(bomb(8192))) + bomb(8192)
FORGED_FRAMES = {
    "does not say how long it is": frames(SIZED, toc=entry()),
    "is code object 0 of 0": frames(),
    "its zstd frames do not fit": frames(SIZED, count=2),
    "4294967295 code objects; 65536 are": frames(SIZED, count=2**32 - 1),
    "end at 38, but their section at 39": frames(SIZED, b"x", count=1),
    "end at 1024, but their section at 38": frames(struct.pack("<I", 1000) + FRAME),
    "22 bytes at 9223372036854775807 are not": frames(SIZED, zstd_offset=HUGE),
    "9223372036854775807 bytes at 16 are not": frames(SIZED, zstd_size=HUGE),
    "frames do not fit in their section": frames(SIZED, zstd_size=0),
    "5 bytes or more; its entry says 4": frames(SIZED, toc=entry(original_size=4)),
    "5 bytes or more; its entry says 6": frames(SIZED, toc=entry(original_size=6)),
    "not a single zstd frame": frames(struct.pack("<I", len(FRAME) - 1) + FRAME[:-1]),
}


@pytest.mark.parametrize("message", FORGED_FRAMES)
def test_forged_frames(tmp_path: Path, message: str):
    need_zstd()
    with pytest.raises(BundleError) as caught:
        opened(tmp_path / "a", FORGED_FRAMES[message])
    assert message in str(caught.value)


def test_a_bomb(tmp_path: Path):
    """1 GiB in 32 KiB: no more is decompressed than the table says."""
    need_zstd()
    tracemalloc.start()
    with pytest.raises(BundleError, match="it has 6 bytes or more; its entry says 5"):
        opened(tmp_path / "a", frames(BOMB))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("deep", [b"\x91" * 100_000, b"\x81\xa1x" * 100_000], ids=["arrays", "maps"])
def test_nesting(tmp_path: Path, deep: bytes):
    """Nesting is bounded in skipped values, in values of a wrong type, and in values that are kept."""
    for data in (
        archive_of(b"", toc={}, other=deep),
        archive_of(b"", toc=deep),
        archive_of(b"code", toc=entry(metadata=deep), blobs=ONE),
    ):
        with pytest.raises(BundleError):
            opened(tmp_path / "a", data)


@pytest.mark.slow
def test_the_largest_table(tmp_path: Path):
    """16 MiB of the shortest entries take seconds, not minutes."""
    key = [b"\xa2" + bytes(pair) for pair in itertools.islice(itertools.product(range(33, 99), repeat=2), 64)]
    archs = b"\xde\x00\x40" + b"".join(name + b"\x81\xa7ordinal\x00" for name in key)
    count = MAX_TOC_BYTES // (len(archs) + 6)
    toc = struct.pack(">BI", 0xDF, count) + b"".join(b"\xa4%04x" % at + archs for at in range(count))
    (tmp_path / "a").write_bytes(archive_of(b"code", toc=toc, blobs=ONE))
    start = time.process_time()
    with open_kpack(tmp_path / "a") as archive:
        assert sum(1 for _ in archive.entries()) == 64 * count > 1_000_000
    assert time.process_time() - start < 30


def test_what_is_no_file(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("pipe", "not a regular file"), (".", "directory"), ("none", "No such")):
        with pytest.raises(BundleError, match=message), open_kpack(tmp_path / name):
            pass


def test_a_file_that_is_shortened_while_it_is_read(tmp_path: Path):
    (tmp_path / "a").write_bytes(archive_of(bytes(1 << 20), toc=entry(), blobs=[{"offset": 16, "size": 1 << 20}]))
    with open_kpack(tmp_path / "a") as archive:
        os.truncate(tmp_path / "a", 100)
        with pytest.raises(BundleError, match="it was truncated while"):
            archive.read("name")


@pytest.mark.parametrize("is_compressed", [False, True])
def test_written_and_read(tmp_path: Path, is_compressed: bool):
    """Code that several names share is stored once; the same kernels give the same bytes, in the layout of the
    description."""
    if is_compressed:
        need_zstd()
    codes = {"a": b"x" * 1000, "b": b"", "c": b"x" * 1000, "d": os.urandom(300)}
    digests = {name: hashlib.sha256(code).hexdigest() for name, code in codes.items()}
    kernels = [Kernel(name, code, {"symbol": f"k_{name}", "sha256": digests[name]}) for name, code in codes.items()]
    data = b"".join(kpack_parts("group", "gfx942", kernels, is_compressed))
    assert data == b"".join(kpack_parts("group", "gfx942", kernels, is_compressed))
    assert opened(tmp_path / "a", data) == {(name, "gfx942"): code for name, code in codes.items()}
    with open_kpack(tmp_path / "a") as archive:
        check_layout(archive, data, is_compressed)


def check_layout(archive: Kpack, data: bytes, is_compressed: bool) -> None:
    contents = archive.contents
    assert (contents.group_name, contents.gfx_arch_family, contents.gfx_arches) == ("group", "gfx942", ("gfx942",))
    assert [(name, entry.ordinal, entry.said.symbol) for name, _, entry in archive.entries()] == [
        ("a", 0, "k_a"), ("b", 1, "k_b"), ("c", 0, "k_c"), ("d", 2, "k_d"),
    ]  # fmt: skip
    assert data[:8] == b"KPAK\x01\0\0\0" and data[16:64] == bytes(48) and len(archive.places) == 3
    if is_compressed:
        assert struct.unpack_from("<II", data, 64) == (3, archive.places[0].size)
        assert archive.places[0].offset == 72 and contents.zstd_offset == 64
    else:
        assert [place.offset for place in archive.places] == [64, 1064, 1064]
