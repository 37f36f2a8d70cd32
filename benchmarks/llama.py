"""Tokens per second of a language model of random weights on this GPU, beside transformers.

    aotbuild --arch sm_90 manifests/llama.yaml && python benchmarks/llama.py dist/llama-sm_90

All layers have the same random weights, in separate device memory. Prompts are random tokens, and each new token is the
likeliest. `step` is the time for one token of all sequences by a replayed graph, averaged between two waits. `host` is
the median time that the host is busy with a step, and `op by op` a step without a graph. Weights are the bytes that a
step reads, and GB/s the rate if it did nothing else. TFLOP/s are those of the prompts in the linear layers.

transformers, if installed, reads the same checkpoint from a temporary folder and uses its own `generate`. Its step is
the time of long texts minus that of texts of one token. The difference is the largest between our logits after the
prompts and transformers', relative to the largest logit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import line, median, seconds
from on_gpu import heading, import_torch

from aot_models.checkpoints.folder import Checkpoint
from aot_models.decoders.decoder import Decoder
from aot_models.decoders.families import config_of
from aot_models.generation.batch import Batch
from aot_models.generation.blocks import BlockPool, blocks_for
from aot_models.generation.cache import BLOCK_SIZE, Cache
from aot_models.generation.engine import Engine
from aot_models.generation.options import Limits
from aot_models.generation.scheduler import Request, Scheduler, Step
from aot_models.random_checkpoint import FAMILIES, GPTQ, SIZES, random_tensors, settings, write_checkpoint
from aot_runtime import AotError, Bundle, DeviceArray, open_bundle

Stored = tuple[Mapping[str, Any], Mapping[str, np.ndarray]]
"""config.json and the tensors of a checkpoint."""


@dataclass(frozen=True)
class Times:
    """Times in seconds. prefill: of all prompts; step, host and op_by_op: of one token of each sequence.

    logits: those after the prompts, float32 [batch, vocabulary].
    """

    logits: np.ndarray
    prefill: float
    step: float
    host: float | None = None
    op_by_op: float | None = None


def options_of(command: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/llama.yaml for this GPU")
    parser.add_argument("--family", choices=FAMILIES, default="llama", help="(default: %(default)s)")
    parser.add_argument("--size", choices=SIZES, default="1b", help="(default: %(default)s)")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), default="bfloat16", help="(default: %(default)s)")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16], help="(default: 1 16)")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens (default: %(default)s)")
    parser.add_argument("--no-gptq", action="store_true", help="leave out weights of 4 bits")
    parser.add_argument("--no-transformers", action="store_true", help="leave out transformers")
    parser.add_argument("--by-op", action="store_true", help="what the ops of prompts and of a step take, too")
    parser.add_argument("--rounds", type=int, default=20, help="of --by-op (default: %(default)s)")
    parser.add_argument("--device", help="(default: the first GPU of the bundle's kind)")
    return parser.parse_args(command)


def main() -> None:
    options = options_of()
    try:
        bundle = open_bundle(options.bundle, options.device)
        print(heading(bundle.device))
        model = f"{options.family} {options.size}, {options.dtype}"
        print(f"{model}, prompts of {options.prompt} tokens, {options.tokens} new ones\n")
        for printed in report(Recorder(bundle) if options.by_op else bundle, options):
            print(printed, flush=True)
    except AotError as error:
        sys.exit(f"llama.py: {error}")


def checkpoints(options: argparse.Namespace) -> Iterator[tuple[str, Checkpoint, Stored]]:
    """Return the models to measure by name, with their configuration."""
    for name, change in {"dense": {}, **({} if options.no_gptq else {"GPTQ": GPTQ})}.items():
        found = settings(options.size, options.family, torch_dtype=options.dtype, **change)
        tensors = random_tensors(found, alike=True)
        yield name, Checkpoint.in_memory(found, tensors), (found, tensors)


def report(bundle: Bundle | Recorder, options: argparse.Namespace) -> Iterator[str]:
    """Yield lines of a table as they are measured."""
    headings = ("tokens/s", "step ms", "host ms", "op by op ms", "weights GB/s", "prefill ms", "TFLOP/s", "difference")
    yield line("", headings)
    for name, checkpoint, stored in checkpoints(options):
        model = decoder(bundle, checkpoint, options)
        dense = not checkpoint.values.get("quantization_config")
        peer = import_transformers(stored, options.dtype) if dense and not options.no_transformers else None
        for batch in options.batches:
            prompts = random_prompts(model, batch, options.prompt)
            work = Work(batch, weight_bytes(checkpoint, model), prompt_operations(model, batch, options.prompt))
            mine = ours(model, prompts, options.tokens)
            peers = theirs(*peer, prompts, options.tokens) if peer else None
            yield line(f"{name}, batch {batch}", cells(work, mine, peers))
            if peers:
                yield line(f"transformers, batch {batch}", cells(work, peers))
            if isinstance(bundle, Recorder):
                yield from by_op(bundle, model, prompts, options)


@dataclass(frozen=True)
class Work:
    """batch: sequences; nbytes: of the weights that a step reads; operations: of all prompts in the linear layers."""

    batch: int
    nbytes: int
    operations: int


def cells(work: Work, times: Times, peer: Times | None = None) -> list[str]:
    parts = ["-" if part is None else f"{part * 1e3:.3f}" for part in (times.step, times.host, times.op_by_op)]
    difference = f"{np.abs(times.logits - peer.logits).max() / np.abs(peer.logits).max():.1e}" if peer else "-"
    return [
        f"{work.batch / times.step:.1f}", *parts, f"{work.nbytes / times.step / 1e9:.0f}",
        f"{times.prefill * 1e3:.3f}", f"{work.operations / times.prefill / 1e12:.1f}", difference,
    ]  # fmt: skip


def decoder(bundle: Any, checkpoint: Checkpoint, options: argparse.Namespace) -> Decoder:
    return Decoder(bundle, config_of(checkpoint, options.prompt + options.tokens), checkpoint)


def weight_bytes(checkpoint: Checkpoint, model: Decoder) -> int:
    """Return the bytes that a step reads: all but the table of embeddings, unless that is the last layer, too."""
    return checkpoint.nbytes if model.config.tied else checkpoint.nbytes - model.table.nbytes


def prompt_operations(model: Decoder, batch: int, length: int) -> int:
    """Return the operations of a prompt; the last layer runs for its last token only. Each token has its own
    experts."""
    config, shapes = model.config, model.config.linears()
    experts = config.experts
    total = 0
    for name, shape in shapes.items():
        tokens = batch * (1 if name == config.head else length)
        part = experts.chosen / experts.count if experts and f".{experts.each}." in name else 1
        total += int(2 * tokens * shape.inputs * shape.outputs * part)
    return total + (2 * batch * config.hidden * config.vocabulary if config.tied else 0)


def random_prompts(model: Decoder, batch: int, length: int) -> list[list[int]]:
    return np.random.default_rng(batch).integers(0, model.config.vocabulary, (batch, length)).tolist()


def ours(model: Decoder, prompts: Sequence[Sequence[int]], count: int) -> Times:
    """Measure our model, after a first pass over the prompts that loads code and fills the memory pool."""
    engine = engine_for(model, prompts, count)
    step, _ = begun(prompts, Limits(1, logprobs=0))
    logits = np.stack(list(engine.run(step).logits.values()))
    step, scheduler = begun(prompts, Limits(count))
    start = time.perf_counter()
    tokens = engine.run(step).tokens
    prefill = time.perf_counter() - start
    batch = decoding(engine, scheduler, step, tokens)

    def wait() -> None:
        model.device.synchronize(engine.stream)

    op_by_op = seconds(lambda: (batch.step(), wait()))
    batch.step()  # captures
    wait()
    host: list[float] = []
    start = time.perf_counter()
    for _ in range(count - 3):
        host.append(seconds(batch.step))
    wait()
    return Times(logits, prefill, (time.perf_counter() - start) / len(host), median(host), op_by_op)


def engine_for(model: Decoder, prompts: Sequence[Sequence[int]], count: int) -> Engine:
    length = len(prompts[0]) + count
    blocks = len(prompts) * blocks_for(length, BLOCK_SIZE)
    return Engine(model, Cache(model, blocks), len(prompts), length, count)


def begun(prompts: Sequence[Sequence[int]], limits: Limits) -> tuple[Step, Scheduler]:
    """Return the step that reads all prompts at once into new blocks of the cache."""
    tokens, length = sum(map(len, prompts)), len(prompts[0]) + limits.tokens
    pool = BlockPool(len(prompts) * blocks_for(length, BLOCK_SIZE))
    scheduler = Scheduler(pool, BLOCK_SIZE, len(prompts), tokens, limits.tokens, length)
    for prompt in prompts:
        scheduler.submit(Request(tuple(prompt), limits=limits))
    step = scheduler.next()
    assert step is not None
    return step, scheduler


def decoding(engine: Engine, scheduler: Scheduler, step: Step, tokens: Sequence[Sequence[int]]) -> Batch:
    """Return the sequences after their prompts, one token of each per step."""
    sequences = [sequence for sequence, _ in scheduler.done(step, tokens)]
    batch = engine.batch(len(sequences))
    batch.load(sequences, [len(sequence.tokens) for sequence in sequences])
    return batch


class Recorder:
    """A bundle that keeps the calls of its ops, as (op, shape of its largest tensor, call)."""

    def __init__(self, bundle: Bundle):
        self.bundle = bundle
        self.calls: list[tuple[str, tuple[int, ...], Callable[[], object]]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.bundle, name)
        if name not in self.bundle.ops:
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            tensors = [value for value in (*arguments, *named.values()) if isinstance(value, DeviceArray)]
            shape = max(tensors, key=lambda tensor: tensor.nbytes).shape
            self.calls.append((name, shape, partial(found, *arguments, **named)))
            return found(*arguments, **named)

        return call


def by_op(
    recorder: Recorder, model: Decoder, prompts: Sequence[Sequence[int]], options: argparse.Namespace
) -> Iterator[str]:
    """Return the device time of the calls of each op and shape in prompts and in a step: of a graph of just these, all
    layers' one after the other."""
    engine = engine_for(model, prompts, options.tokens)
    step, scheduler = begun(prompts, Limits(options.tokens))
    recorder.calls.clear()
    tokens = engine.run(step).tokens
    yield from shares(recorder, "prompts", options.rounds)
    steps = decoding(engine, scheduler, step, tokens)
    recorder.calls.clear()
    steps.step()
    yield from shares(recorder, "step", options.rounds)


def shares(recorder: Recorder, part: str, rounds: int) -> Iterator[str]:
    for op, shape in dict.fromkeys((op, shape) for op, shape, _ in recorder.calls):
        calls = [call for *kind, call in recorder.calls if kind == [op, shape]]
        taken = graph_seconds(recorder.bundle, calls, rounds)
        label = f"  {part}: {op} {'x'.join(map(str, shape))}"
        yield f"{label.ljust(60)} {len(calls)} calls, {taken / len(calls) * 1e6:.2f} us each, {taken * 1e3:.3f} ms"


def graph_seconds(bundle: Bundle, calls: Sequence[Callable[[], object]], rounds: int) -> float:
    """Return the device time of calls that are replayed together. They name the stream that they are captured on."""
    stream = calls[0].keywords["stream"]
    with bundle.device.capture(stream) as graph:
        for call in calls:
            call()
    graph.launch(stream)
    start = stream.record()
    for _ in range(rounds):
        graph.launch(stream)
    return stream.record().elapsed_ms(start) / 1e3 / rounds


def import_transformers(stored: Stored, dtype: str) -> tuple[Any, Any] | None:
    """Return (torch, transformers' model on the GPU), or None where they are not installed, or see no GPU."""
    torch = import_torch()
    if torch is None:
        return None
    try:
        import transformers
    except ImportError as error:
        print(f"left out: transformers: {error}")
        return None
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), *stored)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        return torch, model.cuda()


def theirs(torch: Any, model: Any, prompts: Sequence[Sequence[int]], count: int) -> Times:
    """Measure transformers' `generate`."""
    ids = torch.tensor(prompts, device="cuda")

    def generate(new: int) -> None:
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new,
                       do_sample=False, pad_token_id=0)  # fmt: skip
        torch.cuda.synchronize()

    with torch.no_grad():
        logits = model(ids).logits[:, -1].float().cpu().numpy()
    generate(2)
    one = min(seconds(partial(generate, 1)) for _ in range(3))
    return Times(logits, one, (seconds(partial(generate, count)) - one) / (count - 1))


if __name__ == "__main__":
    main()
