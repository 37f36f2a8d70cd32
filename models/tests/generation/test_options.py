"""Options of generation: ranges, types, and defaults from generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aot_models.checkpoints.values import CheckpointError
from aot_models.generation.options import Defaults, Limits, OptionError, Sampling, changed
from aot_models.generation.prompts import Tokens

ENDS = frozenset({2})


@pytest.mark.parametrize(
    "options, wanted, message",
    (
        (Sampling(), {"temperature": -0.1}, "temperature is -0.1; it may be a number from 0 to 1000"),
        (Sampling(), {"temperature": float("nan")}, "temperature is nan; it may be"),
        (Sampling(), {"temperature": True}, "temperature is True; it may be a number"),
        (Sampling(), {"top_p": 0}, "top_p is 0.0; it may be a number over 0, up to 1"),
        (Sampling(), {"top_p": 1.5}, "top_p is 1.5"),
        (Sampling(), {"top_k": -1}, "top_k is -1; it may be a whole number from 0 to 2147483647"),
        (Sampling(), {"top_k": 1.5}, "top_k is 1.5; it may be a whole number"),
        (Sampling(), {"min_p": 1.1}, "min_p is 1.1; it may be a number from 0 to 1"),
        (Sampling(), {"repetition_penalty": 0}, "repetition_penalty is 0.0; it may be a number over 0, up to 100"),
        (Sampling(), {"presence_penalty": "1"}, "presence_penalty is '1'; it may be a number"),
        (Sampling(), {"frequency_penalty": -101}, "frequency_penalty is -101.0; it may be a number from -100 to 100"),
        (Sampling(), {"seed": 2**63}, "seed is 9223372036854775808; it may be a whole number from 0 to"),
        (Sampling(), {"seed": "x"}, "seed is 'x'; it may be a whole number"),
        (Limits(), {"tokens": 0}, "tokens is 0; it may be a whole number of at least 1"),
        (Limits(), {"stops": ["a", ""]}, "stop is ''; it may be a text of at least one character"),
        (Limits(), {"stops": [1]}, "stops is [1]; it may be a text or a list of texts"),
        (Limits(), {"logprobs": 101}, "logprobs is 101; it may be a whole number from 0 to 100"),
        (Limits(), {"logprobs": "2"}, "logprobs is '2'; it may be a whole number"),
        (Limits(), {"ignore_end": 1}, "ignore_end is 1; it may be true or false"),
    ),
)
def test_options_out_of_their_range(options: object, wanted: dict, message: str):
    with pytest.raises(OptionError) as caught:
        changed(options, wanted)
    assert str(caught.value).startswith(message)


def test_options_within_their_range():
    ends = {"temperature": 0, "top_k": 2**31 - 1, "top_p": 1e-9, "seed": 2**63 - 1}
    assert changed(Sampling(), ends) == Sampling(0.0, 2**31 - 1, 1e-9, seed=2**63 - 1)
    assert changed(Limits(), {"stops": "end", "logprobs": 0}) == Limits(stops=("end",), logprobs=0)
    assert not Sampling(1).is_limited and Sampling(top_k=1).is_limited and Sampling(top_p=0.5).is_limited


def test_what_a_model_publishes(tmp_path: Path):
    def read(**values: object) -> Defaults:
        (tmp_path / "generation_config.json").write_text(json.dumps(values))
        return Defaults.read(tmp_path, ENDS)

    assert Defaults.read(tmp_path, ENDS) == Defaults(end=ENDS)
    assert read(temperature=0.6, top_p=0.9, bos_token_id=1) == Defaults(end=ENDS), "without do_sample it is greedy"
    found = read(do_sample=True, temperature=0.6, top_p=0.9, eos_token_id=[4, 5], num_beams=1, min_p=None)
    assert found == Defaults(Sampling(0.6, top_p=0.9), frozenset({4, 5}))
    found = read(do_sample=True, top_k=20, eos_token_id=7, typical_p=0.9, min_p=0.1)
    assert found == Defaults(Sampling(1.0, 20, min_p=0.1), frozenset({7}), (("typical_p", 0.9),))
    assert read(repetition_penalty=1.05, min_p=0.1) == Defaults(Sampling(repetition_penalty=1.05), ENDS)
    for values, message in (
        ({"do_sample": True, "top_p": 2}, r"generation_config\.json: top_p is 2\.0; it may be"),
        ({"eos_token_id": [1, "x"]}, r"eos_token_id is 'x'"),
    ):
        with pytest.raises(OptionError, match=message):
            read(**values)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(OptionError, match=r"generation_config\.json: Expecting property name"):
        Defaults.read(tmp_path)


@pytest.mark.parametrize(
    "content", (b"{}", b"[]", b"[" * 100_000, b"\xff", b'{"model": {"type": "BPE", "vocab": 3}}', b"")
)
def test_tokenizers_that_are_none(content: bytes, tmp_path: Path):
    """They are refused, even where Rust panics, which raises no ordinary exception."""
    pytest.importorskip("tokenizers", reason="the example needs the extra `llama`")
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: "):
        Tokens(tmp_path)


@pytest.mark.parametrize(
    "content", (b"[1]", b"[" * 100_000, b"\xff", b'{"do_sample": true, "temperature": 1' + b"0" * 400 + b"}")
)
def test_defaults_that_are_none(content: bytes, tmp_path: Path):
    (tmp_path / "generation_config.json").write_bytes(content)
    with pytest.raises(OptionError, match=r"generation_config\.json: "):
        Defaults.read(tmp_path)
