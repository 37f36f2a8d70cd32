"""Logits of whole models in every published format, against a model in float64 of what their weights stand for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors", reason="the example needs the extra `llama`")

from aot_runtime import Bundle
from kernels.gemm.reference import matmul_same_dtype, quantise_same_dtype, quantise_static_same_dtype
from kernels.tolerance import assert_close
from random_checkpoint import write_checkpoint
from tests.examples.checkpoints.published import FORMATS
from tests.examples.models.reference import EXACT, Ops, logits, rounded_ops
from tests.examples.random_models import generate, opened, prompts_of, quantised
from tests.support.dtypes import BF16, eight_bits

pytestmark = pytest.mark.sampled(0)
Array = np.ndarray
VOCABULARY = 320
"""No other layer has so many outputs; the last one is not quantised."""


def rounding(bundle: Bundle, name: str, input_scale: float | None) -> Ops:
    """Ops that round as hardware does, activations to 8 bits among them."""
    published = FORMATS[name]

    def product(x: Array, w: Array, bias: Array | None = None) -> Array:
        if published.activations and w.shape[1] != VOCABULARY:
            q, block = np.zeros(x.shape, eight_bits(bundle, published.kind)), 128
            if input_scale is None:
                block = 128 if published.activations == "block" else x.shape[1]
                codes, scales = quantise_same_dtype(x, q, block)
            else:
                factor = input_scale * (2 if q.dtype.name.endswith("fnuz") else 1)
                scales = np.full((len(x), -(-x.shape[1] // block)), factor, np.float32)
                codes = quantise_static_same_dtype(x, q, np.array([factor], np.float32))
            x = (codes.astype(np.float32) * np.repeat(scales, block, 1)[:, : x.shape[1]]).astype(BF16)
        return matmul_same_dtype(x, w, bias)

    return replace(rounded_ops(BF16), product=product)


@pytest.mark.parametrize("name", FORMATS)
def test_logits_of_a_model(llama: Bundle, name: str, tmp_path: Path):
    """Of prompts, and of the step after them."""
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
