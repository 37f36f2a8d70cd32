import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))  # the builder, too, loads kernels with the project's root importable


@pytest.fixture(scope="session", autouse=True)
def _own_compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton-cache")))
        yield


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Executor]:
    from kernel_interpreting import start

    with start() as executor:
        yield executor
