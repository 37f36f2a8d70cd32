from __future__ import annotations

import re

import pytest

from aot_runtime.bundle.codeobject import read_code_object
from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.occupancy import occupancy


# ROCm's occupancy table for MI200 and MI300 (512 registers a lane): the most VGPRs at each number of waves.
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_cdna_registers(arch: str):
    most = {8: 64, 7: 72, 6: 80, 5: 96, 4: 128, 3: 168, 2: 256, 1: 512}
    for waves, vgprs in most.items():
        for more, left in ((0, waves), (1, waves - 1)):
            if left:
                found = occupancy(arch, vgprs=vgprs + more, sgprs=40, lds_bytes=0, num_warps=4)
                assert found.waves_per_simd == left


@pytest.mark.parametrize(
    ("arch", "lds", "num_warps", "waves", "limit"),
    [
        ("gfx942", 64 * 1024 + 1, 4, 0, "lds"),
        ("gfx942", 64 * 1024, 4, 1, "lds"),
        ("gfx942", 32 * 1024 + 1, 4, 1, "lds"),
        ("gfx942", 32 * 1024, 4, 2, "lds"),
        ("gfx942", 32 * 1024, 8, 4, "lds"),
        ("gfx942", 16 * 1024, 2, 2, "lds"),
        ("gfx942", 0, 4, 8, "waves"),
        ("gfx942", 0, 1, 8, "waves"),
        ("gfx942", 0, 2, 8, "waves"),
        ("gfx950", 64 * 1024, 4, 2, "lds"),
        ("gfx950", 160 * 1024, 8, 2, "lds"),
        ("gfx1100", 64 * 1024, 4, 2, "lds"),
        ("sm_90", 227 * 1024 + 1024, 4, 1, "lds"),
        ("sm_90", 100 * 1024, 8, 4, "lds"),
        ("sm_80", 99 * 1024, 4, 1, "lds"),
        ("sm_89", 0, 1, 6, "workgroups"),
    ],
)
def test_lds_and_slots(arch: str, lds: int, num_warps: int, waves: float, limit: str):
    found = occupancy(arch, vgprs=32, sgprs=40, lds_bytes=lds, num_warps=num_warps)
    assert (found.waves_per_simd, found.limit) == (waves, limit)
    assert found.workgroups * num_warps == waves * 4


# From NVIDIA's occupancy calculator: registers a thread, warps of a block, resident warps of the SM.
@pytest.mark.parametrize(
    ("arch", "registers", "num_warps", "warps"),
    [
        *(("sm_80", 32, 8, 64), ("sm_80", 64, 8, 32), ("sm_80", 128, 4, 16), ("sm_80", 255, 8, 8)),
        *(("sm_86", 32, 8, 48), ("sm_90", 168, 4, 12), ("sm_90", 40, 8, 48), ("sm_75", 32, 8, 32)),
    ],
)
def test_nvidia_registers(arch: str, registers: int, num_warps: int, warps: int):
    assert occupancy(arch, vgprs=registers, sgprs=0, lds_bytes=0, num_warps=num_warps).waves_per_simd * 4 == warps


@pytest.mark.parametrize("arch", [arch for arch, row in ARCHITECTURES.items() if row.backend == "hip"])
def test_registers_give_the_occupancy_that_llvm_computes(arch: str):
    """LLVM writes its own figure into the assembly; LDS given at launch has no part in it."""
    pytest.importorskip("triton", reason="code objects are assembled with the extra `build`")
    from tests.support.amd_assembly import assembled

    registers = (0, 24, 63, 64, 71, 95, 96, 128, 191, 255)
    for used, waves in [*((f"v{number}", "1,1") for number in registers), ("v9", "3,3")]:
        text, image = assembled(arch, used, waves)
        metadata = read_code_object(image).kernel("kernel")
        found = occupancy(arch, vgprs=metadata.allocated_vgprs, sgprs=metadata.sgprs, lds_bytes=0, num_warps=4)
        assert found.waves_per_simd == int(re.search(r"; Occupancy: (\d+)", text)[1]), (used, waves)
