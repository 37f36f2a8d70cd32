"""The bundle of a model's ops."""

import pytest

from aot_runtime import Bundle
from tests.support.op_bundles import OpBundles


@pytest.fixture(scope="session")
def llama(op_bundles: OpBundles) -> Bundle:
    return op_bundles.open("llama")


@pytest.fixture(scope="session")
def mixtures(op_bundles: OpBundles) -> Bundle:
    return op_bundles.open("mixtures")
