"""Steps on a device: concurrent requests get the same tokens as alone, which are those of the reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from aot_models.decoders.decoder import Decoder, MissingOpError
from aot_models.generation.engine import batch_sizes, serve
from aot_models.generation.options import Limits, Sampling
from aot_models.generation.scheduler import Request, Scheduler
from aot_models.random_checkpoint import write_checkpoint
from aot_runtime import Bundle
from kernels.decode.advance_reference import advance
from kernels.rows import processing_reference
from kernels.rows import reference as rows_reference
from models.tests.random_models import generate, one_layer, opened, prompts_of, quantised, service, tiny

SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
         "torch_dtype": "float16"}  # fmt: skip


def run(model: Decoder, requests: Sequence[Request], **options: int) -> tuple[list[list[int]], Scheduler]:
    """New tokens of each request."""
    scheduler, engine = service(model, requests, **options)
    sequences = [scheduler.submit(request) for request in requests]
    for _ in serve(scheduler, engine):
        pass
    assert scheduler.pool.free == scheduler.pool.count
    return [sequence.new_tokens for sequence in sequences], scheduler


def test_chunks_and_shared_blocks_give_the_logits_of_whole_prompts(llama: Bundle, tmp_path: Path):
    """A prompt of 70 tokens comes in chunks of 40, beside one with the same beginning and one without."""
    model = one_layer(llama, tmp_path, **SMALL)
    prompt, other = prompts_of([70, 4])
    requests = [Request(tuple(tokens), limits=Limits(1, logprobs=0)) for tokens in (prompt, [*prompt[:69], 7], other)]
    scheduler, engine = service(model, requests, chunk=40)
    for request in requests:
        scheduler.submit(request)
    together = np.array([event.logits for event in serve(scheduler, engine)])
    assert scheduler.shared == 64
    alone = np.concatenate([generate(model, [request.prompt], 1)[1][:, 0] for request in requests])
    assert np.abs(together - alone).max() < 0.01 < 0.1 < np.abs(alone[0] - alone[1]).max()


@pytest.mark.slow
def test_requests_get_what_they_get_alone(llama: Bundle, tmp_path: Path):
    """Few slots and blocks, small chunks, bursts, shared blocks and every kind of sampling change no request's
    tokens."""
    write_checkpoint(tmp_path, *tiny(**SMALL))
    model = opened(llama, tmp_path)
    (text,) = prompts_of([90])
    requests = [
        Request((*text[:66], 1), limits=Limits(4)),
        Request((*text[:66], 2, 3), Sampling(1.0, 20, 0.9, seed=5), Limits(3)),
        Request((5, 6, 7), limits=Limits(4, logprobs=2)),
        Request((9,), Sampling(0.5, repetition_penalty=2, seed=1), Limits(3)),
        Request(tuple(text), Sampling(0.9, seed=2**40), Limits(2)),
    ]
    alone = [run(model, [request])[0][0] for request in requests]
    together, scheduler = run(model, requests, chunk=50, slots=3, blocks=5, burst=2)
    assert together == alone and scheduler.shared == 2 * 64
    assert len({tuple(tokens) for tokens in alone}) == len(alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling", (Sampling(1.5, 20, 0.9, 0.01, seed=2**40), Sampling(0.8, seed=3), Sampling(0.8, 9, 1, 0, 3, 0.9, -0.9)),
    ids=("limited", "plain", "penalised"),
)  # fmt: skip
def test_sampling_is_what_the_reference_takes(llama: Bundle, sampling: Sampling, tmp_path: Path):
    """Tokens come from the prompt's pass, from a step op by op and from a replayed step, with idle rows."""
    model = one_layer(llama, tmp_path, **SMALL)
    requests = [Request(tuple(prompt), sampling, Limits(3, logprobs=0)) for prompt in prompts_of([4, 9, 5])]
    scheduler, engine = service(model, requests, slots=5)
    for request in requests:
        scheduler.submit(request)
    events = list(serve(scheduler, engine))
    for number, event in enumerate(events):
        prompt, new = event.sequence.request.prompt, event.sequence.new_tokens[: number // 3]
        assert event.tokens == drawn(sampling, event.logits, prompt, new)
    assert len(events) == 9


def drawn(sampling: Sampling, logits: np.ndarray, prompt: Sequence[int], new: Sequence[int]) -> list[int]:
    """Return the token that the references of the ops draw from logits."""

    def row(name: str, dtype: type = np.float32) -> np.ndarray:
        return np.array([getattr(sampling, name)], dtype)

    counts = np.bincount([*new], minlength=len(logits))[None] + (np.bincount(prompt, minlength=len(logits)) > 0) * 2**30
    penalties = {name: row(name) for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")}
    processed = processing_reference.process_logits_same_dtype(
        logits.astype(np.float16)[None], counts=counts.astype(np.int32), **penalties
    )
    kept = {"top_k": row("top_k", np.int32), "top_p": row("top_p"), "min_p": row("min_p")}
    position, seeds = np.array([len(prompt) + len(new) - 1]), row("seed", np.int64)
    found = rows_reference.sample(processed.astype(np.float16), row("temperature"), seeds, position, **kept)
    return found.tolist()


def test_sizes_of_batches():
    assert [batch_sizes(slots) for slots in (1, 2, 6)] == [(1,), (1, 2), (1, 2, 4, 6)]


def test_advance(llama: Bundle):
    """Positions advance across blocks, into missing blocks, and up to the last token; there are more sequences than one
    program takes."""
    rng, batch, length, size = np.random.default_rng(0), 150, 40, 8
    tables, sampled = rng.integers(-1, 300, (batch, 4), np.int32), rng.integers(100, 200, batch, np.int32)
    state = {
        "tokens": rng.integers(0, 99, (batch, length), np.int32),
        "positions": rng.integers(-1, length + 2, batch, np.int32),
        "slots": rng.integers(0, 99, batch, np.int32),
        "seqlens_k": rng.integers(0, length, batch, np.int32),
    }
    device = {name: llama.device.array(array) for name, array in state.items()}
    llama.advance(llama.device.array(sampled), llama.device.array(tables), **device, block_size=size)
    wanted = advance(sampled, tables, **state, block_size=size)
    for name, array in zip(state, wanted, strict=True):
        assert np.array_equal(device[name].numpy(), array), name


# What is refused


def test_models_that_a_bundle_does_not_serve(llama: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="heads of 288 elements are not supported; the ops take up to 256"):
        one_layer(llama, tmp_path, head_dim=288)
    found, stored, _ = quantised("awq")
    write_checkpoint(tmp_path, found, stored)
    with pytest.raises(ValueError, match="dtype float32 is not supported; supported: float16, bfloat16"):
        opened(llama, tmp_path, "float32")
    monkeypatch.setattr(Bundle, "ops", tuple(op for op in llama.ops if op not in ("linear_int4", "advance")))
    with pytest.raises(MissingOpError, match="has no advance, linear_int4, which the model needs"):
        opened(llama, tmp_path)
