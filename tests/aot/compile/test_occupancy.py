import re

import pytest
import triton
from triton.compiler import ASTSource, make_backend

from aot.compile.kernel_source import load_kernel
from aot.targets import TARGETS, parse_arch
from aot_runtime.bundle.codeobject import read_code_object
from aot_runtime.contract.occupancy import occupancy
from tests.support.building import jobs


# ROCm's occupancy table for MI200 and MI300 (512 registers a lane): the most VGPRs at each number of waves.
@pytest.mark.parametrize(
    ("vgprs", "waves"),
    [
        *((1, 8), (64, 8), (65, 7), (72, 7), (73, 6), (80, 6), (81, 5), (96, 5), (97, 4), (128, 4), (129, 3)),
        *((168, 3), (169, 2), (256, 2), (257, 1), (512, 1)),
    ],
)
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_cdna_registers(arch, vgprs, waves):
    assert occupancy(arch, vgprs=vgprs, sgprs=40, lds_bytes=0, num_warps=4).waves_per_simd == waves


@pytest.mark.parametrize(
    ("arch", "lds", "num_warps", "waves", "limit"),
    [
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
def test_lds_and_slots(arch, lds, num_warps, waves, limit):
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
def test_nvidia_registers(arch, registers, num_warps, warps):
    assert occupancy(arch, vgprs=registers, sgprs=0, lds_bytes=0, num_warps=num_warps).waves_per_simd * 4 == warps


def test_a_kernel_that_does_not_fit():
    found = occupancy("gfx942", vgprs=64, sgprs=40, lds_bytes=65537, num_warps=4)
    assert (found.workgroups, found.waves_per_simd, found.limit) == (0, 0, "lds")


def test_every_target_is_known():
    assert all(occupancy(t.arch, vgprs=64, sgprs=32, lds_bytes=0, num_warps=4).workgroups for t in TARGETS)


@pytest.mark.parametrize("waves_per_eu", [0, 3])
@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("arch", [target.arch for target in TARGETS if target.backend == "hip"])
def test_registers_give_the_occupancy_that_llvm_computes(arch, block, waves_per_eu, tmp_path, monkeypatch):
    """LLVM writes its own figure, in which LDS given at launch has no part, into the assembly."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    work = jobs.product(arch, block, block)
    target = parse_arch(arch).gpu_target()
    options = make_backend(target).parse_options({"enable_fp_fusion": True, "waves_per_eu": waves_per_eu})
    kernel = load_kernel(work.root, work.source, work.function)
    source = ASTSource(kernel, dict(work.signature), constexprs=dict(work.constants))
    compiled = triton.compile(source, target=target, options=vars(options))
    metadata = read_code_object(compiled.kernel).kernel("product")
    found = occupancy(arch, vgprs=metadata.allocated_vgprs, sgprs=metadata.sgprs, lds_bytes=0, num_warps=4)
    assert found.waves_per_simd == int(re.search(r"; Occupancy: (\d+)", compiled.asm["amdgcn"])[1])
