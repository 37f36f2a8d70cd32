"""The bundles of the families on the device that `--on` names."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aot_runtime import Bundle
from tests.support.op_bundles import OpBundles


def _opened(manifest: str, filters: str = "", check_contents: bool = False) -> Callable[[OpBundles], Bundle]:
    @pytest.fixture(scope="session")
    def opened(op_bundles: OpBundles) -> Bundle:
        return op_bundles.open(manifest, filters, check_contents=check_contents)

    return opened


attention, attention_quantised = _opened("attention"), _opened("attention_quantised")
decode, gemm, memory, moe, rows = map(_opened, ("decode", "gemm", "memory", "moe", "rows"))
looking = _opened("decode", "op=paged_attention|flex_decode,T=float16,HEAD_DIM=64", check_contents=True)
"""The bundle of decoding, opened to look at what tables on the device hold."""
