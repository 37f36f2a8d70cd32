"""The command that continues texts."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("safetensors", reason="the example needs the extra `llama`")

from tokenizers import Tokenizer

from aot_runtime import Bundle
from generate import main
from generation.batch import Generation, until_end
from generation.cache import Cache
from random_checkpoint import write_checkpoint
from tests.examples.random_models import one_layer, quantised
from tests.support.op_bundles import OpBundles


def test_the_command_continues_texts(
    llama: Bundle, op_bundles: OpBundles, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    model = one_layer(llama, tmp_path, torch_dtype="float32", eos_token_id=[7, 9])
    command = [str(tmp_path), str(llama.path), "Once", "A longer text", "--device", llama.device.driver.name]
    if op_bundles.on != "gpu":  # where no bundle is on disk: variants are compiled when calls need them
        monkeypatch.setattr("generate.open_bundle", lambda folder, device: llama)
    main([*command, "--tokens", "3", "--burst", "1"])
    text = capsys.readouterr().out
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in ("Once", "A longer text")]
    *_, tokens = Generation(model, Cache(model, 2), prompts, 3).bursts(2)
    ends = [until_end(row, frozenset({7, 9})) for row in tokens]
    written = "\n".join(tokenizer.decode([*prompt, *row]) for prompt, row in zip(prompts, ends, strict=True))
    assert text.startswith(f"{written}\n17 tokens read in ") and text.endswith(" tokens/s\n")
    with pytest.raises(SystemExit, match=r"generate\.py: sequences of 104, 113 tokens need 4 blocks of 64 tokens; the"):
        main([*command, "--tokens", "100", "--cache", "64"])


def test_what_the_command_does_not_find(tmp_path: Path):
    command = [str(tmp_path), str(tmp_path / "nothing"), "Once"]
    with pytest.raises(SystemExit, match=r"generate\.py: .*tokenizer\.json: there is no such file"):
        main(command)
    write_checkpoint(tmp_path, *quantised("awq")[:2])
    with pytest.raises(SystemExit, match=r"generate\.py: .*nothing"):
        main(command)
