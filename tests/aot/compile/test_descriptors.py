"""Tensor descriptors that the host makes, where the hardware has some of its own."""

import pytest

from aot.compile.compiler import compile_job
from aot.compile.descriptors import descriptor_fields, descriptor_type
from aot.compile.errors import CompileError
from aot.manifest.loading import load_manifest
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
    """The kernel takes pointers there, too: it is held to that layout of its kernargs."""
    _, variant = variants("sm_90")
    assert dict(variant.job.signature)["a_desc"] == descriptor_type("fp16", (16, 32))
    kernel = compile_job(variant.job)
    assert kernel.accesses["a_desc.ptr"] == "r" and kernel.accesses["out_desc.ptr"] == "w"
    assert kernel.global_scratch_bytes == 0


def test_what_is_aligned_is_loaded_in_wide_pieces():
    """Of the last dim's stride it is known that it is 1, of pointers and other strides what the specialisation asks."""
    aligned, general = (variant.job for variant in variants("gfx942"))
    assert aligned.divisible_by_16[:3] == ("a_desc.ptr", "a_desc.shape.1", "a_desc.stride.0")
    assert general.divisible_by_16 == general.pointer_range_32 == ()
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


def test_gluon_kernels_are_refused(tmp_path):
    (tmp_path / "k.py").write_text(GLUON)
    work = jobs.job("f", "sm_90", (("x_desc", "tensordesc<fp16[8,64]>"),), {}, root=str(tmp_path), source="k.py")
    with pytest.raises(CompileError, match="x_desc: a Gluon kernel takes a tensor descriptor of the host as an object"):
        compile_job(work)
