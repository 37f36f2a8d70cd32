"""The bundle of the mixtures of experts."""

import pytest

from aot_runtime import Bundle
from tests.support.op_bundles import OpBundles


@pytest.fixture(scope="session")
def moe(op_bundles: OpBundles) -> Bundle:
    return op_bundles.open("moe")
