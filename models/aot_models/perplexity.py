"""The perplexity of a text file by a checkpoint and a bundle: the lower, the better the model foresees it.

    aotbuild --arch gfx942 manifests/llama.yaml
    python examples/perplexity.py CHECKPOINT dist/llama-gfx942 README.md --window 512 --stride 256

The text is read in windows of tokens. Each token is judged once, behind at least window - stride others where there are
so many: small strides take longer, and give lower figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from aot_models.checkpoints.folder import Checkpoint
from aot_models.checkpoints.values import CheckpointError
from aot_models.decoders.decoder import DTYPES, Decoder, MissingOpError, check_ops, dtype_of
from aot_models.decoders.families import config_from, config_of
from aot_models.generation.memory import Load, plan
from aot_models.generation.perplexity import judge, windows
from aot_models.generation.prompts import Tokens
from aot_runtime import AotError, open_bundle
from aot_runtime.texts import printable


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder of the checkpoint")
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/llama.yaml for this device")
    parser.add_argument("text", type=Path, help="the file, in UTF-8")
    parser.add_argument("--window", type=int, default=2048, help="tokens that are read together (default: %(default)s)")
    parser.add_argument("--stride", type=int, help="tokens from window to window (default: half a window)")
    parser.add_argument("--dtype", choices=DTYPES, help="(default: the checkpoint's, bfloat16 for float32)")
    parser.add_argument("--device", help="hip, hip:1, cuda, emulator … (default: the first GPU of the bundle's kind)")
    options = parser.parse_args(arguments)
    try:
        run(options)
    except (AotError, CheckpointError, MissingOpError, OSError, ValueError) as error:
        sys.exit(printable(f"perplexity.py: {error}"))


def run(options: argparse.Namespace) -> None:
    checkpoint = Checkpoint(options.checkpoint)
    model_context = config_of(checkpoint).context
    if options.window > model_context:
        raise ValueError(f"window is {options.window}; the context has {model_context}")
    tokens = Tokens(options.checkpoint).encode(options.text.read_text(encoding="utf-8"))
    stride = max(options.window // 2, 1) if options.stride is None else options.stride
    count = len(list(windows(len(tokens), options.window, stride)))
    size = min(options.window, len(tokens))
    config = config_from(checkpoint.values, size)
    bundle = open_bundle(options.bundle, options.device)
    check_ops(bundle, config, checkpoint)
    memory = plan(bundle.device, config, dtype_of(config, options.dtype), checkpoint.nbytes, Load(1, size, size), [1])
    print(memory, file=sys.stderr)
    model = Decoder(bundle, config, checkpoint, options.dtype)
    for number, score in enumerate(judge(model, tokens, options.window, stride), 1):
        print(f"window {number} of {count}: {score.perplexity:.4f}", file=sys.stderr, flush=True)
    print(f"perplexity {score.perplexity:.4f} of {score.count} tokens")


if __name__ == "__main__":
    main()
