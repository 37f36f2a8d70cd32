"""Generate text from a checkpoint and a bundle, without torch.

    aotbuild --arch gfx942 manifests/llama.yaml
    python -m aot_models.generate CHECKPOINT dist/llama-gfx942 "Once upon a time"

CHECKPOINT is a folder as published: config.json, *.safetensors and tokenizer.json; docs/checkpoints.md lists the
formats. Prompts are batched continuously: each enters when there is room for it, common prefixes are computed once, and
long prompts are read in chunks. A decoding step is one replay of a captured graph.

Text goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aot_models.checkpoints.folder import Checkpoint
from aot_models.checkpoints.progress import on_terminal
from aot_models.checkpoints.values import CheckpointError
from aot_models.decoders.decoder import DTYPES, Decoder, MissingOpError, check_ops, dtype_of
from aot_models.decoders.families import adapters_of, config_from, config_of
from aot_models.generation.answers import follow
from aot_models.generation.blocks import BlockPool
from aot_models.generation.cache import BLOCK_SIZE, Cache
from aot_models.generation.engine import Engine, serve
from aot_models.generation.memory import Load, plan
from aot_models.generation.options import Defaults, Limits, changed, demand
from aot_models.generation.output import JsonOutput, Output, TextOutput
from aot_models.generation.prompts import SAMPLING, Prompts, Tokens
from aot_models.generation.sampler import check_penalty_ops
from aot_models.generation.scheduler import Request, Running, Scheduler, check_request
from aot_runtime import AotError, open_bundle
from aot_runtime.formats import printable


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    try:
        run(options)
    except (AotError, CheckpointError, MissingOpError, ValueError) as error:
        sys.exit(printable(f"generate: {error}"))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder of the checkpoint")
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/llama.yaml for this device")
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="text to continue")
    parser.add_argument(
        "--file", type=Path, help="file with one prompt per line; .jsonl: objects with their own options"
    )
    parser.add_argument("--chat", action="store_true", help="treat each prompt as a user's message in a chat")
    parser.add_argument("--system", default="", metavar="TEXT", help="system message of the chat")
    parser.add_argument("--template", default="", metavar="NAME", help="chat template to use, if there are several")
    text = parser.add_argument_group("texts (defaults: from generation_config.json)")
    text.add_argument("--tokens", type=int, default=64, help="maximum number of new tokens (default: %(default)s)")
    text.add_argument("--temperature", type=float, help="sampling temperature; 0: always the likeliest token")
    text.add_argument("--top-k", type=int, help="sample from the K likeliest tokens; 0: from all")
    text.add_argument("--top-p", type=float, help="sample from the fewest tokens with this total probability")
    text.add_argument(
        "--min-p", type=float, help="sample from tokens with at least this share of the likeliest's probability"
    )
    text.add_argument("--repetition-penalty", type=float, help="penalty of tokens in the prompt or text; 1: none")
    text.add_argument("--presence-penalty", type=float, help="penalty of tokens in the new text; 0: none")
    text.add_argument("--frequency-penalty", type=float, help="penalty for each occurrence in the new text; 0: none")
    text.add_argument(
        "--seed", type=int, default=0, help="seed of the first prompt; later prompts add 1 each (default: %(default)s)"
    )
    text.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end a text here; may be repeated")
    text.add_argument("--ignore-end", action="store_true", help="continue past tokens that end a text")
    text.add_argument(
        "--logprobs",
        type=int,
        metavar="N",
        help="print log probabilities of each token and the N likeliest; implies --json",
    )
    text.add_argument("--json", action="store_true", help="print one JSON object per line; the default for --file")
    parser.add_argument(
        "--adapter", action="append", default=[], metavar="NAME=FOLDER", dest="adapters",
        help="adapter in PEFT's format; may be repeated. PROMPTs use the first; prompts of a file name theirs",
    )  # fmt: skip
    running = parser.add_argument_group("running")
    running.add_argument(
        "--slots", type=int, default=16, help="maximum number of concurrent sequences (default: %(default)s)"
    )
    running.add_argument(
        "--chunk", type=int, default=2048, help="maximum number of prompt tokens in a step (default: %(default)s)"
    )
    running.add_argument(
        "--burst", type=int, default=8, help="steps between copies of new tokens to the host (default: %(default)s)"
    )
    running.add_argument(
        "--cache",
        type=int,
        metavar="TOKENS",
        help="size of the cache (default: as much as is useful and fits in memory)",
    )
    running.add_argument(
        "--dtype", choices=DTYPES, help="dtype of activations (default: the checkpoint's; bfloat16 for float32)"
    )
    running.add_argument("--device", help="hip, hip:1, cuda, emulator … (default: the first GPU of the bundle's kind)")
    options = parser.parse_intermixed_args(arguments)
    if bool(options.prompts) == bool(options.file):
        parser.error("pass either prompts or --file")
    return options


def run(options: argparse.Namespace) -> None:
    """Generate. All requests are checked before anything is uploaded."""
    checkpoint = Checkpoint(options.checkpoint, on_terminal())
    config = config_of(checkpoint)
    adapters = adapters_of(named_folders(options.adapters), config)
    prompts = prompts_of(options, config.end, tuple(adapters))
    requests = requests_of(options, prompts)
    for number, request in enumerate(requests):
        check_request(request, number, config.context, config.vocabulary)
    bundle = open_bundle(options.bundle, options.device)
    check_ops(bundle, config, checkpoint, bool(adapters))
    check_penalty_ops(bundle, (request.sampling for request in requests))
    lengths = [request.longest for request in requests]
    config = config_from(checkpoint.values, max(lengths))  # rotary embeddings may depend on the longest sequence
    is_penalised = any(request.sampling.is_penalised for request in requests)
    load = Load(min(options.slots, len(requests)), options.chunk, max(lengths), is_penalised)
    dtype = dtype_of(config, options.dtype)
    nbytes = checkpoint.nbytes + sum(adapter.nbytes for adapter in adapters.values())
    memory = plan(bundle.device, config, dtype, nbytes, load, lengths, options.cache)
    note(str(memory))
    scheduler = Scheduler(
        BlockPool(memory.blocks), BLOCK_SIZE, load.slots, load.chunk, options.burst, config.context, config.vocabulary
    )
    sequences = [scheduler.submit(request) for request in requests]
    model = Decoder(bundle, config, checkpoint, options.dtype, adapters)
    engine = Engine(model, Cache(model, memory.blocks), load.slots, load.length, options.burst)
    output = output_of(options, prompts.tokens, requests)
    times = Times()
    for answer, piece in follow(serve(scheduler, engine), sequences, scheduler, prompts.tokens):
        times.note()
        output.show(answer, piece)
    note(times.report(sequences, scheduler.shared))


def requests_of(options: argparse.Namespace, prompts: Prompts) -> list[Request]:
    if not options.file:
        adapter = prompts.adapters[0] if prompts.adapters else ""
        entries = [{"prompt": text, "adapter": adapter} for text in options.prompts]
        return [prompts.request(number, entry) for number, entry in enumerate(entries)]
    found = list(prompts.read(options.file))
    demand("--file", str(options.file), "a file with at least one prompt", bool(found))
    return found


def named_folders(given: Sequence[str]) -> dict[str, Path]:
    """Parse NAME=FOLDER options to folders by name."""
    pairs = [text.partition("=") for text in given]
    for text, (name, _, folder) in zip(given, pairs, strict=True):
        demand("--adapter", text, "NAME=FOLDER", bool(name and folder))
    names = [name for name, _, _ in pairs]
    demand("--adapter", given, "adapters of unlike names", len(set(names)) == len(names))
    return {name: Path(folder) for name, _, folder in pairs}


def prompts_of(options: argparse.Namespace, end: frozenset[int], adapters: tuple[str, ...]) -> Prompts:
    """The defaults of requests: options of the command line override generation_config.json."""
    defaults = Defaults.read(options.checkpoint, end)
    for name, value in defaults.ignored:
        note(f"generation_config.json asks for {name} {value}, which is not supported and was ignored")
    given = {name: getattr(options, name) for name in SAMPLING}
    sampling = changed(defaults.sampling, {name: value for name, value in given.items() if value is not None})
    limits = Limits(options.tokens, tuple(options.stop), options.ignore_end, options.logprobs)
    chat, tokens = options.chat or bool(options.system), Tokens(options.checkpoint)
    return Prompts(
        options.checkpoint, tokens, sampling, limits, defaults.end, chat, options.system, options.template, adapters
    )


def output_of(options: argparse.Namespace, tokens: Tokens, requests: Sequence[Request]) -> Output:
    if options.json or options.file or options.logprobs is not None:
        return JsonOutput(tokens, write)
    is_chat = options.chat or options.system
    return TextOutput(["" if is_chat else tokens.decode(request.prompt) for request in requests], write)


@dataclass
class Times:
    """Times of the first and the last token, in seconds."""

    start: float = field(default_factory=time.perf_counter)
    first: float = 0.0
    last: float = 0.0

    def note(self) -> None:
        self.last = time.perf_counter() - self.start
        self.first = self.first or self.last

    def report(self, sequences: Sequence[Running], shared: int) -> str:
        read = sum(len(sequence.request.prompt) for sequence in sequences)
        new = sum(len(sequence.new_tokens) for sequence in sequences)
        return (
            f"{read} tokens of prompts, {shared} of them shared; {new} new ones in {self.last:.3f} s, "
            f"{new / self.last:.1f} a second, the first after {self.first:.3f} s"
        )


def write(text: str) -> None:
    print(text, end="", flush=True)


def note(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
