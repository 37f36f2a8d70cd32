"""Kernels that were not written for a manifest, from `bind` to the results of their gfx942 code."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from aot.manifest.loading import load_manifest
from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import plan_bundle
from aot.targets import parse_arch
from aot_runtime import ArgumentError, Bundle
from tests.support.building.projects import edit, unmarked
from tests.support.emulation.bundling import built
from tests.support.session_builds import ROOT

MANIFEST = ROOT / "tests/support/foreign/foreign.yaml"
X = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return built(tmp_path_factory, MANIFEST)


def axis_values(bundle: Bundle, op: str) -> list[dict[str, object]]:
    return [variant.axis_values for variant in bundle.index.variants if variant.op == op]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_dtype_and_pointers_that_are_none(foreign: Bundle, dtype: type):
    x = X.astype(dtype)
    exact = (x * x).astype(np.float32)
    np.testing.assert_array_equal(foreign.squares(x), exact)
    np.testing.assert_array_equal(foreign.squares(x, X[:, ::-1].copy()), exact + X[:, ::-1])
    assert {values["HAS_BIAS"] for values in axis_values(foreign, "squares")} == {False, True}
    (absent,) = {
        tuple(arg.name for arg in variant.kernargs) for variant in foreign.index.variants
        if variant.op == "squares" and not variant.axis_values["HAS_BIAS"]
    }  # fmt: skip
    assert absent[:5] == ("x_ptr", "out_ptr", "N", "stride_xm", "stride_om")


def test_a_dtype_that_a_call_chooses(foreign: Bundle):
    for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        expected = X[0].astype(dtype).astype(np.float32)
        np.testing.assert_array_equal(foreign.rounded(X[0], to=name), expected)


def test_what_is_a_pointer_in_one_variant_only(foreign: Bundle):
    lengths, shift = np.array([0, 17, 50], np.int32), np.array([2], np.float32)
    sums = np.cumsum(np.pad(X.astype(np.float64), ((0, 0), (1, 0))), axis=1)
    for given, ends in (({"seqlens": lengths}, lengths), ({"length": 20}, [20] * 3), ({}, [50] * 3)):
        for shifted in (False, True):
            found = foreign.prefixes(X, shift=shift, shifted=shifted, **given)
            # The kernel is given the option `num_stages`, too.
            expected = [sums[row, end] + 2 * 3 * shifted for row, end in enumerate(ends)]
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)
    with pytest.raises(ArgumentError, match="requires length <= cols; given: cols=50, length=51"):
        foreign.prefixes(X, shift=shift, length=51)


def test_tuples_of_pointers_and_of_numbers(foreign: Bundle):
    a, b, c = (np.random.default_rng(seed).standard_normal((5, 7)).astype(np.float32) for seed in range(3))
    half = np.float32(0.5)
    np.testing.assert_array_equal(foreign.planes(a, b, weight=0.5), a * half + b * 2)
    np.testing.assert_array_equal(foreign.planes(a, b, c, weight=0.5), a * half + b * 2 - c * half)
    (kernargs,) = {
        tuple(arg.name for arg in variant.kernargs)[:6] for variant in foreign.index.variants
        if variant.op == "planes" and variant.axis_values["HAS_C"]
    }  # fmt: skip
    assert kernargs == ("planes.0", "planes.1", "planes.2", "out_ptr", "strides.0", "weights.0")


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_tensor_descriptors(foreign: Bundle, dtype: type):
    """Descriptors of strided tensors have tiles past their ends, where loads give what the manifest says."""
    values = np.random.default_rng(0).standard_normal((40, 64)).astype(dtype)
    whole, aligned = foreign.device.array(values[:, :50]), foreign.device.array(values)
    assert "specialisation: aligned" in foreign.explain("doubled", aligned)
    for view, is_ragged in ((whole[:37, 5:], True), (whole[3:35], False), (aligned, True), (aligned[8:, :48], False)):
        out = foreign.device.array(np.full((40, 80), 7, dtype))
        into = out[: view.shape[0], : view.shape[1]]
        result = foreign.doubled(view, out=into)
        np.testing.assert_array_equal(into.numpy(), view.numpy() * dtype(2))
        assert (out.numpy()[view.shape[0] :] == 7).all() and (out.numpy()[:, view.shape[1] :] == 7).all()
        assert np.isnan(result.corner.numpy()) == is_ragged
        if dtype is np.float32 and view.shape[1] % 16 == 0:
            np.testing.assert_array_equal(foreign.doubled_on_device(view).numpy(), view.numpy() * 2)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("shape: [5, 7]", "@shape: [5, 7, 1]", "'shape' has 3 elements, but the kernel wants 2: `rows, cols = shape`"),
        (
            'strides: ["stride(a, 0)", "stride(a, 1)"]',
            '@strides: ["stride(a, 0)"]',
            "'strides' has 1 element, but the kernel wants 2: `stride_row, stride_col = strides`",
        ),
        (
            "shape: [5, 7]",
            "@shape: 35",
            "'shape' is a tuple to the kernel, `rows, cols = shape`: bind it to a list of its elements",
        ),
    ],
)
def test_tuples_of_a_wrong_length(tmp_path: Path, old: str, new: str, message: str):
    """The error of the kernel itself tells how many elements it takes."""
    changes = ("root: ../../..", f"root: {ROOT}"), (f"          {old}\n", f"          {new}\n")
    place, text = unmarked(edit(MANIFEST.read_text(), *changes))
    manifest = tmp_path / "m.yaml"
    manifest.write_text(text)
    with pytest.raises(ManifestError) as refused:
        plan_bundle(load_manifest(manifest), parse_arch("gfx942"), {}, False)
    kernel = "tests/support/foreign/kernels.py:planes_kernel"
    assert refused.value.messages == (f"{manifest}:{place}: op 'planes', kernel '{kernel}': parameter {message}",)
