"""`aotbundle kpack`: writing a bundle's code objects to AMD's archive format, and listing such archives."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import msgspec
import pytest

from aot_bundle.kpack import open_kpack
from aot_bundle.packing import pack_bundle
from aot_runtime.bundle.codeobject import read_code_object
from aot_runtime.bundle.reading import read_index
from tests.aot_bundle.test_kpack import PLAIN_FILE, archive_of
from tests.support.command import aotbundle
from tests.support.forging import edit_index
from tests.support.zstd_frames import need_zstd


@pytest.mark.parametrize("options", [(), ("--uncompressed",)], ids=["zstd", "none"])
def test_written_listed_and_extracted(small_bundle: Path, tmp_path: Path, options: tuple[str, ...]):
    """Each variant has its name of the C header and its launch parameters; the code objects are the bundle's."""
    if not options:
        need_zstd()
    path, index = tmp_path / "small.kpack", read_index(small_bundle)
    result = aotbundle("kpack", "write", small_bundle, "-o", path, *options)
    assert result.exit_code == 0 and result.stdout.startswith(f"{path}: "), result.output
    result = aotbundle("kpack", "ls", path, "--json")
    listed = json.loads(result.stdout)
    assert (listed["group"], listed["archs"], listed["arch_family"]) == ("small", ["gfx942"], "gfx942")
    assert {entry["sha256"] for entry in listed["entries"]} == {blob.sha256 for blob in index.blobs.values()}
    header = (small_bundle / "include/small_variants.h").read_text()
    assert {entry["name"] for entry in listed["entries"]} == set(re.findall(r"aot_kernel (small_\w+) = ", header))
    assert len(listed["entries"]) == len(index.variants)
    text = aotbundle("kpack", "ls", path).stdout
    assert text.startswith(f"small, gfx942: {len(index.variants)} names, {len(index.blobs)} code objects, ")
    with open_kpack(path) as archive:
        for (name, _, entry), variant in zip(archive.entries(), index.variants, strict=True):
            kernel = read_code_object(archive.read(name)).kernel(variant.symbol)
            said = msgspec.msgpack.decode(entry.metadata)
            assert said["symbol"] == kernel.symbol and said["kernarg_bytes"] == variant.kernarg_bytes
            assert (said["threads"], said["lds_bytes"]) == (variant.num_warps * 64, variant.lds_bytes)
    name = listed["entries"][0]["name"]
    assert aotbundle("kpack", "extract", path, name, "-o", tmp_path / "a.hsaco").exit_code == 0
    assert hashlib.sha256((tmp_path / "a.hsaco").read_bytes()).hexdigest() == listed["entries"][0]["sha256"]


def test_an_archive_gives_what_its_folder_gives(small_bundle: Path, tmp_path: Path):
    pack_bundle(small_bundle, tmp_path / "small.aotb")
    for bundle, name in ((small_bundle, "a"), (tmp_path / "small.aotb", "b")):
        assert aotbundle("kpack", "write", bundle, "-o", tmp_path / name, "--uncompressed").exit_code == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_archive_of_somebody_else(tmp_path: Path):
    path = tmp_path / "amd.kpack"
    path.write_bytes(PLAIN_FILE)
    text = aotbundle("kpack", "ls", path).stdout
    assert text.splitlines()[0] == "rocm, gfx900, gfx906: 3 names, 3 code objects, 12 B, none"
    assert "bin/hipcc#0  gfx906       1   3 B     3 B" in text
    result = aotbundle("kpack", "extract", path, "bin/hipcc#0", "-o", tmp_path / "x")
    assert result.exit_code == 1 and "is available for 'gfx900', 'gfx906'" in result.output
    result = aotbundle("kpack", "extract", path, "bin/hipcc#0", "-o", tmp_path / "x", "--arch", "gfx906")
    assert result.exit_code == 0 and (tmp_path / "x").read_bytes() == b"two"
    names = {"\x1b[2J\n": {"gfx942\r": {"ordinal": 0}}}
    path.write_bytes(archive_of(b"code", toc=names, blobs=[{"offset": 16, "size": 4}], group_name="\x1b]0;x\x07"))
    text = aotbundle("kpack", "ls", path).stdout
    assert text.replace("\n", "").isprintable() and len(text.splitlines()) == 3


def test_what_is_not_written(small_copy: Path, tmp_path: Path):
    """Nothing is half-written, and what was there stays."""
    output = tmp_path / "old.kpack"
    output.write_text("old")
    next((small_copy / "code").iterdir()).write_bytes(b"x")
    result = aotbundle("kpack", "write", small_copy, "-o", output)
    assert result.exit_code == 1 and "as kpack: " in result.output
    result = aotbundle("kpack", "ls", output)
    assert result.exit_code == 1 and "is not a supported kpack archive: it is too short" in result.output
    edit_index(small_copy, lambda index: index["target"].update(arch="sm_90", backend="cuda", warp_size=32))
    result = aotbundle("kpack", "write", small_copy, "-o", output)
    assert result.exit_code == 1 and "is for sm_90; a kpack archive is for AMD GPUs" in result.output
    assert output.read_text() == "old" and sorted(p.name for p in tmp_path.iterdir()) == ["dist", "old.kpack"]
    result = aotbundle("kpack", "extract", output, "x", "-o", tmp_path / "none/x")
    assert result.exit_code == 1
