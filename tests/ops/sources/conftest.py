from collections.abc import Iterator
from concurrent.futures import Executor

import pytest


@pytest.fixture(scope="session", autouse=True)
def _own_compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton-cache")))
        yield


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Executor]:
    from tests.ops.sources.kernel_interpreting import start

    with start() as executor:
        yield executor
