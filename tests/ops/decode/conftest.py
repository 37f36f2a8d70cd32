"""The bundle of decoding on the device that `--on` names."""

from __future__ import annotations

import pytest

from aot_runtime import Bundle
from tests.support.op_bundles import OpBundles


@pytest.fixture(scope="session")
def decode(op_bundles: OpBundles) -> Bundle:
    return op_bundles.open("decode")


@pytest.fixture(scope="session")
def looking(op_bundles: OpBundles) -> Bundle:
    """The same, opened to look at what tables on the device hold."""
    filters = "op=paged_attention|flex_decode,T=float16,HEAD_DIM=64"
    return op_bundles.open("decode", filters, check_contents=True)
