import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest
from triton.backends.compiler import GPUTarget

from aot.compile.compiler import compile_job
from aot.compile.diagnostics import diagnostics, errors
from aot.compile.jobs import CompileJob
from aot.compile.kernargs import kernarg_bytes, kernarg_layout
from aot.errors import CompileError
from tests.support.building import jobs


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100", "sm_90"])
def test_a_kernel_compiles(arch: str):
    kernel = compile_job(jobs.softmax(arch, options=(("num_warps", 8),)))
    assert kernel.image[:4] == b"\x7fELF"
    assert (kernel.symbol, kernel.num_warps, kernel.cooperative) == ("softmax", 8, False)
    assert kernel.warp_size == (64 if arch == "gfx942" else 32)
    assert kernel.lds_bytes > 0, "a reduction over eight wavefronts goes through LDS"
    assert (kernel.global_scratch_bytes, kernel.profile_scratch_bytes) == (0, 0)
    assert min(kernel.global_scratch_align, kernel.profile_scratch_align) >= 1
    assert kernel.compiler.startswith("triton ")
    assert (kernel.options["num_warps"], kernel.options["enable_fp_fusion"]) == (8, True)
    assert sys.prefix not in repr(kernel.options)
    assert pickle.loads(pickle.dumps(kernel)) == kernel


def test_options_and_hints_reach_the_code():
    changes: list[dict] = [
        {}, {"options": (("waves_per_eu", 2), ("enable_fp_fusion", False))}, {"pointer_range_32": ("x", "y")},
        {"divisible": (), "pointer_range_32": ()},
    ]  # fmt: skip
    kernels = [compile_job(jobs.softmax("gfx942", 1024, **change)) for change in changes]
    assert len({kernel.image for kernel in kernels}) == 4
    assert kernels[1].options["enable_fp_fusion"] is False
    on_nvidia = [compile_job(jobs.softmax("sm_90", pointer_range_32=names)).image for names in ((), ("x", "y"))]
    assert on_nvidia[0] == on_nvidia[1]


@pytest.mark.parametrize(("arch", "early"), [("sm_90", True), ("sm_80", False), ("gfx942", False)])
def test_what_waits_for_earlier_launches_may_begin_before_they_end(arch: str, early: bool):
    assert compile_job(jobs.job("doubled", arch, (("x", "*fp32"),), {}, source="kernels/early.py")).early is early


@pytest.mark.parametrize("line_info", [False, True])
@pytest.mark.parametrize("arch", ["gfx942", "sm_90"])
def test_images_are_the_same_in_whatever_folder(
    arch: str, line_info: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The images are also the same where Gluon is loaded, whose functions share names with Triton's."""
    import triton.experimental.gluon.language  # noqa: F401

    images, keys = set(), set()
    for folder in ("here", "a/rather/longer/path/elsewhere"):
        root = tmp_path / folder
        shutil.copytree(jobs.ROOT, root)
        monkeypatch.chdir(root)
        work = jobs.softmax(arch, line_info=line_info, root=str(root))
        image = compile_job(work).image
        assert str(tmp_path).encode() not in image and sys.prefix.encode() not in image
        assert (b"softmax.py" in image) == (b"standard.py" in image) == line_info
        images.add(image)
        keys.add(jobs.key(work))
    assert len(images) == len(keys) == 1


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Variables of the environment neither hide nor redirect what a compile reads and writes."""
    expected = compile_job(jobs.softmax("gfx942"))
    for name in ("HOME", "TRITON_HOME", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("TRITON_OVERRIDE_ARCH", "gfx90a")
    monkeypatch.setenv("TRITON_KERNEL_OVERRIDE", "1")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = dict(os.environ)
    path, modules = list(sys.path), {name for name in sys.modules if name.startswith("kernels")}
    assert compile_job(jobs.softmax("gfx942")) == expected
    with pytest.raises(CompileError):
        compile_job(jobs.job("wrong", "gfx942", (("x", "*fp32"),), {}))
    assert list(tmp_path.rglob("*")) == []
    assert not list(jobs.ROOT.rglob("__pycache__"))
    assert (dict(os.environ), sys.path) == (before, path)
    assert {name for name in sys.modules if name.startswith("kernels")} == modules
    assert capfd.readouterr() == ("", "")


def test_kernarg_layout():
    """Each code object is checked for its layout."""
    layout = kernarg_layout(jobs.SCALARS)
    parameters = (*jobs.SCALARS[:-1], (".global_scratch", "*i8"), (".profile_scratch", "*i8"))
    assert [(field.name, field.type) for field in layout] == list(parameters)
    assert [field.offset for field in layout] == [0, 8, 10, 12, 13, 16, 24, 32, 40, 48, 56]
    assert [field.size for field in layout] == [8, 2, 2, 1, 1, 8, 8, 2, 8, 8, 8]
    assert kernarg_bytes(layout) == 64


# Refusals


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (jobs.softmax("gfx1030"), "unknown architecture 'gfx1030'"),
        (jobs.softmax("gfx942", options=(("num_warp", 4),)), "unknown compiler option 'num_warp' .*'num_warps'"),
        (jobs.softmax("sm_90", options=(("waves_per_eu", 2),)), "unknown compiler option 'waves_per_eu' for sm_90"),
        (jobs.softmax("gfx942", options=(("arch", "gfx90a"),)), "unknown compiler option 'arch'"),
        (jobs.softmax("gfx942", options=(("num_ctas", 2),)), "num_ctas > 1 not supported on gfx942"),
        (jobs.softmax("sm_90", options=(("num_ctas", 2),)), "num_ctas=2: clusters are not supported"),
        (jobs.softmax("gfx942", options=(("launch_cooperative_grid", True),)), "cooperative grids are not supported"),
        (jobs.softmax("sm_90", options=(("launch_pdl", True),)), "launch_pdl: .*no gdc_wait"),
        (jobs.softmax("gfx942", signature=jobs.SOFTMAX[:-1]), "the kernel's parameters are"),
        (jobs.softmax("gfx942", constants=()), r"constexprs of 'softmax' are \['BLOCK'\]"),
        (jobs.softmax("gfx942", divisible=(("BLOCK", 16),)), r"divisible of 'softmax' names \['BLOCK'\]"),
        (jobs.softmax("gfx942", pointer_range_32=("z",)), r"pointer_range_32 of 'softmax' names \['z'\]"),
        (jobs.softmax("gfx942", signature=(("x", "fp8"), *jobs.SOFTMAX[1:])), "kernel argument type 'fp8'"),
    ],
)
def test_wrong_jobs(work: CompileJob, message: str):
    with pytest.raises(CompileError, match=message):
        compile_job(work)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("aot.targets.Target.warp_size", 128, "wavefront size"),
        (
            "aot.targets.Target.lds_bytes",
            15,
            "'softmax' needs 16 bytes of LDS per workgroup; gfx942 allows 15: use smaller",
        ),
        (
            "aot.targets.Target.gpu_target",
            lambda _: GPUTarget("hip", "gfx90a", 64),
            "architecture is gfx90a, not gfx942",
        ),
        # By the same check as `aotbundle verify`.
        (
            "aot.compile.compiler.kernarg_layout",
            lambda signature, start=0: kernarg_layout(signature)[:-1],
            r"'softmax' does not match its job: .*a pointer of 8 bytes at offset \d+, which is not passed",
        ),
    ],
)
def test_code_that_is_not_what_was_asked_for(monkeypatch: pytest.MonkeyPatch, name: str, value: object, message: str):
    monkeypatch.setattr(name, value)
    with pytest.raises(CompileError, match=message):
        compile_job(jobs.softmax("gfx942"))


def test_a_mistake_in_a_helper_is_shown_where_it_is():
    with pytest.raises(CompileError) as caught:
        compile_job(jobs.job("wrong", "gfx942", (("x", "*fp32"),), {}))
    error = caught.value
    lines = (jobs.ROOT / jobs.SOURCE).read_text().splitlines()
    number = next(index for index, line in enumerate(lines, 1) if "value + undefined_name" in line)
    assert error.reason.startswith(f"kernels/softmax.py:{number}: ")
    assert "undefined_name is not defined" in error.reason and "return value + undefined_name" in error.reason
    assert "Traceback" not in error.reason and "Traceback" in error.traceback_text
    restored = pickle.loads(pickle.dumps(error))
    assert (restored.reason, restored.traceback_text) == (error.reason, error.traceback_text)


def test_a_back_end_failure_carries_what_the_compiler_printed():
    with pytest.raises(CompileError) as caught:
        compile_job(jobs.softmax("sm_90", options=(("ptx_options", "--no-such-option"),)))
    assert "no-such-option" in caught.value.reason
    assert caught.value.reason.count("\n") <= 5


# What Triton passes on unread

FOREIGN = "kernels/foreign.py"


def foreign(function: str, arch: str, **constants: str) -> CompileJob:
    signature = (("x", "*fp32"), ("y", "*fp32"), *((name, "constexpr") for name in constants))
    return jobs.job(function, arch, signature, constants, source=FOREIGN)


def assembly(arch: str, asm: str, constraints: str, function: str = "assembly") -> CompileJob:
    return foreign(function, arch, ASM=asm, CONSTRAINTS=constraints)


def line_of(text: str) -> int:
    lines = (jobs.ROOT / FOREIGN).read_text().splitlines()
    return next(index for index, line in enumerate(lines, 1) if text in line)


ASM, CALL = "inline_asm_elementwise", "outer(tl.load"


@pytest.mark.parametrize(
    ("work", "place", "message"),
    [
        # A register class of NVIDIA's on AMD, and the other way round: LLVM prints it, and makes code without it.
        (assembly("gfx942", "tanh.approx.f32 $0, $1;", "=f,f"), ASM, "could not allocate output register for .* 'f'"),
        (assembly("gfx1201", "v_mov_b32 $0, $1", "=v,l"), ASM, "unknown asm constraint 'l'"),
        (assembly("gfx942", "v_mov_b32 $0, $1", "={v999},v"), ASM, "for constraint '{v999}'"),
        (assembly("sm_90", "v_mov_b32 $0, $1", "=v,v"), ASM, "could not allocate output register for .* 'v'"),
        (assembly("sm_90", "mov.b32 $0, $1;", "=f,s"), ASM, "invalid operand for inline asm constraint 's'"),
        # Assemblers know lines of what the compiler made, not of the kernel.
        (assembly("gfx942", "mov.b32 $0, $1;", "=v,v"), ASM, "invalid instruction\n    mov.b32 v"),
        (assembly("sm_90", "v_mov_b32 $0, $1;", "=r,r"), ASM, "any known instruction: 'v_mov_b32'\n    v_mov_b32 %r"),
        (assembly("sm_90", "mov.b64 $0, $1;", "=f,f"), ASM, "Arguments mismatch for instruction 'mov'\n    mov.b64"),
        # What no compiler tells.
        (assembly("gfx942", "s_mov_b32 $0, $1", "=s,s"), ASM, "input .1 has the constraint 's', .* use 'v'"),
        (assembly("gfx942", "v_mov_b32 $0, $1", "=v,s"), ASM, "input .1 has the constraint 's', .* use 'v'"),
        (assembly("sm_90", "mov.b32 %r1, $1;", "=r,r"), ASM, "does not write its output .0, whose value is used"),
        (assembly("gfx942", "", "=v,v"), ASM, "does not write its output .0, whose value is used"),
        # Functions that nothing has: a linker for AMD leaves them to a loader.
        (foreign("called", "gfx942", NAME="__ocml_nothere_f32"), CALL, "'__ocml_nothere_f32' is called, and nothing"),
        (foreign("called", "gfx942", NAME="llvm.nvvm.tanh.approx.f"), CALL, "'llvm.nvvm.tanh.approx.f' is called"),
        (foreign("called", "gfx942", NAME="__nv_tanhf"), CALL, "Implicit conversion of CUDA __nv_tanhf"),
        (foreign("called", "sm_90", NAME="__ocml_tanh_f32"), CALL, "Unresolved extern function '__ocml_tanh_f32'"),
        # The function that calls, not the one whose text Triton gives; that is shorter.
        (foreign("calling", "gfx942"), "apart(value)", "apart is marked noinline, but was called with non-scalar"),
    ],
)  # fmt: skip
def test_no_code_is_taken_after_an_error(work: CompileJob, place: str, message: str):
    """A printed error counts as one, even if code follows; and it has the line of the kernel."""
    with pytest.raises(CompileError, match=message) as caught:
        compile_job(work)
    assert caught.value.reason.startswith(f"{FOREIGN}:{line_of(place)}: "), caught.value.reason


def test_an_error_without_a_place_has_the_kernel_and_what_it_may_be_of():
    with pytest.raises(CompileError) as caught:
        compile_job(foreign("called", "gfx942", NAME="llvm.tan.f32"))
    told = f"{FOREIGN}:{line_of(CALL)}: a call of 'llvm.tan.f32'"
    assert caught.value.reason == f"{FOREIGN}: kernel 'called': no libcall available for ftan\n    {told}"


@pytest.mark.parametrize(
    "work",
    [
        assembly("gfx942", "v_mov_b32 $0, $1", "=v,v"),
        assembly("sm_90", "tanh.approx.f32 $0, $1;", "=f,f"),
        assembly("gfx942", "v_mov_b32 $0, $1", "=v,s", "shared_by_lanes"),
        assembly("gfx942", "s_nop 0", "=v,v", "unused"),
        assembly("gfx942", "v_add_f32 $0, $0, 1.0", "=v,0"),
        foreign("called", "gfx942", NAME="__ocml_tanh_f32"),
        foreign("called", "sm_90", NAME="__nv_tanhf"),
        foreign("printing", "gfx942"),
    ],
)
def test_foreign_code_that_is_right_compiles(work: CompileJob):
    assert compile_job(work).warnings == ()


def test_warnings_come_with_the_kernel():
    kernel = compile_job(assembly("gfx942", '.warning "slow"\nv_mov_b32 $0, $1', "=v,v"))
    assert kernel.warnings == (f"{FOREIGN}: kernel 'assembly': slow\n    .warning \"slow\"",)
    short = compile_job(jobs.softmax("sm_90", options=(("ptx_options", "--maxrregcount 1000"),)))
    assert [text.partition(": kernel 'softmax': ")[2] for text in short.warnings] == [
        "Too big maxrregcount value specified 1000, will be ignored"
    ]


def test_warnings_that_change_results_are_errors():
    """For example: double precision on hardware without it, and a limit of the compiler."""
    found = diagnostics(
        "ptxas /tmp/x.ptx, line 4; warning : Double is not supported. Demoting to float\n"
        "warning: <unknown>:0:0: local memory (98304) exceeds limit (65536) in function 'wide'\n"
        "ptxas warning : Stack size for entry function 'f' cannot be statically determined\n"
        "ptxas info    : 0 bytes gmem\n"
        "k.py:3:4: remark: error is no word of this\n"
    )
    assert [item.is_error for item in found] == [True, True, False]
    assert errors(found)[1].message.endswith("local memory (98304) exceeds limit (65536) in function 'wide'")
