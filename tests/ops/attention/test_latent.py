"""Multi-head latent attention, from gfx942 code objects on the emulator in strict mode."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle
from tests.ops.attention.latent import CASES, Latent, check, expected, make_call
from tests.support.on_demand import BundleOnDemand


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_both_formulas(latent: Bundle, case: Latent):
    check(latent, make_call(case))


def test_the_formulas_are_one():
    naive, absorbed, _ = expected(make_call(Latent((48, 32, 16, 100), (20, 30), causal=True)))
    for name in ("out", "lse"):
        np.testing.assert_allclose(absorbed[name], naive[name], rtol=1e-12, atol=1e-12)


def test_lds_of_the_largest_fits(latent: BundleOnDemand):
    """Of one dtype, for aligned arguments; `test_no_gfx942_variant_spills` looks at all of them."""
    wanted = {"LATENT": 512, "HEAD_DIM": 128, "T": "bfloat16"}.items()
    found = [variant for variant in latent.index.variants if variant.aligned and wanted <= variant.axis_values.items()]
    largest = [latent.compiled(variant) for variant in found]
    assert largest and max(variant.lds_bytes for variant in largest) <= 65536
    assert all(variant.resources.scratch_bytes == 0 for variant in largest)


def test_tensors_that_do_not_fit(latent: Bundle):
    call = make_call(Latent())
    tensors = {name: item.values for name, item in call.inputs.items()}
    before = latent.device.driver.last
    for message, changes in (
        ("'k_pe' has shape .* dim 2 .*rope.* is 32, but must be 64", {"k_pe": tensors["k_pe"][..., :32]}),
        ("latent is 520; allowed: 1 to 512", {"kv": np.zeros((2, 70, 520), tensors["kv"].dtype)}),
        ("'wkv_b' has shape .* is 3, but must be 2", {"wkv_b": np.zeros((3, 128, 256), tensors["kv"].dtype)}),
        ("'kv' is float16, but 'q_nope' is bfloat16", {"kv": tensors["kv"].astype(np.float16)}),
    ):
        with pytest.raises(ArgumentError, match=message):
            latent.mla_prefill(**(tensors | changes))
    assert latent.device.driver.last is before, "something was launched"
