"""Logits and tokens of the families that differ from Llama in more than figures, against a model in numpy."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot_runtime import Bundle
from models.tests.decoders.checking import check
from models.tests.decoders.tiny_families import TINY
from models.tests.random_models import tiny


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", TINY)
def test_logits_of_prompts_and_steps(llama: Bundle, name: str, tmp_path: Path):
    check(llama, tmp_path, *tiny(**TINY[name]), lengths=(3, 14), count=2)
