"""Assemble kernels to code objects with LLVM's assembler and linker, and run them."""

from __future__ import annotations

import re
import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot_emulator import ARCHS, EmulatorDriver, Options, Order, Statistics
from aot_emulator.errors import MemoryAccessError, SanitizerError
from tests.support.emulation.machine import features, translated
from tests.support.emulation.values import arch_of

POINTER = "s_load_dwordx2 s[4:5], s[0:1], 0x0\nwait scalars\nv_lshlrev_b32 v1, 2, v0\n"
"""The array in s[4:5], and the byte offset of the thread's dword in v1."""
RESOURCE = "s_mov_b32 s8, s4\ns_mov_b32 s9, s5\ns_mov_b32 s10, 256\ns_mov_b32 s11, 0x27000\n"
"""A buffer of 256 bytes of it in s[8:11]."""
WAVE = "v_readfirstlane_b32 s6, v0\ns_lshr_b32 s6, s6, 6\n"
"""The wavefront's number in s6."""
ORDERS = pytest.mark.parametrize("order", tuple(Order), ids=lambda order: order.value)
_PRIVATE = ".amdhsa_enable_private_segment 1\n.amdhsa_user_sgpr_count 2\n"
_CDNA, _RDNA = ".amdhsa_accum_offset 64", f"{_PRIVATE}.amdhsa_wavefront_size32 "
_OF_ARCH = {
    "gfx942": _PRIVATE + _CDNA, "gfx950": _PRIVATE + _CDNA, "gfx1100": _RDNA + "1", "gfx1151": _RDNA + "1",
    "gfx1201": _RDNA + "1", "gfx1100-wave64": _RDNA + "0",
    "gfx90a": f""".amdhsa_user_sgpr_private_segment_buffer 1
  .amdhsa_user_sgpr_flat_scratch_init 1
  .amdhsa_system_sgpr_private_segment_wavefront_offset 1
  {_CDNA}""",
}  # fmt: skip
_TEXT = """.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
.text
.globl kernel
.p2align 8
.type kernel,@function
kernel:
{body}
s_endpgm
end:
.size kernel, end-kernel
.rodata
.p2align 6
.amdhsa_kernel kernel
  .amdhsa_group_segment_fixed_size 4096
  .amdhsa_private_segment_fixed_size 64
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_next_free_vgpr 128
  .amdhsa_next_free_sgpr 32
  {of_arch}
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - {{.name: kernel, .symbol: kernel.kd, .kernarg_segment_size: 16, .group_segment_fixed_size: 4096, .sgpr_count: 32,
     .private_segment_fixed_size: 64, .kernarg_segment_align: 8, .wavefront_size: {lanes}, .vgpr_count: 128,
     .max_flat_workgroup_size: 1024, .args: [
      {{.name: input, .size: 8, .offset: 0, .value_kind: global_buffer, .address_space: global}},
      {{.name: output, .size: 8, .offset: 8, .value_kind: global_buffer, .address_space: global}}]}}
...
.end_amdgpu_metadata
"""
_VMCNT, _LGKMCNT = "s_waitcnt vmcnt({})", "s_waitcnt lgkmcnt({})"
WAITS = {
    "cdna": {"loads": _VMCNT, "stores": _VMCNT, "lds": _LGKMCNT, "scalars": _LGKMCNT},
    "rdna3": {"loads": _VMCNT, "stores": "s_waitcnt_vscnt null, {:#x}", "lds": _LGKMCNT, "scalars": _LGKMCNT},
    "rdna4": {"loads": "s_wait_loadcnt {:#x}", "stores": "s_wait_storecnt {:#x}", "lds": "s_wait_dscnt {:#x}",
              "scalars": "s_wait_kmcnt {:#x}"},
}  # fmt: skip
"""ISA → instructions that wait until a number of accesses is left."""


def in_words_of(arch: str, body: str) -> str:
    """Translate lines from gfx942's words, where `wait loads` stands for a wait for all loads, and `wait loads 2` for
    all but two."""

    def line_of(line: str) -> str:
        if not line.startswith("wait "):
            return translated(line, arch)
        kind, left = (*line.split()[1:], "0")[:2]
        return WAITS[arch_of(arch).isa][kind].format(int(left))

    return "\n".join(map(line_of, body.split("\n")))


@cache
def link(body: str, arch: str = "gfx942") -> bytes:
    """Return a code object with one kernel of these instructions; it ends behind them. s[0:1] has its arguments'
    address."""
    return _linked(_text(body, arch), arch)


@cache
def link_several(arch: str = "gfx942", **bodies: str) -> bytes:
    """Return a code object as linkers make it of hand-written ones: a note of metadata for each kernel, and symbols of
    no size."""
    texts = []
    for name, body in bodies.items():
        text = re.sub(r"^end:\n\.size .*\n", "", _text(body, arch), flags=re.MULTILINE)
        texts.append(re.sub(r"\bkernel\b", name, text))
    first, *others = texts
    return _linked(first + "".join(text.partition("\n")[2] for text in others), arch)


def _text(body: str, arch: str) -> str:
    found = arch_of(arch)
    return _TEXT.format(arch=found.name, body=in_words_of(arch, body), of_arch=_OF_ARCH[arch], lanes=found.lanes)


def _linked(text: str, arch: str) -> bytes:
    compiler = pytest.importorskip("triton.backends.amd.compiler", reason="assembling needs the extra `build`")
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "in", Path(folder) / "out"
        before.write_bytes(compiler.assemble_amdgcn(text, arch_of(arch).name, features(arch_of(arch))))
        compiler.amd.link_hsaco(str(before), str(after))
        return after.read_bytes()


def number_of(arch: str) -> int:
    """Return the emulator's device of an architecture."""
    return list(ARCHS).index(arch_of(arch).name)


def launch(
    driver: EmulatorDriver, body: str | bytes, address: int, wavefronts: int = 1, workgroups: int = 1, arch: str = "gfx942", lds: int = 0,
) -> Statistics:  # fmt: skip
    """Run a kernel of some lines, or a code object with one, whose argument is an address."""
    device, image = number_of(arch), link(body, arch) if isinstance(body, str) else body
    function = driver.get_function(device, driver.load_module(device, image), "kernel", lds)
    threads = arch_of(arch).lanes * wavefronts
    driver.prepare(device, function, (workgroups, 1, 1), threads, lds, struct.pack("<2Q", address, 0)).run(0)
    return driver.last


def run(
    body: str | bytes, array: np.ndarray | int = 4, wavefronts: int = 1, workgroups: int = 1, arch: str = "gfx942", strict: bool = True,
    **options: Any,
) -> np.ndarray | None:  # fmt: skip
    """Run a kernel's lines on an array; return it as it is afterwards.

    An int stands for that many uninitialised bytes. There are 4096 bytes of LDS, and 64 of scratch for a lane.
    Hand-written lines leave wait states out except where these are tested.
    """
    options.setdefault("ignored", frozenset({"hazard"}))
    driver, device = EmulatorDriver(Options(strict=strict, **options)), number_of(arch)
    is_given = isinstance(array, np.ndarray)
    address = driver.allocate_now(device, array.nbytes if is_given else array)
    if is_given:
        driver.copy_to_device(device, address, array.ctypes.data, array.nbytes, 0)
    launch(driver, body, address, wavefronts, workgroups, arch)
    if not is_given:
        return None
    result = np.empty_like(array)
    driver.copy_to_host(device, result.ctypes.data, address, result.nbytes, 0)
    return result


def data(count: int = 256) -> np.ndarray:
    return np.arange(count, dtype=np.uint32)


def fault(kind: str, message: str, body: str, *array: Any, **launch: Any) -> SanitizerError:
    """Return the fault of a kernel, which without strict mode runs to its end, or leaves its bounds."""
    try:
        run(body, *array, strict=False, **launch)
    except MemoryAccessError as error:
        assert kind == "bounds", error
    else:
        assert kind != "bounds"
    with pytest.raises(SanitizerError, match=message) as raised:
        run(body, *array, **launch)
    assert raised.value.kind == kind, raised.value
    return raised.value


def counted(
    *lines: str, workgroups: int = 1, wavefronts: int = 1, profile: bool = True, arch: str = "gfx942", **options: Any,
) -> Statistics:  # fmt: skip
    """Launch instructions with the address of 64 KiB in s[0:1], from a scalar load, and return the launch's record."""
    driver = EmulatorDriver(Options(profile=profile, **options))
    body = "\n".join(("s_load_dwordx2 s[0:1], s[0:1], 0x0", "s_waitcnt lgkmcnt(0)", *lines))
    address = driver.allocate_now(number_of(arch), 1 << 16)
    return launch(driver, body, address, wavefronts, workgroups, arch, lds=8192)
