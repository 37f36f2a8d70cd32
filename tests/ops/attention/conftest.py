"""The bundles of attention on the device that `--on` names."""

from __future__ import annotations

import pytest

from aot_runtime import Bundle
from tests.support.op_bundles import OpBundles


@pytest.fixture(scope="session")
def attention(op_bundles: OpBundles) -> Bundle:
    return op_bundles.open("attention")


@pytest.fixture(scope="session")
def attention_quantised(op_bundles: OpBundles) -> Bundle:
    return op_bundles.open("attention_quantised")
