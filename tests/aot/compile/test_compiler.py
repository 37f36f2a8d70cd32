import dataclasses
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aot.compile.compiler import compile_job
from aot.compile.kernargs import kernarg_bytes, kernarg_layout
from aot.compile.kernel_source import Parameter, kernel_parameters, load_kernel, source_hash
from aot.compile.keys import job_key
from aot.compile.project import CompileError, KernelFileError, KernelFunctionError
from tests.support.building import jobs

ARCHS = ["gfx942", "gfx1100", "sm_90"]


@pytest.fixture
def project(tmp_path):
    """A copy of the fixture kernels that a test may edit."""
    root = tmp_path / "project"
    shutil.copytree(jobs.ROOT, root, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def key(work) -> str:
    return job_key(work, source_hash(load_kernel(work.root, work.source, work.function)))


def at(root: Path, work):
    return dataclasses.replace(work, root=str(root))


# Compiling


@pytest.mark.parametrize("arch", ARCHS)
def test_a_kernel_compiles(arch):
    kernel = compile_job(jobs.softmax(arch, options=(("num_warps", 8),)))
    assert kernel.image[:4] == b"\x7fELF"
    assert (kernel.symbol, kernel.num_warps, kernel.cooperative) == ("softmax", 8, False)
    assert kernel.warp_size == (64 if arch == "gfx942" else 32)
    assert kernel.lds_bytes > 0, "a reduction over eight wavefronts goes through LDS"
    assert (kernel.global_scratch_bytes, kernel.profile_scratch_bytes) == (0, 0)
    assert kernel.global_scratch_align >= 1
    assert kernel.profile_scratch_align >= 1
    assert kernel.compiler.startswith("triton ")
    assert kernel.options["num_warps"] == 8
    assert kernel.options["enable_fp_fusion"] is True
    assert str(Path(sys.prefix)) not in repr(kernel.options)
    assert pickle.loads(pickle.dumps(kernel)) == kernel


def test_options_reach_the_code():
    plain = compile_job(jobs.softmax("gfx942"))
    unfused = compile_job(jobs.softmax("gfx942", options=(("enable_fp_fusion", False),)))
    assert unfused.options["enable_fp_fusion"] is False
    assert compile_job(jobs.softmax("gfx942", options=(("waves_per_eu", 2),))).image != plain.image


def test_hints_reach_the_code():
    hinted = compile_job(jobs.softmax("gfx942"))
    ranged = compile_job(jobs.softmax("gfx942", pointer_range_32=("x", "y")))
    general = compile_job(jobs.softmax("gfx942", divisible_by_16=(), pointer_range_32=()))
    assert len({hinted.image, ranged.image, general.image}) == 3
    on_nvidia = [compile_job(jobs.softmax("sm_90", pointer_range_32=names)).image for names in ((), ("x", "y"))]
    assert on_nvidia[0] == on_nvidia[1]


@pytest.mark.parametrize("line_info", [False, True])
@pytest.mark.parametrize("arch", ARCHS)
def test_images_are_the_same_in_whatever_folder(arch, line_info, tmp_path, monkeypatch):
    images, keys = set(), set()
    for folder in ("here", "a/rather/longer/path/elsewhere"):
        root = tmp_path / folder
        shutil.copytree(jobs.ROOT, root)
        monkeypatch.chdir(root)
        work = at(root, jobs.softmax(arch, line_info=line_info))
        image = compile_job(work).image
        assert str(tmp_path).encode() not in image
        assert sys.prefix.encode() not in image
        assert (b"softmax.py" in image) == (b"standard.py" in image) == line_info
        images.add(image)
        keys.add(key(work))
    assert len(images) == len(keys) == 1


def test_images_are_the_same_in_another_process():
    code = (
        "import hashlib; from tests.support.building import jobs; from aot.compile.compiler import compile_job;"
        "work = jobs.product('gfx942'), jobs.softmax('sm_90');"
        "print([hashlib.sha256(compile_job(job).image).hexdigest() for job in work])"
    )
    outputs = {
        subprocess.check_output(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[3], env={**os.environ, "PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_nothing_is_left_behind(tmp_path, monkeypatch, capfd):
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TRITON_HOME", str(home))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = dict(os.environ)
    path, modules = list(sys.path), {name for name in sys.modules if name.startswith("kernels")}
    compile_job(jobs.softmax("gfx942"))
    with pytest.raises(CompileError):
        compile_job(jobs.job("wrong", "gfx942", (("x", "*fp32"),), {}))
    assert list(tmp_path.rglob("*")) == []
    assert not list(jobs.ROOT.rglob("__pycache__"))
    assert dict(os.environ) == before
    assert sys.path == path
    assert {name for name in sys.modules if name.startswith("kernels")} == modules
    assert capfd.readouterr() == ("", "")


def test_the_environment_neither_hides_nor_redirects(monkeypatch, tmp_path):
    expected = compile_job(jobs.softmax("gfx942"))
    monkeypatch.setenv("TRITON_OVERRIDE_ARCH", "gfx90a")
    monkeypatch.setenv("TRITON_KERNEL_OVERRIDE", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    assert compile_job(jobs.softmax("gfx942")) == expected
    assert not (tmp_path / "cache").exists()


# Layout


def test_kernarg_layout():
    layout = kernarg_layout(jobs.SCALARS)
    assert [tuple(field) for field in layout] == [
        ("out", "*fp32", 0, 8),
        ("a", "fp16", 8, 2),
        ("b", "bf16", 10, 2),
        ("c", "i8", 12, 1),
        ("d", "u1", 13, 1),
        ("e", "i64", 16, 8),
        ("f", "fp64", 24, 8),
        ("g", "i16", 32, 2),
        ("h", "u64", 40, 8),
        (".global_scratch", "*i8", 48, 8),
        (".profile_scratch", "*i8", 56, 8),
    ]
    assert kernarg_bytes(layout) == 64


@pytest.mark.parametrize("arch", ["gfx90a", "gfx1201", "sm_80", "sm_90"])
def test_a_code_object_agrees_with_the_layout(arch):
    metadata = compile_job(jobs.scalars(arch)).metadata
    layout = kernarg_layout(jobs.SCALARS)
    assert [(arg.offset, arg.size) for arg in metadata.args] == [(field.offset, field.size) for field in layout]
    assert metadata.kernarg_bytes == 64


def test_another_wavefront_size_is_refused(monkeypatch):
    monkeypatch.setattr("aot.targets.Target.warp_size", 128)
    with pytest.raises(CompileError, match="wavefront size"):
        compile_job(jobs.softmax("sm_90"))


# Refusals


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (jobs.softmax("gfx1030"), "unknown architecture 'gfx1030'"),
        (jobs.softmax("gfx942", options=(("num_warp", 4),)), "unknown compiler option 'num_warp' .*'num_warps'"),
        (jobs.softmax("sm_90", options=(("waves_per_eu", 2),)), "unknown compiler option 'waves_per_eu' for sm_90"),
        (jobs.softmax("sm_90", options=(("ir_override", "x.ttir"),)), "unknown compiler option 'ir_override'"),
        (jobs.softmax("gfx942", options=(("arch", "gfx90a"),)), "unknown compiler option 'arch'"),
        (jobs.softmax("gfx942", options=(("num_warps", 3),)), "num_warps must be a power of 2"),
        (jobs.softmax("gfx942", options=(("num_ctas", 2),)), "num_ctas > 1 not supported on gfx942"),
        (jobs.softmax("sm_90", options=(("num_ctas", 2),)), "num_ctas=2: clusters are not supported"),
        (jobs.softmax("gfx942", options=(("launch_cooperative_grid", True),)), "cooperative grids are not supported"),
        (jobs.softmax("gfx942", signature=jobs.SOFTMAX[:-1]), "its parameters are"),
        (jobs.softmax("gfx942", constants=()), r"constexprs of 'softmax' are \['BLOCK'\]"),
        (jobs.softmax("gfx942", divisible_by_16=("BLOCK",)), r"divisible_by_16 of 'softmax' names \['BLOCK'\]"),
        (jobs.softmax("gfx942", pointer_range_32=("z",)), r"pointer_range_32 of 'softmax' names \['z'\]"),
        (jobs.softmax("gfx942", signature=(("x", "fp8"), *jobs.SOFTMAX[1:])), "kernel argument type 'fp8'"),
    ],
)
def test_wrong_jobs(work, message):
    with pytest.raises(CompileError, match=message):
        compile_job(work)


def test_code_that_takes_other_arguments_is_refused(monkeypatch):
    """By the same check as `aotbundle verify`."""
    monkeypatch.setattr("aot.compile.compiler.kernarg_layout", lambda signature: kernarg_layout(signature)[:-1])
    found = r"'softmax' is not what was asked for: .*a pointer of 8 bytes at offset \d+, which is not passed"
    with pytest.raises(CompileError, match=found):
        compile_job(jobs.softmax("gfx942"))


def test_too_much_lds_tells_both_figures():
    hints = ("a", "b", "c", "n", "k")
    with pytest.raises(CompileError, match=r"'product' needs 131072 bytes of LDS per workgroup; gfx942 allows 65536"):
        compile_job(jobs.product("gfx942", 128, 128, 128, options=(("num_stages", 3),), divisible_by_16=hints))
    with pytest.raises(CompileError, match=r"'product' needs 196608 bytes of LDS per workgroup; sm_89 allows 101376"):
        compile_job(jobs.product("sm_89", 128, 128, 128, options=(("num_stages", 4),), divisible_by_16=hints))


def test_a_mistake_in_a_helper_is_shown_where_it_is():
    with pytest.raises(CompileError) as caught:
        compile_job(jobs.job("wrong", "gfx942", (("x", "*fp32"),), {}))
    error = caught.value
    lines = (jobs.ROOT / jobs.SOURCE).read_text().splitlines()
    number = next(index for index, line in enumerate(lines, 1) if "value + undefined_name" in line)
    assert error.reason.startswith(f"kernels/softmax.py:{number}: ")
    assert "undefined_name is not defined" in error.reason
    assert "return value + undefined_name" in error.reason
    assert "Traceback" not in error.reason
    assert "Traceback" in error.traceback_text
    restored = pickle.loads(pickle.dumps(error))
    assert (restored.reason, restored.traceback_text) == (error.reason, error.traceback_text)


def test_a_back_end_failure_carries_what_the_compiler_printed():
    with pytest.raises(CompileError) as caught:
        compile_job(jobs.softmax("sm_90", options=(("ptx_options", "--no-such-option"),)))
    assert "no-such-option" in caught.value.reason
    assert caught.value.reason.count("\n") <= 5


def test_the_size_of_the_grid_comes_in_hidden_arguments():
    """On AMD; the driver appends them to what it is given."""
    signature = (("x", "*i32"),)
    metadata = compile_job(jobs.job("counting", "gfx942", signature, {})).metadata
    hidden = {arg.kind: arg.offset for arg in metadata.args if arg.kind.startswith("hidden_")}
    assert hidden["hidden_block_count_x"] == kernarg_bytes(kernarg_layout(signature)) == 24
    assert metadata.kernarg_bytes == 24 + 256
    assert compile_job(jobs.job("counting", "sm_90", signature, {})).metadata.kernarg_bytes == 24


def test_a_kernel_that_calls_the_host_takes_hidden_arguments():
    signature = (("x", "*fp32"),)
    metadata = compile_job(jobs.job("asserting", "gfx942", signature, {}, options=(("debug", True),))).metadata
    hidden = {arg.kind: arg.offset for arg in metadata.args if arg.kind.startswith("hidden_")}
    assert hidden["hidden_hostcall_buffer"] > kernarg_bytes(kernarg_layout(signature))


# Kernel files


def test_kernels_that_cannot_be_loaded(monkeypatch):
    with pytest.raises(KernelFileError, match=r"kernels/absent\.py is not in"):
        load_kernel(jobs.ROOT, "kernels/absent.py", "f")
    with pytest.raises(KernelFileError, match=r"kernels/broken\.py cannot be imported: RuntimeError: no such luck"):
        load_kernel(jobs.ROOT, "kernels/broken.py", "f")
    with pytest.raises(KernelFunctionError, match="has no function 'absent'"):
        load_kernel(jobs.ROOT, jobs.SOURCE, "absent")
    with pytest.raises(KernelFunctionError, match=r"'plain' in kernels/softmax\.py is a function, not a @triton\.jit"):
        load_kernel(jobs.ROOT, jobs.SOURCE, "plain")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(CompileError, match="TRITON_INTERPRET is set"):
        load_kernel(jobs.ROOT, jobs.SOURCE, "softmax")


def test_kernel_parameters_and_autotuned_kernels():
    tuned = load_kernel(jobs.ROOT, jobs.SOURCE, "tuned")
    assert kernel_parameters(tuned) == (
        Parameter("x", False),
        Parameter("columns", False),
        Parameter("BLOCK", True, True, 64),
    )


def test_a_kernel_is_loaded_once_until_a_file_changes(project):
    first = load_kernel(project, jobs.SOURCE, "softmax")
    assert load_kernel(project, jobs.SOURCE, "softmax") is first
    before = compile_job(at(project, jobs.softmax("gfx942"))).image
    # As long as before, and quickly enough for the same time stamp in stale bytecode.
    edit(project / "kernels/shared/activations.py", "1.4426950408889634", "2.4426950408889634")
    assert load_kernel(project, jobs.SOURCE, "softmax") is not first
    assert compile_job(at(project, jobs.softmax("gfx942"))).image != before


def test_files_of_one_name_do_not_collide(tmp_path):
    text = "import triton\nimport triton.language as tl\n@triton.jit\ndef f(x):\n    tl.store(x, {})\n"
    roots = []
    for root in ("one", "two"):
        for folder in ("a", "b", "."):
            path = tmp_path / root / folder / "copy.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.format(len(roots) * 10 + len(folder + root)))
            roots.append((root, f"{folder}/copy.py"))
    import copy

    kernels = {load_kernel(tmp_path / root, source, "f").src for root, source in roots}
    assert len(kernels) == 6
    assert sys.modules["copy"] is copy


def test_names_of_files_need_not_be_identifiers(tmp_path):
    text = "import triton\nimport triton.language as tl\n@triton.jit\ndef f(x):\n    tl.store(x, 1.0)\n"
    (tmp_path / "06-fused.attention.py").write_text(text)
    work = jobs.job("f", "gfx942", (("x", "*fp32"),), {}, root=str(tmp_path), source="06-fused.attention.py")
    assert compile_job(work).symbol == "f"


# Keys


def test_the_key_covers_what_changes_the_code():
    variants = [
        jobs.softmax("gfx942"),
        jobs.softmax("gfx90a"),
        jobs.softmax("sm_90"),
        jobs.softmax("gfx942", 512),
        jobs.softmax("gfx942", line_info=True),
        jobs.softmax("gfx942", divisible_by_16=()),
        jobs.softmax("gfx942", pointer_range_32=()),
        jobs.softmax("gfx942", options=(("num_warps", 8),)),
        jobs.softmax("gfx942", options=(("enable_fp_fusion", False),)),
        jobs.softmax("gfx942", signature=(("x", "*fp16"), *jobs.SOFTMAX[1:])),
        jobs.product("gfx942"),
    ]
    keys = [key(work) for work in variants]
    assert len(set(keys)) == len(keys)
    assert all(len(found) == 64 for found in keys)


def test_the_key_does_not_cover_what_does_not():
    plain = key(jobs.softmax("gfx942"))
    assert key(jobs.softmax("gfx942", options=(("num_warps", 4),))) == plain, "a default, given"
    assert key(jobs.softmax("gfx942", divisible_by_16=("y", "x"))) == plain, "another order"
    assert key(jobs.softmax("sm_90", pointer_range_32=())) == key(jobs.softmax("sm_90")), "no such hint on NVIDIA"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tl.exp2(x * LOG2E)", "tl.exp2(x * LOG2E * 1.0)"),
        ("1.4426950408889634", "1.5"),
        ("floor=0.0", "floor=1.0"),
    ],
    ids=["helper", "constant", "default"],
)
def test_the_key_covers_helpers_and_constants(project, old, new):
    work = at(project, jobs.softmax("gfx942"))
    before = key(work)
    edit(project / "kernels/shared/activations.py", old, new)
    assert key(work) != before


def test_the_key_covers_a_constant_reached_through_its_module(project):
    work = at(project, jobs.job("scaled", "gfx942", (("x", "*fp32"), ("BLOCK", "constexpr")), {"BLOCK": 64}))
    before, image = key(work), compile_job(work).image
    edit(project / "kernels/shared/activations.py", "1.4426950408889634", "1.5")
    assert compile_job(work).image != image
    assert key(work) != before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AMDGCN_USE_BUFFER_OPS", "0"),
        ("TRITON_HIP_USE_BLOCK_PINGPONG", "1"),
        ("DISABLE_LLVM_OPT", "1"),
        ("TRITON_FORCE_DISABLE_FP_FUSION", "1"),
        ("TRITON_F32_DEFAULT", "ieee"),
    ],
)
def test_the_key_covers_the_environment(monkeypatch, name, value):
    before = key(jobs.softmax("gfx942"))
    monkeypatch.setenv(name, value)
    assert key(jobs.softmax("gfx942")) != before


def test_the_key_leaves_out_the_environment_that_does_not_matter(monkeypatch, tmp_path):
    before = key(jobs.softmax("gfx942"))
    for name in ("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DISABLE_LINE_INFO", "TRITON_ALWAYS_COMPILE", "EDITOR"):
        monkeypatch.setenv(name, "1")
    assert key(jobs.softmax("gfx942")) == before
