"""Contents of a built bundle."""

from pathlib import Path

from aot.c.files import c_files
from aot_bundle.stub import stub_text
from aot_runtime.bundle.reading import read_blob
from aot_runtime.call.planner import Planner
from aot_runtime.contract import records
from tests.support.building.builds import Project, contents, figures
from tests.support.building.projects import SCALE, edit

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


def test_files_are_what_the_index_says(tmp_path: Path):
    project = Project(tmp_path)
    project.build("--filter", "block=16")
    folder, index = project.folder_of(), project.bundle()
    texts = {file.format(name="tiny") for file in records.TEXT_FILES}
    files = {"bundle.json", *texts, *(blob.file for blob in index.blobs.values())}
    assert set(contents(folder)) == files and len(index.blobs) == 4
    assert {(folder / file).stat().st_mode & 0o777 for file in files} == {0o644}, "all may read them"
    assert {file: (folder / file).read_bytes() for file in texts - {"stubs/tiny.pyi"}} == c_files(index)
    assert (folder / "stubs/tiny.pyi").read_text() == stub_text(index)
    for key, blob in index.blobs.items():  # their names are as the reader has them
        assert len(key) == records.HASH_LENGTH and blob.sha256.startswith(key)
        assert (folder / blob.file).stat().st_size == blob.size == len(read_blob(folder, blob, "gfx942"))
