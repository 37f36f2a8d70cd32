"""The bundle of the row-wise ops."""

import pytest

from aot_runtime import Bundle
from tests.support.op_bundles import OpBundles


@pytest.fixture(scope="session")
def rows(op_bundles: OpBundles) -> Bundle:
    return op_bundles.open("rows")
