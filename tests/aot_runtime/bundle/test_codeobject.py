"""Metadata of code objects agrees with LLVM's and NVIDIA's tools; other files are refused."""

from __future__ import annotations

import io
import random
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from aot_runtime.bundle.codeobject import read_code_object
from aot_runtime.bundle.elf_header import read_arch
from aot_runtime.errors import BundleError

pytest.importorskip("triton", reason="code objects are compiled with the extra `build`")

import triton
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.compile.compiler import compile_job
from aot.targets import TARGETS, Target
from tests.support.amd_assembly import assembled
from tests.support.building import jobs
from tests.support.emulation.assembled import link_several

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
FORMATS = ("gfx942", "sm_90")


@pytest.fixture(scope="module")
def images() -> dict[str, bytes]:
    return {arch: compile_job(jobs.scalars(arch)).image for arch in FORMATS}


def test_what_an_image_uses_and_does_not_define(images: dict[str, bytes]):
    """Only AMD's images are checked: CUDA's driver has functions of its own, such as that which prints."""
    image = images["gfx942"]
    table = ELFFile(io.BytesIO(image)).get_section_by_name(".symtab")
    number = next(at for at, symbol in enumerate(table.iter_symbols()) if symbol.name == "every_type")
    section = table["sh_offset"] + 24 * number + 6
    altered = image[:section] + bytes(2) + image[section + 2 :]
    assert [read_code_object(one).undefined for one in (image, altered)] == [(), ("every_type",)]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.arch)
def test_every_target(target: Target, tmp_path: Path):
    """Arguments lie at multiples of their sizes."""
    image = compile_job(jobs.scalars(target.arch)).image
    code = read_code_object(image)
    assert read_arch(image) == code.arch == target.arch
    assert code.format == ("hsaco" if target.backend == "hip" else "cubin")
    assert [kernel.symbol for kernel in code.kernels] == ["every_type"]
    metadata = code.kernel("every_type")
    assert (metadata.warp_size, metadata.max_workgroup_size) == (target.warp_size, 4 * target.warp_size)
    assert [(arg.offset, arg.size) for arg in metadata.args] == [
        *((0, 8), (8, 2), (10, 2), (12, 1), (13, 1), (16, 8), (24, 8), (32, 2), (40, 8)),
        *((48, 8), (56, 8)),
    ]
    assert [arg.kind for arg in metadata.args] == ["pointer", *["value"] * 8, "pointer", "pointer"]
    assert metadata.kernarg_bytes == 64
    if target.backend == "hip":
        symbol = ELFFile(io.BytesIO(image)).get_section_by_name(".symtab").get_symbol_by_name("every_type")[0]
        assert metadata.code_bytes == symbol["st_size"]
        return
    (tmp_path / "kernel.cubin").write_bytes(image)
    usage = subprocess.check_output([CUOBJDUMP, "--dump-resource-usage", tmp_path / "kernel.cubin"], text=True)
    figures = {name: int(value) for name, value in re.findall(r"([A-Z]+):(\d+)", usage)}
    found = (metadata.vgprs, metadata.scratch_bytes, metadata.static_lds_bytes)
    assert found == (figures["REG"], figures["STACK"], figures["SHARED"])
    assert 256 <= metadata.code_bytes < len(image) and metadata.allocated_vgprs >= metadata.vgprs


@pytest.mark.parametrize("used", ["v40", "v255", "a20", "all"])
@pytest.mark.parametrize("arch", ["gfx908", "gfx942", "gfx1100", "gfx1201"])
def test_registers_and_spills(arch: str, used: str):
    """The figures are LLVM's own; values that do not fit in the registers are spilled."""
    text, image = assembled(arch, used)
    metadata = read_code_object(image).kernel("kernel")
    said = {name: int(value) for name, value in re.findall(r"\.(\w+): +(\d+)$", text, re.MULTILINE)}
    names = ("vgpr_count", "sgpr_count", "vgpr_spill_count", "private_segment_fixed_size")
    found = (metadata.vgprs, metadata.sgprs, metadata.vgpr_spills, metadata.scratch_bytes)
    assert found == tuple(said[name] for name in names) and metadata.agprs == said.get("agpr_count", 0)
    assert (metadata.vgpr_spills > 0) == (used == "all") and metadata.allocated_vgprs >= metadata.vgprs


def test_a_missing_kernel_is_named_with_those_present(images: dict[str, bytes]):
    with pytest.raises(BundleError, match=r"no kernel 'nope'; it has: every_type"):
        read_code_object(images["gfx942"]).kernel("nope")


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"", "not a 64-bit"),
        (b"\x7fELF", "not a 64-bit"),
        (b"PK\x03\x04" + bytes(100), "not a 64-bit"),
        (b"\x7fELF\x01\x01" + bytes(100), "not a 64-bit"),
        (b"\x7fELF\x02\x01" + bytes(100), "machine 0"),
    ],
)
def test_what_is_no_code_object(image: bytes, message: str):
    for read in (read_arch, read_code_object):
        with pytest.raises(BundleError, match=message):
            read(image)


def test_an_unknown_architecture(images: dict[str, bytes]):
    image = bytearray(images["gfx942"])
    struct.pack_into("<I", image, 48, 0x501)
    with pytest.raises(BundleError, match="0x1"):
        read_arch(bytes(image))


def test_reading_the_architecture_loads_no_parser():
    code = "import sys, aot_runtime.bundle.codeobject; sys.exit(bool({'elftools', 'click'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def read_or_refuse(image: bytes) -> None:
    try:
        read_code_object(image)
    except BundleError as error:
        assert str(error)


@pytest.mark.parametrize("arch", FORMATS)
def test_every_truncation_is_refused(images: dict[str, bytes], arch: str):
    image = images[arch]
    for size in {*range(0, len(image), 97), *range(256), len(image) - 1}:
        with pytest.raises(BundleError):
            read_code_object(image[:size])


@pytest.mark.parametrize("arch", FORMATS)
@given(data=st.data())
@settings(max_examples=100, deadline=1000)
def test_bit_flips_are_read_or_refused(images: dict[str, bytes], arch: str, data: st.DataObject):
    image = bytearray(images[arch])
    for position in data.draw(st.lists(st.integers(0, len(image) * 8 - 1), min_size=1, max_size=8)):
        image[position // 8] ^= 1 << position % 8
    read_or_refuse(bytes(image))


@pytest.mark.parametrize("arch", FORMATS)
def test_overwritten_words_are_read_or_refused(images: dict[str, bytes], arch: str):
    """Every word of the headers and metadata is replaced by extremes, which random flips rarely hit."""
    words = random.Random(7)
    image = images[arch]
    for position in range(16, len(image) - 8, 4):
        for word in (0, 0xFFFFFFFF, 0x7FFFFFFF, words.getrandbits(32)):
            changed = bytearray(image)
            struct.pack_into("<I", changed, position, word)
            read_or_refuse(bytes(changed))


def test_kernels_of_every_note_are_read():
    """A linker keeps the note of each object that it links."""
    found = read_code_object(link_several(first="s_nop 0", second="s_nop 1"))
    assert [(kernel.symbol, kernel.kernarg_bytes, kernel.code_bytes) for kernel in found.kernels] == [
        ("first", 16, 0), ("second", 16, 0),
    ]  # fmt: skip
