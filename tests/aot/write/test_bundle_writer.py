"""What a build puts into a bundle, and what it leaves there when it is cut short."""

import contextlib
import itertools
import shutil
from pathlib import Path

import pytest

from aot_runtime.bundle.reading import read_blob, read_index
from aot_runtime.call.planner import Planner
from aot_runtime.contract import records
from tests.support.building.builds import Project, contents, figures
from tests.support.building.projects import KERNELS, SCALE, edit

FOREIGN = """\
import triton
import triton.language as tl


@triton.jit
def _norm_forward(
    Y_ptr, Y_row_stride, X_ptr, X_row_stride, W_ptr, RSTD_ptr, n_cols, eps, offset, log2_scale,
    BLOCK_SIZE: tl.constexpr, CASTING: tl.constexpr, HAS_W: tl.constexpr, UNROLL: tl.constexpr = 2,
):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK_SIZE)
    x = tl.load(X_ptr + row * X_row_stride + i, mask=i < n_cols, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 0) / n_cols + eps)
    tl.store(RSTD_ptr + row, rstd)
    y = x * rstd * tl.exp2(log2_scale) * UNROLL + CASTING
    if HAS_W:
        y *= offset + tl.load(W_ptr + i, mask=i < n_cols, other=0.0).to(tl.float32)
    tl.store(Y_ptr + row * Y_row_stride + i, y.to(Y_ptr.dtype.element_ty), mask=i < n_cols)
"""
FOREIGN_MANIFEST = """\
bundle: tiny
ops:
  norm:
    tensors:
      hidden: {shape: [tokens, width], dtype: T}
      weight: {shape: [width], dtype: T, optional: true}
      out: {shape: [tokens, width], dtype: T, role: output}
      rstd: {shape: [tokens], dtype: float32, role: output, align: false}
    scalars:
      epsilon: {type: fp32, default: 1.0e-6}
      scale: {type: fp32, default: 1}
    dtypes: {T: [bfloat16]}
    constexprs:
      SIZE: {values: [64], pick: smallest >= width}
      WEIGHTED: {values: [false, true], pick: given(weight)}
    launches:
      - kernel: k.py:_norm_forward
        name: norm
        grid: ["cdiv(tokens, 1)", 1]
        bind:
          Y_ptr: out
          Y_row_stride: stride(out, tokens)
          X_ptr: hidden
          X_row_stride: {value: "stride(hidden, 0)", type: i64}
          W_ptr: weight
          RSTD_ptr: rstd
          n_cols: width
          eps: epsilon
          offset: {value: 1, type: fp32}
          log2_scale: scale * 1.4426950408889634
          BLOCK_SIZE: SIZE
          CASTING: -1
          HAS_W: WEIGHTED
        configs: [{options: {num_warps: 2}}]
"""
SCRATCH = [(".global_scratch", "*int8", ""), (".profile_scratch", "*int8", "")]


def kernargs(variant: records.Variant) -> list[tuple[str, str, str]]:
    return [(arg.name, arg.type, arg.value) for arg in variant.kernargs]


def test_a_foreign_kernel_is_adopted_by_bind_alone(tmp_path):
    project = Project(tmp_path, FOREIGN_MANIFEST, FOREIGN)
    assert figures(project.build()) == (4, 0)
    index = project.bundle()
    by_point = {(variant.aligned, variant.axis_values["WEIGHTED"]): variant for variant in index.variants}

    def expected(wide: str, weighted: bool) -> list[tuple[str, str, str]]:
        weight = [("W_ptr", "*bfloat16", "weight")] if weighted else []
        return [
            ("Y_ptr", "*bfloat16", "out"),
            ("Y_row_stride", wide, "stride(out, 0)"),
            ("X_ptr", "*bfloat16", "hidden"),
            ("X_row_stride", "i64", "stride(hidden, 0)"),
            *weight,
            ("RSTD_ptr", "*float32", "rstd"),
            ("n_cols", "i32", "width"),
            ("eps", "fp32", "epsilon"),
            ("offset", "fp32", "1"),
            ("log2_scale", "fp32", "scale * 1.4426950408889634"),
            *SCRATCH,
        ]

    for (aligned, weighted), variant in by_point.items():
        assert kernargs(variant) == expected("i32" if aligned else "i64", weighted)
        assert (variant.symbol, variant.num_warps, variant.warp_size) == ("_norm_forward", 2, 64)
    (op,) = index.ops
    assert op.launches[0].kernel == "norm" and op.launches[0].grid == ("cdiv(tokens, 1)", "1", "1")
    Planner(op, index.variants, "hip")  # a reader can plan with all of it


def test_offsets_are_those_of_the_code_object(tmp_path):
    project = Project(tmp_path, FOREIGN_MANIFEST, FOREIGN)
    project.build("--filter", "weighted=true")
    layouts = {
        variant.aligned: [(arg.name, arg.offset, arg.size) for arg in variant.kernargs]
        for variant in project.bundle().variants
    }
    names = ["Y_ptr", "Y_row_stride", "X_ptr", "X_row_stride", "W_ptr", "RSTD_ptr", "n_cols", "eps", "offset",
             "log2_scale", ".global_scratch", ".profile_scratch"]  # fmt: skip
    sizes = [8, 4, 8, 8, 8, 8, 4, 4, 4, 4, 8, 8]
    assert layouts[True] == list(zip(names, [0, 8, 16, 24, 32, 40, 48, 52, 56, 60, 64, 72], sizes, strict=True))
    assert layouts[False][1] == ("Y_row_stride", 8, 8)


STAGES = """\
import triton
import triton.language as tl


@triton.jit
def partial_sums(x, partial, counter, cols, chunks, stride_x_rows, BLOCK: tl.constexpr):
    row, chunk = tl.program_id(0), tl.program_id(1)
    i = chunk * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x + row * stride_x_rows + i, mask=i < cols, other=0.0), 0)
    tl.store(partial + row * chunks + chunk, total)
    tl.atomic_add(counter, 1)


@triton.jit
def add_up(partial, total, chunks, LANES: tl.constexpr):
    i = tl.arange(0, LANES)
    row = tl.program_id(0)
    tl.store(total + row, tl.sum(tl.load(partial + row * chunks + i, mask=i < chunks, other=0.0), 0))
"""
STAGES_MANIFEST = """\
bundle: tiny
ops:
  total:
    tensors:
      x: {shape: [rows, cols], dtype: float32}
      total: {shape: [rows], dtype: float32, role: output}
    derived: {chunks: "cdiv(cols, 64)"}
    require: [chunks_fit]
    workspace:
      partial: {shape: [rows, chunks], dtype: float32}
      counter: {shape: [1], dtype: int32, zero: true}
    launches:
      - kernel: k.py:partial_sums
        grid: [rows, chunks]
        configs: [{blocks: {BLOCK: 64}, options: {num_warps: 1}}]
      - kernel: k.py:add_up
        grid: [rows]
        when: chunks > 1
        configs:
          - {when: chunks <= 16, blocks: {LANES: 16}, options: {num_warps: 1}}
          - {blocks: {LANES: 128}, options: {num_warps: 2}}
"""


def test_launches_in_their_order_with_scratch_between_them(tmp_path):
    project = Project(tmp_path, STAGES_MANIFEST.replace("chunks_fit", "cols <= 64 * 128"), STAGES)
    assert figures(project.build()) == (6, 0)
    index = project.bundle()
    (op,) = index.ops
    assert op.workspace == (
        records.Workspace("partial", ("rows", "chunks"), "float32"),
        records.Workspace("counter", ("1",), "int32", True),
    )
    assert [(launch.kernel, launch.when) for launch in op.launches] == [("partial_sums", ""), ("add_up", "chunks > 1")]
    found = {(v.aligned, v.launch, v.config): v for v in index.variants}
    assert found.keys() == {(a, *rest) for a in (True, False) for rest in ((0, 0), (1, 0), (1, 1))}
    assert kernargs(found[True, 0, 0]) == [
        ("x", "*float32", "x"), ("partial", "*float32", "partial"), ("counter", "*int32", "counter"),
        ("cols", "i32", "cols"), ("chunks", "i32", "chunks"), ("stride_x_rows", "i32", "stride(x, 0)"), *SCRATCH,
    ]  # fmt: skip
    assert kernargs(found[True, 1, 1]) == [
        ("partial", "*float32", "partial"), ("total", "*float32", "total"), ("chunks", "i32", "chunks"), *SCRATCH,
    ]  # fmt: skip
    assert {v.num_warps for key, v in found.items() if key[1:] == (1, 1)} == {2}


def test_identical_code_is_stored_once(tmp_path):
    """An axis that the kernel does not read makes variants, and no code."""
    text = edit(SCALE, ("    constexprs:\n", "    constexprs:\n      SPARE: {values: [1, 2, 3], pick: cols}\n"))
    project = Project(tmp_path, text)
    assert figures(project.build("--filter", "dtype=float16")) == (4, 0)
    index = project.bundle()
    assert len(index.variants) == 12 and len(index.blobs) == 4
    assert len(list((project.output / "tiny-gfx942" / "code").iterdir())) == 4


def test_options_that_all_variants_share_are_said_once(tmp_path):
    configs = "configs: [{when: BLOCK > 16, options: {num_warps: 2}}, {options: {num_warps: 1}}]"
    project = Project(tmp_path, edit(SCALE, ("configs: [{options: {num_warps: 1}}]", configs)))
    project.build("--filter", "dtype=float16")
    index = project.bundle()
    assert '"num_warps"' not in index.toolchain["options"] and '"num_stages": 2' in index.toolchain["options"]
    assert {(v.axis_values["BLOCK"], *v.options.items()) for v in index.variants} == {
        (16, ("num_warps", 1)), (32, ("num_warps", 2)),
    }  # fmt: skip


# Over what was there before


def test_files_of_an_older_build_go(tmp_path):
    project = Project(tmp_path)
    project.build()
    folder = project.output / "tiny-gfx942"
    old = set(contents(folder))
    (folder / "NOTES").write_text("the user's own")
    (tmp_path / "k.py").write_text(KERNELS.replace("value * factor", "value * factor + 1"))
    assert figures(project.build("--filter", "dtype=float16")) == (4, 0)
    index = project.bundle()
    files = {"bundle.json", "include/tiny.h", "stubs/tiny.pyi", "NOTES", *(blob.file for blob in index.blobs.values())}
    assert set(contents(folder)) == files and len(index.blobs) == 4
    assert not {file for file in old if file.startswith("code/")} & files


class Crash(BaseException):
    """What ends a build wherever it is."""


def build_until(project: Project, step: int, failure: BaseException, monkeypatch) -> bool:
    """Build, with `failure` as the `step`-th file of the output is put in place; whether it came to that."""
    calls, replace = itertools.count(), Path.replace
    stopped = []

    def replace_or_fail(path: Path, target: Path) -> Path:
        if path.is_relative_to(project.output) and next(calls) == step:
            stopped.append(path)
            raise failure
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace_or_fail)
        with contextlib.suppress(Crash):
            result = project.build(*TWO)
            if stopped:
                assert result.exit_code == 1 and result.stderr == (
                    "aotbuild: error: bundle tiny-gfx942 cannot be written: No space left on device: somewhere\n"
                )
    return bool(stopped)


TWO = ("--filter", "dtype=float16,block=16")


@pytest.mark.parametrize("failure", [Crash(), OSError(28, "No space left on device", "somewhere")])
def test_a_bundle_is_the_old_one_or_the_new_one_wherever_writing_stops(tmp_path, monkeypatch, failure):
    project = Project(tmp_path)
    old, new = tmp_path / "old", tmp_path / "new"
    project.build(*TWO, "-o", str(old))
    (tmp_path / "k.py").write_text(KERNELS.replace("value * factor", "value * factor + 1"))
    assert figures(project.build(*TWO, "-o", str(new))) == (2, 0)
    old_id, new_id = (read_index(output / "tiny-gfx942").id for output in (old, new))
    assert old_id != new_id
    for step in itertools.count():
        shutil.rmtree(project.output, ignore_errors=True)
        shutil.copytree(old, project.output)
        stopped = build_until(project, step, failure, monkeypatch)
        assert project.bundle().id == (old_id if stopped else new_id), "and every code object of it is there"
        assert not [name for name in contents(project.output / "tiny-gfx942") if Path(name).name.startswith(".")]
        if not stopped:
            break
    assert step >= 3, "two code objects and the index, at the least"
    assert contents(project.output / "tiny-gfx942") == contents(new / "tiny-gfx942")


def test_files_may_be_read_by_all(tmp_path):
    project = Project(tmp_path)
    project.build("--filter", "dtype=float16,block=16")
    modes = {path.stat().st_mode & 0o777 for path in (project.output / "tiny-gfx942").rglob("*") if path.is_file()}
    assert modes == {0o644}


def test_the_writers_names_are_the_readers(tmp_path):
    project = Project(tmp_path)
    project.build("--filter", "dtype=float16,block=16")
    folder, index = project.output / "tiny-gfx942", project.bundle()
    for key, blob in index.blobs.items():
        assert len(key) == records.HASH_LENGTH and blob.sha256.startswith(key)
        assert (folder / blob.file).stat().st_size == blob.size == len(read_blob(folder, blob, "gfx942"))
