"""Properties of the kernels of several families."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.kernel_compiling import compile_variant, variants
from tests.support.session_builds import ROOT

pytestmark = pytest.mark.on("emulator")


def test_kernels_have_at_most_30_parameters():
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from aot.manifest.loading import load_manifest
    from aot.source.kernel_source import split_function
    from aot.source.project import project

    ops = [op for path in (ROOT / "manifests").glob("*.yaml") for op in load_manifest(path).spec.ops.values()]
    kernels = {launch.kernel for op in ops for launch in op.launches}
    with project(ROOT).active() as modules:
        counts = {kernel: len(modules.load(*split_function(kernel)).arg_names) for kernel in kernels}
    assert len(counts) > 30 and max(counts.values()) <= 30, counts


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("manifest", "op", "point"), (
    ("attention", "flash_attention", {"HEAD_DIM": 128}), ("attention", "flash_attention_varlen", {"HEAD_DIM": 128}),
    ("decode", "flash_decode", {}), ("decode", "paged_attention", {}), ("decode", "paged_attention_int4", {}),
    ("decode", "mla_decode", {}), ("decode", "flex_decode_document", {}),
    ("rows", "softmax", {"ONE_PASS": True}), ("rows", "softmax", {"ONE_PASS": False}),
    ("gemm", "matmul", {"A_ROWS": False, "B_ROWS": False}), ("gemm", "matmul", {"A_ROWS": True, "B_ROWS": False}),
), ids=str)  # fmt: skip
def test_general_variants_never_narrow_an_offset(manifest: str, op: str, point: dict[str, Any]):
    """Strides, the only arguments of 64 bits, keep their width, and so does what is computed from them."""
    ttir = compile_variant(variants("gfx942", manifest, op, aligned=False, **point)[0]).asm["ttir"]
    head, *body = ttir[ttir.index("tt.func") :].splitlines()
    strides = set(re.findall(r"(%[\w.]+): i64", head))
    uses = [line for line in body if strides & set(re.findall(r"%[\w.]+", line))]
    assert strides and uses and "i64 to i32" not in ttir
    assert all("i64" in line and not re.search(r"\bi32\b", line) for line in uses)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("manifest", ("attention", "attention_quantised", "decode", "rows"))
def test_no_gfx942_variant_spills(tmp_path_factory: pytest.TempPathFactory, manifest: str):
    """Vector registers never spill. Scalar ones spill only to vector registers, for addresses of single elements."""
    from tests.support.emulation.bundling import built

    for variant in built(tmp_path_factory, manifest).index.variants:
        resources = variant.resources
        assert (resources.vgpr_spills, resources.scratch_bytes) == (0, 0), variant
        assert resources.sgpr_spills == 0 or (manifest != "rows" and not variant.aligned), variant
