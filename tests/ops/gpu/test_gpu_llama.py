"""A Llama-family model on a real GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("safetensors", reason="the example needs the extra `llama`")
pytest.importorskip("tokenizers", reason="the example needs the extra `llama`")

from aot_runtime import Bundle
from tests.ops.llama.llama_suite import *  # noqa: F403 -- its tests
from tests.ops.llama.llama_suite import CASES, check_case

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES)
def test_other_models(llama: Bundle, name: str, tmp_path: Path):
    check_case(llama, tmp_path, name)
