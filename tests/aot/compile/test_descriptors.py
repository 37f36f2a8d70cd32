"""Host-made tensor descriptors, also on hardware with descriptors of its own."""

import itertools
import re

import pytest

from aot.compile.compiler import compile_job, map_faults
from aot.compile.descriptors import MapLayout, descriptor_fields, descriptor_type, parse_layout, widest_layout
from aot.errors import CompileError
from aot.manifest.loading import load_manifest
from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import PlannedVariant, plan_bundle
from aot.targets import parse_arch
from tests.support.building import jobs
from tests.support.session_builds import ROOT


def variants(arch: str) -> tuple[PlannedVariant, ...]:
    """The aligned and the general variant of a kernel of float16."""
    manifest = load_manifest(ROOT / "tests/support/foreign/foreign.yaml")
    filters = {"op": frozenset({"doubled"}), "t": frozenset({"float16"})}
    return plan_bundle(manifest, parse_arch(arch), filters, False).variants


def test_on_a_gpu_that_has_descriptors():
    """The kernel takes pointers there too, and its kernargs are held to that layout."""
    _, variant = variants("sm_90")
    assert dict(variant.job.signature)["a_desc"] == descriptor_type("fp16", (16, 32))
    kernel = compile_job(variant.job)
    assert kernel.accesses["a_desc.ptr"] == "r" and kernel.accesses["out_desc.ptr"] == "w"
    assert kernel.global_scratch_bytes == 0


def test_what_is_aligned_is_loaded_in_wide_pieces():
    """The last dim's stride is known to be 1; pointers and other strides are as the specialisation asks."""
    aligned, general = (variant.job for variant in variants("gfx942"))
    assert aligned.divisible[:3] == (("a_desc.ptr", 16), ("a_desc.shape.1", 8), ("a_desc.stride.0", 8))
    assert general.divisible == general.pointer_range_32 == ()
    assert compile_job(aligned).metadata.code_bytes < compile_job(general).metadata.code_bytes * 0.6


def test_fields():
    names = [field.name for field in descriptor_fields("d", descriptor_type("fp16", (8, 64)))]
    assert names == [
        "d.ptr", "d.shape.0", "d.shape.1", "d.stride.0", "d.stride.1", "d.nan", "d.tf32", "d.read_shape.0",
        "d.read_shape.1", "d.read_stride.0", "d.read_stride.1",
    ]  # fmt: skip


GLUON = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def f(x_desc):
    gl.static_assert(True)
"""


def test_what_takes_a_map_gets_no_pointer(tmp_path):
    (tmp_path / "k.py").write_text(GLUON)
    work = jobs.job("f", "sm_90", (("x_desc", "tensordesc<fp16[8,64]>"),), {}, root=str(tmp_path), source="k.py")
    with pytest.raises(CompileError, match="x_desc: a Gluon kernel takes a host tensor descriptor as a tensor"):
        compile_job(work)


# Tensor maps


def test_layouts_and_boxes_of_maps():
    """Both agree with Triton's."""
    from triton.experimental.gluon import language as gl

    blocks = ([64, 64], [8, 32], [4, 256], [512, 128], [16, 16], [8, 8], [128], [1, 2, 64, 64])
    for block, dtype in itertools.product(blocks, (gl.float16, gl.int8)):
        layout = widest_layout(block, dtype.primitive_bitwidth)
        expected = gl.NVMMASharedLayout.get_default_for(block, dtype)
        assert layout == parse_layout(repr(expected)) == parse_layout(layout.text)
    assert [MapLayout(128, 16, 2).box(block) for block in ([512, 128], [64, 32])] == [(256, 64), (64, 32)]
    assert MapLayout(0, 8, 1).box([1024]) == (256,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("BlockedLayout([1], [64], [4], [0])", "the layout of a tensor map must be NVMMASharedLayout"),
        ("NVMMASharedLayout(128)", "lacks element_bitwidth"),
        (
            "NVMMASharedLayout(128, 16, transposed=True)",
            "has transposed, which is not supported in the layout of a tensor map",
        ),
        ("NVMMASharedLayout(128, 16, widths=2)", "unknown key widths of NVMMASharedLayout"),
    ],
)
def test_what_is_no_layout_of_a_map(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse_layout(text)


def test_a_kernel_is_held_to_its_maps():
    signature = (("x", descriptor_type("fp16", (128, 128), MapLayout(128, 16, 2))), ("n", "i32"))
    good = {"block_size": [128, 64], "swizzle": 3, "elem_size": 2, "fp4_padded": False, "is_im2col": False}
    assert list(map_faults(signature, [good])) == []
    assert list(map_faults(signature, [good | {"block_size": [64, 64], "swizzle": 2}])) == [
        "the tensor map 'x' has boxes (64, 64), not (128, 64)", "the tensor map 'x' has swizzle 64, not 128",
    ]  # fmt: skip
    assert list(map_faults(signature, [])) == ["it takes 0 tensor maps, not 1"]


@pytest.mark.parametrize(
    ("arch", "bind", "general", "message"),
    [
        ("gfx942", "{value: x, block: [8, 64]}", False, "'x', a tensor map of 'x': gfx942 has none; a launch that "),
        ("sm_90", "{value: x, block: [8, 64]}", True, "only the aligned specialisation is kept to what a map needs"),
        ("sm_90", "{value: x, block: [8, 64], dims: [cols, rows]}", False, "'x' needs a contiguous last dim"),
        ("sm_90", "{value: x, block: [8, 64], dims: [cols]}", False, "its dims must be those of 'x', each once"),
        ("sm_90", "{value: x, block: [8, 64], dims: [rows, columns]}", False, "'columns' is not a single dim of 'x'"),
        ("sm_90", "{value: x, block: [8, 4]}", False, "a tensor map of 'x': its box is [8, 4] of float16"),
        ("sm_90", '{value: x, block: [8, 64], layout: "NVMMASharedLayout(128, 8)"}', False, "is of 8 bits and rank 2"),
    ],
)  # fmt: skip
def test_what_is_no_tensor_map(tmp_path, arch: str, bind: str, general: bool, message: str):
    form = "general" if general else "aligned"
    manifest = f"""bundle: b
ops:
  f:
    tensors: {{x: {{shape: [rows, cols], dtype: float16, role: inout}}}}
    specialisations: [{form}]
    launches: [{{kernel: "k.py:f", bind: {{x_desc: {bind}}}, grid: ["1"]}}]
"""
    (tmp_path / "k.py").write_text(GLUON)
    (tmp_path / "m.yaml").write_text(manifest)
    with pytest.raises(ManifestError, match=re.escape(message.replace("'x', a", "'x_desc', a"))):
        plan_bundle(load_manifest(tmp_path / "m.yaml"), parse_arch(arch), {}, False)
