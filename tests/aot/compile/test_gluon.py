"""Gluon kernels are built, run and checked against their manifest like Triton kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

from aot.cli import main
from aot.compile.compiler import compile_job
from aot.compile.descriptors import MapLayout
from aot.compile.jobs import CompileJob
from aot.errors import CompileError
from aot.manifest.loading import load_manifest
from aot.plan.bundles import PlannedBundle, plan_bundle
from aot.source.constants import triton_constant
from aot.source.source_hash import source_hash
from aot.targets import parse_arch
from aot_emulator import EmulatorDriver, Options
from aot_runtime import Device, open_bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.records import GLOBAL_SCRATCH
from aot_runtime.opening import Bundle
from tests.support.building.builds import Project
from tests.support.building.jobs import load_kernel
from tests.support.session_builds import ROOT, build_once

FOLDER = ROOT / "tests/support/gluon"
ON_AMD = "op=rms_norm|matmul|copy"


def planned(arch: str) -> PlannedBundle:
    return plan_bundle(load_manifest(FOLDER / "manifest.yaml"), parse_arch(arch), {}, False)


def is_product(job: CompileJob) -> bool:
    return job.function == "matmul" and ("a", "*fp16") in job.signature


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = build_once(tmp_path_factory, FOLDER / "manifest.yaml", f"{ON_AMD},dtype=float16|bfloat16")
    return open_bundle(folder / "gluon-gfx942", device=Device(EmulatorDriver(Options(strict=True)), 0))


def test_a_row_kernel_with_buffer_loads(bundle: Bundle):
    rng = np.random.default_rng(0)
    for rows, cols in ((3, 1000), (1, 5), (2, 1024)):
        x, weight = (rng.standard_normal(shape).astype(np.float16) for shape in ((rows, cols), cols))
        exact = x.astype(np.float64)
        exact *= weight / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-6)
        # Half a unit in the last place, and the error of float32 before that.
        assert np.all(np.abs(bundle.rms_norm(x, weight) - exact) <= np.abs(exact) * (2**-11 + 1e-6) + 2**-25)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_product_with_mfma(bundle: Bundle, dtype: type):
    rng = np.random.default_rng(1)
    for m, n, k in ((33, 70, 50), (64, 64, 32), (1, 1, 1)):
        a, b = (rng.integers(-4, 5, shape).astype(dtype) for shape in ((m, k), (k, n)))
        exact = a.astype(np.float64) @ b.astype(np.float64)
        assert np.array_equal(bundle.matmul(a, b).astype(np.float64), exact.astype(dtype).astype(np.float64))


def test_a_layout_that_the_manifest_gives(bundle: Bundle):
    """The layout may be the manifest's, or a parameter's default."""
    from triton.experimental.gluon import language as gl

    x = np.arange(1500, dtype=np.float16)
    assert np.array_equal(bundle.copy(x), x)
    for arch, lanes in (("gfx942", 64), ("sm_90", 32)):
        jobs = [job for job in planned(arch).jobs.values() if job.function == "copy"]
        (default,) = {dict(job.constants)["parent"] for job in jobs}
        assert triton_constant(default) == gl.BlockedLayout([1, 8], [8, 8], [4, 1], [1, 0])
        texts = {dict(job.constants)["layout"].text for job in jobs}
        assert texts == {f"BlockedLayout([2], [{lanes}], [2], order=[0])"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("BlockLayout([1])", "'BlockLayout' is not a Gluon layout; did you mean 'BlockedLayout'?"),
        ("SliceLayout(0, gl.Blocked([1]))", "gl.Blocked"),
        ("[1]", "'[1]' is not a layout; layouts are: AutoLayout, "),
        ("BlockedLayout([1], [lanes], [4], [0])", "'lanes' uses undefined name 'lanes'"),
        ("BlockedLayout([n], [64], [4], [0])", "'n' is not known when a variant is built"),
        ("BlockedLayout(*[1])", "the arguments of 'BlockedLayout' must be written out"),
        ("BlockedLayout([1)", "'BlockedLayout([1)' is not a layout: write one as in Python"),
        ("__import__('os').system('true')", "'system' is not a Gluon layout"),
    ],
)
def test_what_is_no_layout(tmp_path: Path, text: str, message: str):
    parameters = "x, out, n, factor, L: gluon.language.constexpr"
    kernel = f"from triton.experimental import gluon\n@gluon.jit\ndef kernel({parameters}): 0\n"
    manifest = MANIFEST.replace('"k.py:kernel"', f'"k.py:kernel", bind: {{L: {{layout: "{text}"}}}}')
    output = Project(tmp_path, manifest, kernel).build("--dry-run").output
    assert "m.yaml:" in output and message in output and "Traceback" not in output


def test_what_warps_and_scratch_a_kernel_for_nvidia_has(tmp_path_factory: pytest.TempPathFactory):
    """The registers of each group of warps are added up, and tensor maps made on the device have room in scratch
    memory."""
    folder = build_once(tmp_path_factory, FOLDER / "manifest.yaml", "op=scale,dtype=float16", "sm_90")
    (variant,) = read_index(folder / "gluon-sm_90").variants
    assert (variant.num_warps, variant.warp_size) == (8, 32)
    assert (variant.global_scratch.bytes, variant.global_scratch.alignment) == (256, 128)
    assert GLOBAL_SCRATCH in [kernarg.name for kernarg in variant.kernargs]


@pytest.mark.slow
def test_a_kernel_that_takes_other_maps_is_refused(monkeypatch: pytest.MonkeyPatch):
    job = next(job for job in planned("sm_90").jobs.values() if job.function == "scale_by_maps")
    monkeypatch.setattr("aot.compile.compiler.map_box", lambda _: (MapLayout(128, 16, 2), (64, 32)))
    with pytest.raises(CompileError, match=r"the tensor map 'x' has boxes \(64, 64\), not \(64, 32\)"):
        compile_job(job)


def test_options_that_only_triton_reads_change_nothing():
    (job,) = (job for job in planned("gfx942").jobs.values() if is_product(job))
    options = (("num_stages", 1), ("kpack", 2), ("matrix_instr_nonkdim", 32))
    assert compile_job(replace(job, options=options, digest="")).image == compile_job(job).image


# What the key covers


HASHED = """\
from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

BARE = gl.BlockedLayout([1], [64], [4], [0])
WRAPPED = gl.constexpr(gl.BlockedLayout([2], [64], [4], [0]))
TABLE = {16: 8, 32: 4}


class Shape:
    rows = 128


@gluon.aggregate
class Counter:
    value: gl.constexpr
    step: gl.constexpr = 5

    @gluon.constexpr_function
    def __init__(self, value):
        self.value = gl.constexpr(value)
        self.step = gl.constexpr(6)

    @gluon.jit
    def next(self):
        return self.value + 7


class Work(NamedTuple):
    steps: gl.tensor
    width: gl.constexpr = 16


@gluon.jit
def part(x, work):
    gl.store(x, work.steps + 21)


@gluon.jit
def other_part(x, work):
    gl.store(x, work.steps + 22)


@gluon.constexpr_function
def elements(bits):
    return TABLE[bits] * Shape.rows


@gluon.jit
def helper(x, LAYOUT: gl.constexpr):
    return x + gl.arange(0, 1024, layout=LAYOUT)


@gluon.jit
def kernel(x):
    counter = Counter(3)
    gl.store(helper(x, BARE), elements(16) + counter.next())
    gl.store(helper(x, WRAPPED), 0.0)
    gl.warp_specialize([(part, (x, Work(1))), (other_part, (x, Work(2)))], [1], [24])
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("BARE = gl.BlockedLayout([1]", "BARE = gl.BlockedLayout([4]"),
        ("gl.BlockedLayout([2]", "gl.BlockedLayout([4]"),
        ("16: 8", "16: 16"),
        ("rows = 128", "rows = 64"),
        ("TABLE[bits] *", "TABLE[bits] +"),
        ("0, 1024", "0, 512"),
        ("= 5\n", "= 8\n"),
        ("+ 7", "+ 9"),
        ("+ 21", "+ 23"),
        ("+ 22", "+ 23"),
        ("= 16\n", "= 32\n"),
        ("steps: gl.tensor", "moves: gl.tensor"),
    ],
    ids=[
        *("layout", "constexpr layout", "table", "class", "constexpr function", "helper", "default", "method"),
        *("first partition", "second partition", "default of a tuple", "field of a tuple"),
    ],
)
def test_the_hash_covers_what_a_kernel_reads(tmp_path: Path, old: str, new: str):
    assert HASHED.count(old) == 1
    hashes = []
    for name, text in (("a", HASHED), ("b", HASHED), ("c", HASHED.replace(old, new))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "k.py").write_text(text)
        hashes.append(source_hash(load_kernel(tmp_path / name, "k.py", "kernel")))
    assert hashes[0] == hashes[1] != hashes[2]


# Refusals


WRONG = """\
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

WARP = gl.constexpr({warp})


@gluon.jit
def total(x):
    return gl.sum(x, 0)


@gluon.jit
def kernel(x, out, n, factor):
    layout: gl.constexpr = gl.BlockedLayout([1], [WARP], [4], [0])
    i = gl.arange(0, 256, layout=layout)
    {line}
    gl.store(out, factor)
"""
MANIFEST = """\
bundle: tiny
ops:
  work:
    tensors:
      x: {shape: [n], dtype: float32}
      out: {shape: [n], dtype: float32, role: output}
    scalars: {factor: {type: fp32}}
    specialisations: [general]
    launches:
      - {kernel: "k.py:kernel", grid: ["1"]}
"""


@pytest.mark.parametrize(
    ("arch", "warp", "line", "place", "message"),
    [
        ("sm_90", 32, "gl.amd.cdna3.buffer_load(x, i)", 17, "'amdg.buffer_load' is an operation of AMD GPUs"),
        ("gfx942", 64, "bar = mbarrier.allocate_mbarrier(); mbarrier.init(bar, count=1)", 17, "of NVIDIA GPUs"),
        ("sm_90", 64, "total(i)", 10, "Layout has 64 threads per warp, but the module specifies 32"),
        ("gfx942", 32, "gl.store(x + i, 1.0)", 16, "Layout has 32 threads per warp, but the module specifies 64"),
    ],
    ids=["amd's operation", "nvidia's operation", "layout in a helper", "layout"],
)
def test_an_architecture_that_a_kernel_does_not_support(
    tmp_path: Path, arch: str, warp: int, line: str, place: int, message: str
):
    """The error names the line of the kernel, or of the helper that it calls."""
    project = Project(tmp_path, MANIFEST, WRONG.format(warp=warp, line=line))
    result = project.build(archs=(arch,))
    assert result.exit_code == 1
    assert f"k.py:{place}: " in result.output and message in result.output
    assert "Traceback" not in result.output and "<unknown>" not in result.output


# A first manifest


def test_what_init_finds_of_buffer_loads_and_stores():
    """`init` finds the dims and roles of tensors whose accesses have offsets beside the pointer."""
    kernels = [f"{FOLDER}/kernels.py:{name}" for name in ("rms_norm", "matmul")]
    drafted = CliRunner().invoke(main, ["init", *kernels]).output
    for line in (
        "x: {shape: [rows, cols], dtype: T}",
        "out: {shape: [rows, cols], dtype: T, role: output}",
        "a: {shape: [m, k], dtype: T}",
        "b: {shape: [k, n], dtype: T}",
        "c: {shape: [m, n], dtype: T, role: output}",
    ):
        assert f"      {line}\n" in drafted
