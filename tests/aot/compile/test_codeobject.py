import io
import random
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import triton
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from aot.compile.compiler import compile_job
from aot.targets import TARGETS
from aot_runtime.bundle.codeobject import read_arch, read_code_object
from aot_runtime.errors import BundleError
from tests.support.building import jobs

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


@pytest.fixture(scope="module")
def images():
    archs = ("gfx942", "gfx1100", "sm_80", "sm_90")
    return {arch: compile_job(jobs.softmax(arch, 128)).image for arch in archs}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.arch)
def test_every_target_names_itself(target):
    compiled = compile_job(jobs.product(target.arch))
    code = read_code_object(compiled.image)
    assert read_arch(compiled.image) == code.arch == target.arch
    assert code.format == ("hsaco" if target.backend == "hip" else "cubin")
    metadata = code.kernel("product")
    assert [kernel.symbol for kernel in code.kernels] == ["product"]
    assert metadata.warp_size == target.warp_size
    assert metadata.max_workgroup_size == 4 * target.warp_size
    assert [(arg.offset, arg.size) for arg in metadata.args] == [
        *((0, 8), (8, 8), (16, 8), (24, 4), (28, 4), (32, 4), (40, 8), (48, 8)),
    ]
    kinds = [arg.kind for arg in metadata.args]
    assert kinds == ["pointer"] * 3 + ["value"] * 3 + ["pointer"] * 2
    assert metadata.kernarg_bytes == 56
    assert 16 <= metadata.vgprs <= 512
    assert metadata.allocated_vgprs >= metadata.vgprs
    assert 500 < metadata.code_bytes < len(compiled.image)


@pytest.mark.parametrize("arch", ["gfx942", "sm_80", "sm_90"])
def test_offsets_follow_natural_alignment(arch):
    args = compile_job(jobs.scalars(arch)).metadata.args
    assert [(arg.offset, arg.size) for arg in args] == [
        *((0, 8), (8, 2), (10, 2), (12, 1), (13, 1), (16, 8), (24, 8), (32, 2), (40, 8)),
        *((48, 8), (56, 8)),
    ]


def test_spills_and_accumulation_registers():
    roomy = compile_job(jobs.product("gfx942", 256, 256)).metadata
    assert roomy.agprs > 100
    assert roomy.vgprs > 256, "on gfx942 the figure includes the accumulation registers"
    assert roomy.vgpr_spills == roomy.scratch_bytes == 0
    assert roomy.allocated_vgprs == -(-roomy.vgprs // 8) * 8
    tight = compile_job(jobs.product("gfx942", 256, 256, options=(("waves_per_eu", 2),))).metadata
    assert tight.vgprs <= 256
    assert tight.vgpr_spills > 0
    assert tight.scratch_bytes > 0


def test_waves_per_eu_holds_registers_back():
    metadata = compile_job(jobs.softmax("gfx942", options=(("waves_per_eu", 3),))).metadata
    assert metadata.vgprs < 64
    assert metadata.allocated_vgprs == 136, "the least that leaves room for no more than three waves"


@pytest.mark.parametrize("arch", [target.arch for target in TARGETS if target.backend == "cuda"])
def test_cubins_agree_with_cuobjdump(arch, tmp_path):
    compiled = compile_job(jobs.product(arch, 128, 64, options=(("maxnreg", 128),)))
    file = tmp_path / "kernel.cubin"
    file.write_bytes(compiled.image)
    usage = subprocess.check_output([CUOBJDUMP, "--dump-resource-usage", file], text=True)
    figures = {name: int(value) for name, value in re.findall(r"([A-Z]+):(\d+)", usage)}
    metadata = compiled.metadata
    assert metadata.vgprs == figures["REG"]
    assert metadata.scratch_bytes == figures["STACK"]
    assert metadata.static_lds_bytes == figures["SHARED"]
    dump = subprocess.check_output([CUOBJDUMP, "--dump-elf", file], text=True)
    params = re.findall(r"Ordinal : (\w+)\s+Offset\s+: (\w+)\s+Size\s+: (\w+)", dump)
    numbered = {int(ordinal, 16): (int(offset, 16), int(size, 16)) for ordinal, offset, size in params}
    assert {index: (arg.offset, arg.size) for index, arg in enumerate(metadata.args)} == numbered


def test_hsacos_agree_with_pyelftools(images):
    for arch in ("gfx942", "gfx1100"):
        elf = ELFFile(io.BytesIO(images[arch]))
        symbol = elf.get_section_by_name(".symtab").get_symbol_by_name("softmax")[0]
        assert read_code_object(images[arch]).kernel("softmax").code_bytes == symbol["st_size"]


def test_a_missing_kernel_is_named_with_those_present(images):
    with pytest.raises(BundleError, match=r"no kernel 'nope'; it has: softmax"):
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
def test_what_is_no_code_object(image, message):
    for read in (read_arch, read_code_object):
        with pytest.raises(BundleError, match=message):
            read(image)


def test_an_unknown_architecture(images):
    image = bytearray(images["gfx942"])
    struct.pack_into("<I", image, 48, 0x501)
    with pytest.raises(BundleError, match="0x1"):
        read_arch(bytes(image))


def test_reading_the_architecture_loads_no_parser():
    code = "import sys, aot_runtime.bundle.codeobject; sys.exit(bool({'elftools', 'msgpack'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _read_or_refuse(image: bytes) -> None:
    try:
        read_code_object(image)
    except BundleError as error:
        assert str(error)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100", "sm_80", "sm_90"])
def test_every_truncation_is_refused(images, arch):
    image = images[arch]
    for size in {*range(0, len(image), 97), *range(256), len(image) - 1}:
        with pytest.raises(BundleError):
            read_code_object(image[:size])


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100", "sm_80", "sm_90"])
@given(data=st.data())
@settings(max_examples=300, deadline=1000)
def test_bit_flips_are_read_or_refused(images, arch, data):
    image = bytearray(images[arch])
    for position in data.draw(st.lists(st.integers(0, len(image) * 8 - 1), min_size=1, max_size=8)):
        image[position // 8] ^= 1 << position % 8
    _read_or_refuse(bytes(image))


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100", "sm_80", "sm_90"])
def test_overwritten_words_are_read_or_refused(images, arch):
    """Every word of the headers and metadata replaced by extremes, which random flips rarely hit."""
    words = random.Random(7)
    image = images[arch]
    for position in range(16, len(image) - 8, 4):
        for word in (0, 0xFFFFFFFF, 0x7FFFFFFF, words.getrandbits(32)):
            changed = bytearray(image)
            struct.pack_into("<I", changed, position, word)
            _read_or_refuse(bytes(changed))
