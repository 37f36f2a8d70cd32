"""The bundle of the ops that copy, read and write memory."""

import pytest

from aot_runtime import Bundle
from tests.support.op_bundles import OpBundles


@pytest.fixture(scope="session")
def memory(op_bundles: OpBundles) -> Bundle:
    return op_bundles.open("memory")
