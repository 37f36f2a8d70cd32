"""The sensitivity of the tiny models: each feature of a family, left out or wrong, moves logits beyond the tolerance
of the tests that compare a device's logits with the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from aot_models.checkpoints.values import Values
from aot_models.decoders.config import Attention, Config
from aot_models.decoders.families import config_from
from kernels.tolerance import assert_close
from models.tests.decoders.reference import EXACT, logits, rounded_ops
from models.tests.decoders.tiny_families import TINY
from models.tests.random_models import Tensors, prompts_of, tiny
from tests.support.dtypes import BF16

pytestmark = pytest.mark.sampled(2)

Fault = Callable[[Config, Tensors], tuple[Config, Tensors]]


def without(**figures: object) -> Fault:
    """Other figures of the model."""
    return lambda config, tensors: (replace(config, **figures), tensors)


def unnamed(**names: object) -> Fault:
    """Tensors that are not there."""
    return lambda config, tensors: (replace(config, names=replace(config.names, **names)), tensors)


def attending(change: Callable[[Attention], Attention]) -> Fault:
    """Other layers."""
    return lambda config, tensors: (replace(config, attention=tuple(map(change, config.attention))), tensors)


def scaled(scale: float) -> Fault:
    return attending(lambda layer: replace(layer, rope=replace(layer.rope, scale=scale)))


def window_is_off_by(tokens: int) -> Fault:
    return attending(lambda layer: replace(layer, window=layer.window and layer.window + tokens))


def layers_change_places(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    return replace(config, attention=config.attention[::-1]), tensors


def one_rope_for_all(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    rope = config.attention[-1].rope
    return replace(config, attention=tuple(replace(layer, rope=rope) for layer in config.attention)), tensors


def other_divisors(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """The divisors of short contexts."""
    found, _ = tiny(**TINY["phi3, long"])
    return replace(config, attention=config_from(Values(found), 64).attention), tensors


def whole_heads_are_rotated(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    return attending(lambda layer: replace(layer, rope=replace(layer.rope, frequencies=layer.rope.frequencies * 2)))(
        config, tensors
    )


def no_biases(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    return config, {name: array for name, array in tensors.items() if not name.endswith(".bias")}


WINDOW = {"window + 1": window_is_off_by(1), "window - 1": window_is_off_by(-1)}
GEMMA: dict[str, Fault] = {
    **WINDOW,
    "norms without 1": without(zero_centred=False),
    "embeddings without their scale": without(embedding_scale=1.0),
    "scores by head_dim": without(attention_scale=None),
    "silu": without(activation="silu"),
    "no norm after attention": unnamed(attention_out_norm=None),
    "no norm after the gated layers": unnamed(mlp_out_norm=None),
}
NORMED: dict[str, Fault] = {"no norms of heads": unnamed(query_norm=None, key_norm=None)}
FAULTS: dict[str, dict[str, Fault]] = {
    "qwen2": {"no biases": no_biases},
    "qwen2, windows": {**WINDOW, "the first layers slide": layers_change_places},
    "qwen3": NORMED,
    "phi3": WINDOW,
    "phi3, long": {
        "tables without their scale": scaled(1.0),
        "divisors of short contexts": other_divisors,
        "whole heads are rotated": whole_heads_are_rotated,
    },
    "gemma2": {
        **GEMMA,
        "scores without bound": without(attention_softcap=0.0),
        "logits without bound": without(logits_softcap=0.0),
        "the second layer slides": layers_change_places,
    },
    "gemma3": {**GEMMA, **NORMED, "one rope for all": one_rope_for_all, "the last slides": layers_change_places},
}


@pytest.mark.parametrize("name", TINY)
def test_every_feature_is_seen(name: str):
    found, tensors = tiny(**TINY[name])
    config = config_from(Values(found))
    (tokens,) = prompts_of([24], config.vocabulary)
    exact, same = (logits(ops, config, tensors, tokens)[-3:] for ops in (EXACT, rounded_ops(np.dtype(BF16))))
    assert_close(same, exact, same, 1e-3)
    for fault, plant in FAULTS[name].items():
        wrong = logits(EXACT, *plant(config, tensors), tokens)[-3:]
        with pytest.raises(AssertionError, match="max error"):
            assert_close(wrong, exact, same, 1e-3, fault)
