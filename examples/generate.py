"""Text from a checkpoint and a bundle, with numpy alone on the host.

    aotbuild --arch gfx942 manifests/llama.yaml
    python examples/generate.py CHECKPOINT dist/llama-gfx942 "Once upon a time"

CHECKPOINT is a folder as published: config.json, *.safetensors (float16, bfloat16, or of 4 bits: GPTQ, AWQ) and
tokenizer.json. Prompts are read by flash_attention_varlen; then each token of all sequences is one replay of a captured
graph, which leaves the tokens on the device: the host looks at them every few steps.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from aot_runtime import AotError, open_bundle
from checkpoints.folder import Checkpoint
from checkpoints.values import CheckpointError
from generation.batch import Generation, Sampling, until_end
from generation.cache import Cache, ContextError, blocks_for
from models.decoder import DTYPES, Decoder, MissingOpError
from models.families import config_of


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder of the checkpoint")
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/llama.yaml for this device")
    parser.add_argument("prompts", nargs="+", metavar="PROMPT", help="texts that are continued together")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=0, help="0: all (default: %(default)s)")
    parser.add_argument("--top-p", type=float, default=1.0, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, help="(default: the checkpoint's, bfloat16 for float32)")
    parser.add_argument("--cache", type=int, metavar="TOKENS", help="size of the cache (default: what is needed)")
    parser.add_argument("--burst", type=int, default=8, help="steps between looks at tokens (default: %(default)s)")
    parser.add_argument("--device", help="hip, hip:1, cuda, emulator … (default: the first GPU of the bundle's kind)")
    options = parser.parse_args(arguments)
    try:
        for text in run(options):
            print(text, flush=True)
    except (AotError, CheckpointError, ContextError, MissingOpError, ValueError) as error:
        sys.exit(f"generate.py: {error}")


def run(options: argparse.Namespace) -> Iterator[str]:
    """The texts, and how long they took."""
    tokenizer = _tokenizer(options.checkpoint)
    checkpoint = Checkpoint(options.checkpoint)
    prompts = [tokenizer.encode(text).ids for text in options.prompts]
    lengths = [len(prompt) + options.tokens for prompt in prompts]
    config = config_of(checkpoint, max(lengths))
    model = Decoder(open_bundle(options.bundle, options.device), config, checkpoint, options.dtype)
    cache = Cache(model, blocks_for(options.cache) if options.cache else sum(map(blocks_for, lengths)))
    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    generation = Generation(model, cache, prompts, options.tokens, sampling)
    start = time.perf_counter()
    times = []
    for tokens in generation.bursts(options.burst):
        times.append((time.perf_counter() - start, tokens.shape[1]))
        texts = [until_end(row, config.end) for row in tokens]
        if all(len(text) < tokens.shape[1] for text in texts):
            break
    for prompt, text in zip(prompts, texts, strict=True):
        yield tokenizer.decode([*prompt, *text])
    yield _report(sum(map(len, prompts)), len(prompts), times)


def _report(prompt_tokens: int, batch: int, times: list[tuple[float, int]]) -> str:
    first, last = times[0], times[-1]
    text = f"{prompt_tokens} tokens read in {first[0]:.3f} s"
    if last[1] > first[1]:
        text += f", then {batch * (last[1] - first[1]) / (last[0] - first[0]):.1f} tokens/s"
    return text


def _tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    return Tokenizer.from_file(str(path))


if __name__ == "__main__":
    main()
