"""Logits of whole models in every published format, against a model in float64 of what their weights stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aot_models.random_checkpoint import write_checkpoint
from aot_runtime import Bundle
from kernels.tolerance import assert_close
from models.tests.checkpoints.published import FORMATS
from models.tests.decoders.reference import EXACT, logits
from models.tests.decoders.rounding import rounding
from models.tests.random_models import generate, opened, prompts_of, quantised

pytestmark = pytest.mark.sampled(0)


@pytest.mark.parametrize("name", FORMATS)
def test_logits_of_a_model(llama: Bundle, name: str, tmp_path: Path):
    """Compare the logits of prompts, and of the step after them."""
    found, stored, dense = quantised(name)
    write_checkpoint(tmp_path, found, stored)
    model, prompts = opened(llama, tmp_path), prompts_of((1, 5))
    tokens, actual = generate(model, prompts, 2)
    ends = ("input_scale", "activation_scale")
    scale = next((float(x.reshape(-1)[0]) for end, x in stored.items() if end.endswith(ends)), None)
    exact, same = (
        np.stack(
            [
                logits(ops, model.config, dense, [*prompt, *row[:-1]])[-2:]
                for prompt, row in zip(prompts, tokens, strict=True)
            ]
        )
        for ops in (EXACT, rounding(llama, name, scale))
    )
    assert_close(actual, exact, same, 1e-3)
    assert np.array_equal(tokens, actual.astype(np.float32).argmax(-1))
