"""The bundle of the matrix products."""

import pytest

from aot_runtime import Bundle
from tests.support.op_bundles import OpBundles


@pytest.fixture(scope="session")
def gemm(op_bundles: OpBundles) -> Bundle:
    return op_bundles.open("gemm")
