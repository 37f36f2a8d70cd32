"""What a build puts into a bundle, and what it leaves there when it is cut short."""

import contextlib
import itertools
import shutil
from pathlib import Path

import pytest

from aot.write.header import header_text
from aot.write.stub import stub_text
from aot_runtime.bundle.reading import read_blob, read_index
from aot_runtime.call.planner import Planner
from aot_runtime.contract import records
from tests.support.building.builds import Project, contents, figures
from tests.support.building.projects import KERNELS, SCALE, edit

STAGES = """\
import triton
import triton.language as tl


@triton.jit
def partial_sums(x, partial, counter, cols, chunks, stride_x_rows, factor, BLOCK: tl.constexpr):
    tl.store(partial + tl.arange(0, BLOCK), cols * chunks * factor)


@triton.jit
def add_up(partial, total, chunks, LANES: tl.constexpr):
    tl.store(total, tl.load(partial + chunks))
"""
STAGES_MANIFEST = """\
bundle: tiny
ops:
  total:
    tensors:
      x: {shape: [rows, cols], dtype: float32}
      total: {shape: [rows], dtype: float32, role: output}
    scalars: {scale: {type: fp32, default: 1}}
    derived: {chunks: "cdiv(cols, 64)"}
    require: [cols <= 64 * 128]
    workspace:
      partial: {shape: [rows, chunks], dtype: float32}
      counter: {shape: [1], dtype: int32, zero: true}
    launches:
      - kernel: k.py:partial_sums
        name: sums
        grid: [rows, chunks]
        bind: {factor: scale * 2}
        configs: [{blocks: {BLOCK: 64}, options: {num_warps: 1}}]
      - kernel: k.py:add_up
        grid: [rows]
        when: chunks > 1
        configs:
          - {when: chunks <= 16, blocks: {LANES: 16}, options: {num_warps: 1}}
          - {blocks: {LANES: 128}, options: {num_warps: 2}}
"""


def test_launches_in_their_order_with_scratch_between_them(tmp_path: Path):
    project = Project(tmp_path, STAGES_MANIFEST, STAGES)
    assert figures(project.build()) == (6, 0)
    index = project.bundle()
    (op,) = index.ops
    Planner(op, index.variants, "hip")  # a reader can plan with all of it
    assert op.workspace == (
        records.Workspace("partial", ("rows", "chunks"), "float32"),
        records.Workspace("counter", ("1",), "int32", True),
    )
    assert [(launch.kernel, launch.when) for launch in op.launches] == [("sums", ""), ("add_up", "chunks > 1")]
    found = {(v.aligned, v.launch, v.config): v for v in index.variants}
    assert found.keys() == {(a, *rest) for a in (True, False) for rest in ((0, 0), (1, 0), (1, 1))}
    assert {(v.symbol, v.num_warps, v.warp_size) for key, v in found.items() if key[1] == 0} == {
        ("partial_sums", 1, 64)
    }
    for aligned, wide, end in ((True, "i32", [32, 36, 40, 48]), (False, "i64", [32, 40, 48, 56])):
        assert [(arg.name, arg.type, arg.value) for arg in found[aligned, 0, 0].kernargs] == [
            ("x", "*float32", "x"),
            ("partial", "*float32", "partial"),
            ("counter", "*int32", "counter"),
            ("cols", "i32", "cols"),
            ("chunks", "i32", "chunks"),
            ("stride_x_rows", wide, "stride(x, 0)"),
            ("factor", "fp32", "scale * 2"),
            (".global_scratch", "*int8", ""),
            (".profile_scratch", "*int8", ""),
        ]
        assert [arg.offset for arg in found[aligned, 0, 0].kernargs] == [0, 8, 16, 24, 28, *end]
    assert {v.num_warps for key, v in found.items() if key[1:] == (1, 1)} == {2}


def test_what_variants_share_is_stored_once(tmp_path: Path):
    """The code of variants that differ in an axis that the kernel does not read, and the options of all variants."""
    configs = "configs: [{when: BLOCK > 16, options: {num_warps: 2}}, {options: {num_warps: 1}}]"
    axis = "    constexprs:\n      SPARE: {values: [1, 2, 3], pick: cols}\n"
    changes = ("configs: [{options: {num_warps: 1}}]", configs), ("    constexprs:\n", axis)
    project = Project(tmp_path, edit(SCALE, *changes))
    assert figures(project.build("--filter", "dtype=float16")) == (4, 0)
    index = project.bundle()
    assert len(index.variants) == 12 and len(index.blobs) == 4
    assert len(list((project.folder_of() / "code").iterdir())) == 4
    assert '"num_warps"' not in index.toolchain["options"] and '"num_stages": 2' in index.toolchain["options"]
    options = {(v.axis_values["BLOCK"], *v.options.items()) for v in index.variants}
    assert options == {(16, ("num_warps", 1)), (32, ("num_warps", 2))}


# Over what was there before


def test_files_of_an_older_build_go(tmp_path: Path):
    project = Project(tmp_path)
    project.build("--filter", "block=16")
    folder = project.folder_of()
    old = set(contents(folder))
    (folder / "code" / ".0123456789abcdef.hsaco.x1y2z3").write_bytes(b"of a build that was killed")
    (folder / ".bundle.json.x1y2z3").write_bytes(b"of a build that was killed")
    (folder / "NOTES").write_text("the user's own")
    (tmp_path / "k.py").write_text(KERNELS.replace("value * factor", "value * factor + 1"))
    assert figures(project.build(*TWO)) == (2, 0)
    index = project.bundle()
    files = {"bundle.json", "include/tiny.h", "stubs/tiny.pyi", "NOTES", *(blob.file for blob in index.blobs.values())}
    assert set(contents(folder)) == files and len(index.blobs) == 2
    assert not {file for file in old if file.startswith("code/")} & files
    assert {(folder / file).stat().st_mode & 0o777 for file in files} == {0o644}, "all may read them"
    assert (folder / "include/tiny.h").read_text() == header_text(index)
    assert (folder / "stubs/tiny.pyi").read_text() == stub_text(index)
    for key, blob in index.blobs.items():  # their names are as the reader has them
        assert len(key) == records.HASH_LENGTH and blob.sha256.startswith(key)
        assert (folder / blob.file).stat().st_size == blob.size == len(read_blob(folder, blob, "gfx942"))


TWO = ("--filter", "dtype=float16,block=16")


class Crash(BaseException):
    """What ends a build wherever it is."""


def build_until(project: Project, step: int, failure: BaseException, monkeypatch: pytest.MonkeyPatch) -> bool:
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
                said = "aotbuild: error: bundle tiny-gfx942 cannot be written: No space left on device: somewhere\n"
                assert (result.exit_code, result.stderr) == (1, said)
    return bool(stopped)


@pytest.mark.parametrize("failure", [Crash(), OSError(28, "No space left on device", "somewhere")])
def test_a_bundle_is_the_old_one_or_the_new_one_wherever_writing_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
):
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
        assert not [name for name in contents(project.folder_of()) if Path(name).name.startswith(".")]
        if not stopped:
            break
    assert step >= 3, "two code objects and the index, at the least"
    assert contents(project.folder_of()) == contents(new / "tiny-gfx942")
