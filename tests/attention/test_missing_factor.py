"""The fault of tinygrad's attention kernel for RDNA, planted in ours: the suite notices it, its own test does not.

There, what meets V are exponentials relative to the maximum of the block of keys, not to that of the row so far: each
lacks the factor exp(block maximum - row maximum), which the sum that the result is divided by does have.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import numpy as np
import pytest
from attention.building import ROOT, build_for
from attention.cases import Case, make_call
from attention.checking import check

from aot_runtime import Bundle, open_bundle
from kernels.attention.reference import attention

RIGHT, WRONG = "narrow(p, P,", "narrow(p * tl.exp2(origin - block_max)[:, None], P,"
ARCH = "gfx1100"
CASE = Case(head_dims=(64, 64), lengths=(96, 512), return_lse=False)


@dataclass(frozen=True)
class Kernels:
    """Bundles of the kernel as it is, and of the one with the fault."""

    right: Bundle
    wrong: Bundle


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")

    def built(name: str, inner: str) -> Bundle:
        folder = tmp_path_factory.mktemp(name)
        ignored = shutil.ignore_patterns("__pycache__")
        for part in ("kernels/attention", "manifests"):
            shutil.copytree(ROOT / part, folder / part, ignore=ignored)
        (folder / "kernels/attention/inner.py").write_text(inner)
        manifest = folder / "manifests/attention.yaml"
        return open_bundle(
            build_for([make_call(CASE)], manifest, ARCH, folder, 1, folder / "cache"), f"emulator:{ARCH}"
        )

    text = (ROOT / "kernels/attention/inner.py").read_text()
    assert text.count(RIGHT) == 1
    return Kernels(built("right", text), built("wrong", text.replace(RIGHT, WRONG)))


def test_the_suite_notices(kernels: Kernels):
    """On normal random numbers, and more so on larger ones."""
    for magnitude in (1.0, 4.0):
        call = make_call(Case(**(vars(CASE) | {"magnitude": magnitude})))
        check(kernels.right, call)
        with pytest.raises(AssertionError, match="out: max error"):
            check(kernels.wrong, call)


def test_a_mean_of_squares_on_uniform_numbers_does_not(kernels: Kernels):
    """tinygrad's test: numbers of [0, 1), and 1e-2 for the mean square of the error."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.uniform(0, 1, (1, 2, rows, 64)).astype(np.float16) for rows in (96, 512, 512))
    exact = attention(q, k, v, scale=0.125)

    def mean_square(bundle: Bundle) -> float:
        return float(((bundle.flash_attention(q, k, v) - exact) ** 2).mean())

    assert mean_square(kernels.right) < 1e-7 < 1e-5 < mean_square(kernels.wrong) < 1e-2
