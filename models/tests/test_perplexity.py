"""The windows of a text, and the scores of its tokens against the reference in numpy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot_models import perplexity
from aot_models.generation.logprobs import log_softmax, token_logprobs
from aot_models.generation.options import OptionError
from aot_models.perplexity import scores, windows
from aot_models.random_checkpoint import write_checkpoint
from aot_runtime import Bundle
from models.tests.decoders.reference import EXACT, logits
from models.tests.random_models import opened, prompts_of, tiny


@given(count=st.integers(2, 60), size=st.integers(2, 20), data=st.data())
def test_each_token_but_the_first_is_scored_once(count: int, size: int, data: st.DataObject):
    stride = data.draw(st.integers(1, size - 1))
    found = list(windows(count, size, stride))
    assert [token for window in found for token in range(window.first, window.end)] == list(range(1, count))
    for window in found:
        assert 0 <= window.begin < window.first < window.end <= window.begin + size
        assert window.begin == 0 or window.first - window.begin >= size - stride, "behind so many others"


@pytest.mark.parametrize(
    "arguments, message",
    (
        ((9, 1, 1), "window is 1; it may be a whole number of at least 2"),
        ((9, 4, 4), "stride is 4; it may be a whole number from 1 to 3, less than the window"),
        ((9, 4, 0), "stride is 0"),
        ((1, 4, 2), "the number of the text's tokens is 1; it may be 2 or more"),
    ),
)
def test_windows_that_cannot_be(arguments: tuple, message: str):
    with pytest.raises(OptionError) as caught:
        list(windows(*arguments))
    assert str(caught.value).startswith(message)


@pytest.mark.slow
def test_probabilities_are_those_of_the_model_in_numpy(llama: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The windows have 9 tokens, and logits are computed for 4 at a time."""
    found, tensors = tiny(
        num_hidden_layers=1, hidden_size=64, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1
    )
    write_checkpoint(tmp_path, found, tensors)
    model, (tokens,) = opened(llama, tmp_path), prompts_of([14])
    monkeypatch.setattr(perplexity, "ROWS", 4)
    *_, score = scores(model, tokens, 9, 6)
    exact = 0.0
    for window in windows(14, 9, 6):
        mine = log_softmax(logits(EXACT, model.config, tensors, tokens[window.begin : window.end]))
        exact += sum(mine[at - 1 - window.begin, tokens[at]] for at in range(window.first, window.end))
    assert score.count == 13 and abs(score.logprob - exact) < 0.02 * 13
    assert math.isclose(score.perplexity, math.exp(-score.logprob / 13))


def test_logarithms_of_probabilities():
    values = np.array([1000.0, 1001.0, 999.0, 1001.0], np.float32)
    exact = np.array([-1.0, 0.0, -2.0, 0.0]) - math.log(2 + math.exp(-1) + math.exp(-2))
    np.testing.assert_allclose(log_softmax(values), exact, rtol=1e-12)
    found = token_logprobs(values, 2, 3)
    assert (found.token, [token for token, _ in found.top]) == (2, [1, 3, 0])
    assert math.isclose(found.logprob, exact[2]) and token_logprobs(values, 0, 0).top == ()
