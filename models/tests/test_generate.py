"""The command `aot_models.generate`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from aot_models.generate import main
from aot_models.generation.prompts import Tokens
from aot_models.random_checkpoint import write_checkpoint
from aot_runtime import Bundle
from models.tests.checkpoints.published_adapters import adapter, write_adapter
from models.tests.random_models import generate, one_layer, quantised, tiny
from tests.support.op_bundles import OpBundles

SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture
def command(llama: Bundle, op_bundles: OpBundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the command's first arguments, for a one-layer model in the test's folder."""
    if op_bundles.on != "gpu":  # where no bundle is on disk: variants are compiled when calls need them
        monkeypatch.setattr("aot_models.generate.open_bundle", lambda folder, device: llama)
    return [str(tmp_path), str(llama.path), "--device", llama.device.driver.name]


def test_the_command_continues_texts(
    llama: Bundle, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Texts come in the order of the prompts."""
    model = one_layer(llama, tmp_path, torch_dtype="float32", **SMALL)
    tokens, texts = Tokens(tmp_path), ["Once", "A longer text"]
    found, _ = generate(model, [tokens.encode(text) for text in texts], 3)
    end = int(found[1, 1])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": end, "num_beams": 4}))
    main([*command, *texts, "--tokens", "3", "--burst", "1", "--slots", "1"])
    written = capsys.readouterr()
    new = [[*row, end][: [*row, end].index(end)] for row in found.tolist()]
    assert written.out == "".join(f"{text}{tokens.decode(row)}\n" for text, row in zip(texts, new, strict=True))
    lines = written.err.splitlines()
    assert lines[0] == "generation_config.json asks for num_beams 4, which is not supported and was ignored"
    assert lines[1].startswith("memory: weights 0.") and " a cache of 64 tokens " in lines[1]
    assert lines[2].startswith(f"17 tokens of prompts, 0 of them shared; {sum(map(len, new))} new ones in ")


def test_a_file_of_prompts(llama: Bundle, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    one_layer(llama, tmp_path, **SMALL)
    lines = [{"prompt": "a", "max_tokens": 1, "logprobs": 2}, {"prompt": "a", "max_tokens": 2}]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n\n".join(map(json.dumps, lines)))
    main([*command, "--file", str(path)])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["index"], one["finish"], one["prompt_tokens"], one["new_tokens"]) for one in found] == [
        (0, "length", 1, 1), (1, "length", 1, 2),
    ]  # fmt: skip
    (entry,) = found[0]["logprobs"]
    assert entry["top"][0] == {name: entry[name] for name in ("token", "text", "logprob")} and entry["logprob"] < 0
    assert len(entry["top"]) == 2 and found[1]["text"].startswith(found[0]["text"])


@pytest.mark.slow
def test_adapters_by_request(llama: Bundle, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A prompt has the first adapter; in a file each request names its own, or has none."""
    found, tensors = tiny(num_hidden_layers=1)
    write_checkpoint(tmp_path, found, tensors)
    rng, options = np.random.default_rng(0), []
    for name in ("one", "two"):
        folder = write_adapter(tmp_path / name, *adapter(rng, tensors, ("q_proj", "down_proj")))
        options += ["--adapter", f"{name}={folder}"]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "Once", "adapter": name}) for name in ("", "two", "one")))
    main([*command, *options, "--file", str(path), "--tokens", "5"])
    texts = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert len(set(texts)) == 3
    main([*command, *options, "Once", "--tokens", "5"])
    assert capsys.readouterr().out == f"Once{texts[2]}\n"
    path.write_text(json.dumps({"prompt": "Once", "adapter": "three"}))
    for more, message in (
        (["--file", str(path)], "adapter is 'three'; it may be the name of one: one, two"),
        (["Once", "--adapter", "three"], "--adapter is 'three'; it may be NAME=FOLDER"),
        (["Once", "--adapter", "one=a"], "it may be adapters of unlike names"),
        (["Once", "--adapter", f"three={tmp_path / 'none'}"], r"none/adapter_config\.json: No such file"),
    ):
        with pytest.raises(SystemExit, match=message):
            main([*command, *options, *more])


def test_what_the_command_does_not_find(tmp_path: Path):
    command = [str(tmp_path), str(tmp_path / "nothing"), "Once"]
    write_checkpoint(tmp_path, *quantised("awq")[:2])
    with pytest.raises(SystemExit, match=r"generate: .*nothing"):
        main(command)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(SystemExit, match=r"generate: .*tokenizer\.json: there is no such file"):
        main(command)


@pytest.mark.parametrize(
    "arguments, message",
    (
        (["Once", "--tokens", "600"], "prompt 0 has 4 tokens, with 600 new ones 604; the context has 512"),
        (["", "--tokens", "6"], "prompt 0 has no tokens"),
        (["Once", "--tokens", "100", "--cache", "64"], "prompt 0 of 4 tokens needs, with 100 new ones, 2 blocks of 64"),
        (["Once", "--temperature", "-1"], "temperature is -1.0; it may be a number from 0 to 1000"),
        (["Once", "--seed", "-1"], "seed is -1; it may be"),
        (["Once", "--stop", ""], "stop is ''; it may be a text of at least one character"),
        (["Once", "--slots", "0"], "slots is 0; it may be a whole number of at least 1"),
        (["Once", "--chat"], "has no chat template"),
        (["Once", "--cache", "99999999999"], "the weights need 0."),
        (["--file", "nothing"], "nothing: "),
    ),
)
def test_what_the_command_refuses(
    llama: Bundle, command: list[str], tmp_path: Path, arguments: list[str], message: str,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """Refusals come before any weight is read."""
    write_checkpoint(tmp_path, *quantised("awq")[:2])
    (tmp_path / "chat_template.jinja").unlink()
    monkeypatch.setattr("aot_models.generate.Decoder", None)
    with pytest.raises(SystemExit) as caught:
        main([*command, *arguments])
    assert str(caught.value).startswith(f"generate: {message}") or message in str(caught.value)
