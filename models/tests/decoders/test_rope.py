"""The frequencies of rotary embeddings."""

from __future__ import annotations

import numpy as np
import pytest

from aot_models.checkpoints.values import Values
from aot_models.decoders.families import config_from
from aot_models.random_checkpoint import settings
from models.tests.decoders.tiny_families import LLAMA3

PLAIN = [1, 0.19392276, 0.037606031, 0.0072926651, 0.0014142134, 0.00027424819, 5.3182957e-05, 1.0313385e-05]
FREQUENCIES = {
    "plain": (None, PLAIN),
    "linear": ({"type": "linear", "factor": 4.0}, [frequency / 4 for frequency in PLAIN]),
    "llama3": (  # three as they were, one between, the others an eighth
        {**LLAMA3, "original_max_position_embeddings": 8192},
        [*PLAIN[:4], 0.00052484602, *(frequency / 8 for frequency in PLAIN[5:])],
    ),
}
"""Rotary scalings, and the frequencies that transformers has for them: heads of 16, theta 500000."""


@pytest.mark.parametrize("name", FREQUENCIES)
def test_frequencies_of_the_rotary_embedding(name: str):
    scaling, wanted = FREQUENCIES[name]
    found = config_from(Values(settings("tiny", head_dim=16, rope_scaling=scaling))).attention[0].rope.frequencies
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
