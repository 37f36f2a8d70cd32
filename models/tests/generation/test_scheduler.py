"""Continuous batching: each request gets the same result as alone, and all blocks are accounted for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot_models.generation.blocks import BlockPool, keys_of
from aot_models.generation.options import Limits, Sampling
from aot_models.generation.scheduler import ContextError, Request, Scheduler
from models.tests.generation.fake_model import FakeModel, alone, check_blocks

TOKENS = st.integers(0, 1)  # of two: many prompts begin alike
REQUESTS = st.builds(
    Request,
    prompt=st.lists(TOKENS, min_size=1, max_size=20).map(tuple),
    sampling=st.builds(Sampling, seed=st.integers(0, 1)),
    limits=st.builds(
        Limits, tokens=st.integers(1, 9), ignore_end=st.booleans(), logprobs=st.sampled_from([None, None, 3])
    ),
    end=st.frozensets(st.integers(0, 10), max_size=2),
    adapter=st.sampled_from(["", "", "other"]),
)


def run(scheduler: Scheduler, model: FakeModel, steps: int = 10_000) -> list[int]:
    """Run until nothing waits, starting steps before the tokens of the last are known; return each pass's number of
    tokens."""
    sizes = []
    while (step := scheduler.next()) is not None:
        check_blocks(scheduler)
        assert len(scheduler.running) <= scheduler.slots
        assert len({id(span.sequence) for span in step.spans}) == len(step.spans)
        reading = [span.count for span in step.spans if span.sequence.pending > 1]
        assert sum(reading) <= scheduler.chunk and (step.repeats == 1 or not reading)
        sizes.append(sum(span.count for span in step.spans))
        assert len(sizes) < steps, "requests wait for ever"
        tokens = model.run(step)
        while (following := scheduler.following(step)) is not None:
            coming = model.follow(step, tokens, following)
            scheduler.done(step, tokens)
            check_blocks(scheduler)
            step, tokens = following, coming
        scheduler.done(step, tokens)
    check_blocks(scheduler)
    return sizes


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(REQUESTS, min_size=1, max_size=8),
    size=st.integers(1, 5), more=st.integers(0, 12), slots=st.integers(1, 4), chunk=st.integers(1, 12),
    burst=st.integers(1, 4), late=st.integers(0, 8),
)  # fmt: skip
def test_requests_get_what_they_get_alone(
    requests: list[Request], size: int, more: int, slots: int, chunk: int, burst: int, late: int
):
    """There are as few blocks as the longest request needs, and up to 12 more. The last `late` requests come when all
    others are done."""
    longest = max(request.longest for request in requests)
    scheduler = Scheduler(BlockPool(-(-longest // size) + more), size, slots, chunk, burst, longest)
    model = FakeModel(size, -(-longest // size))
    sequences = []
    for group in (requests[late:], requests[:late]):
        mine = [scheduler.submit(request) for request in group]
        run(scheduler, model)
        assert [sequence.new_tokens for sequence in mine] == [alone(request) for request in group]
        sequences += mine
    assert scheduler.is_idle and scheduler.pool.free == scheduler.pool.count
    for sequence in sequences:
        assert sequence.finished == ("length" if not sequence.remaining else "end")


@settings(max_examples=40, deadline=None)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=6), data=st.data())
def test_requests_that_are_given_up_leave_no_block_behind(requests: list[Request], data: st.DataObject):
    """Some are given up while they wait, some between two steps; the others get what they get alone."""
    scheduler = Scheduler(BlockPool(12), 3, 2, 4, 2, 29)
    model, given_up = FakeModel(3, 10), set()
    sequences = [scheduler.submit(request) for request in requests]
    while (step := scheduler.next()) is not None:
        scheduler.done(step, model.run(step))
        for sequence in data.draw(st.lists(st.sampled_from(sequences), max_size=1)):
            if not sequence.finished:
                given_up.add(sequence.number)
            scheduler.finish(sequence, "stop")
        check_blocks(scheduler)
    assert scheduler.pool.free == 12
    for sequence, request in zip(sequences, requests, strict=True):
        if sequence.number not in given_up:
            assert sequence.new_tokens == alone(request)


def scheduler_of(blocks: int = 20, slots: int = 4, chunk: int = 8, burst: int = 4) -> Scheduler:
    return Scheduler(BlockPool(blocks), 4, slots, chunk, burst, 64)


def request(length: int, tokens: int = 4, first: int = 0, **others: object) -> Request:
    return Request((first, *range(1, length)), limits=Limits(tokens), **others)


def test_equal_prompts_share_their_whole_blocks_and_compute_them_once():
    scheduler, model = scheduler_of(), FakeModel(4, 16)
    sequences = [scheduler.submit(request(11)) for _ in range(3)]
    sizes = run(scheduler, model)
    assert sizes[:2] == [8, 3 + 3 + 2], (
        "in chunks of 8: the others go on where the first is, and the last one has to wait"
    )
    assert scheduler.shared == 2 * 8
    late = scheduler.submit(request(11))
    run(scheduler, model)
    assert scheduler.shared == 3 * 8 and late.new_tokens == sequences[0].new_tokens, "and later, while nobody uses them"
    for other in (request(11, adapter="other"), request(11, first=7)):
        scheduler.submit(other)
        run(scheduler, model)
    assert scheduler.shared == 3 * 8


def test_shared_blocks_are_held_once():
    """Three sequences of 3 blocks each, of which 2 are the same, fit in 5."""
    scheduler, model = scheduler_of(blocks=5), FakeModel(4, 16)
    scheduler.submit(request(9, 3))
    run(scheduler, model)
    for _ in range(3):
        scheduler.submit(request(9, 3))
    scheduler.next()
    assert len(scheduler.running) == 3 and scheduler.pool.free == 0
    check_blocks(scheduler)


def test_shared_blocks_that_nobody_uses_are_no_longer_free():
    """The prompt is in 2 of 3 free blocks: one more is free, and two are needed."""
    scheduler, model = scheduler_of(blocks=4), FakeModel(4, 16)
    scheduler.submit(request(9, 3))
    run(scheduler, model)
    other, again = scheduler.submit(request(2, 2, first=9)), scheduler.submit(request(9, 7))
    scheduler.next()
    assert scheduler.running == [other], "which has one of the four blocks"
    check_blocks(scheduler)
    scheduler.finish(other, "stop")
    run(scheduler, model)
    assert again.new_tokens == alone(again.request)


def test_a_block_is_shared_only_when_it_is_full():
    scheduler, model = scheduler_of(chunk=3), FakeModel(4, 16)
    given_up = scheduler.submit(request(9))
    scheduler.done(step := scheduler.next(), model.run(step))
    scheduler.finish(given_up, "stop")
    other = scheduler.submit(request(9))
    run(scheduler, model)
    assert scheduler.shared == 0 and other.new_tokens == alone(other.request)


def test_prompts_are_read_beside_decoding():
    """A step takes a bounded number of the prompt's tokens, and each running sequence gets its token in each step."""
    scheduler, model = scheduler_of(chunk=3), FakeModel(4, 16)
    first = scheduler.submit(request(2, 20))
    scheduler.done(step := scheduler.next(), model.run(step))
    scheduler.submit(request(10, 2, first=9))
    for count in (3, 3, 3):
        before = len(first.tokens)
        step = scheduler.next()
        assert [span.count for span in step.spans] == [1, count] and step.repeats == 1
        scheduler.done(step, model.run(step))
        assert len(first.tokens) == before + 1


def test_nobody_looks_for_a_burst_while_all_sequences_decode():
    scheduler, model = scheduler_of(burst=4), FakeModel(4, 16)
    for tokens in (7, 9):
        scheduler.submit(request(2, tokens))
    repeats = []
    while (step := scheduler.next()) is not None:
        repeats.append(step.repeats)
        scheduler.done(step, model.run(step))
    assert repeats == [1, 4, 2, 2], "no sequence gets more tokens than it asked for"
    scheduler.submit(Request((1,), limits=Limits(2, logprobs=0)))
    scheduler.done(step := scheduler.next(), model.run(step))
    assert scheduler.next().repeats == 1, "whoever wants probabilities looks at each step"


def test_steps_whose_tokens_decide_nothing_follow_one_another():
    scheduler = scheduler_of(slots=2, burst=4)
    long, ending = scheduler.submit(request(2, 12)), scheduler.submit(request(3, 12))
    step = scheduler.next()
    assert scheduler.following(step) is None, "prompts are read first"
    scheduler.done(step, [[1], [1]])
    step = scheduler.next()
    following = scheduler.following(step)
    assert [(one.repeats, *(span.start for span in one.spans)) for one in (step, following)] == [(4, 2, 3), (4, 6, 7)]
    scheduler.finish(ending, "stop")
    assert scheduler.following(step) is None, "who is done gets no more"
    assert [sequence for sequence, _ in scheduler.done(step, [[5] * 4] * 2)] == [long]
    step = scheduler.next()
    assert scheduler.following(step).repeats == 3, "no more tokens than were asked for"
    scheduler.submit(request(2, 12))
    assert scheduler.following(step) is None, "another one may enter"
    scheduler.done(step, [[5] * 4])
    scheduler.done(step := scheduler.next(), [[1], [1]])
    step = scheduler.next()
    assert scheduler.following(step) is None, "one has all its tokens after this step"


@pytest.mark.parametrize(
    "found, message",
    (
        (request(62), "prompt 0 has 62 tokens, with 4 new ones 66; the context has 64"),
        (request(30), "prompt 0 of 30 tokens needs, with 4 new ones, 9 blocks of 4 tokens; the cache has 8"),
        (Request(()), "prompt 0 has no tokens"),
    ),
)
def test_requests_that_can_never_run(found: Request, message: str):
    scheduler = scheduler_of(blocks=8)
    with pytest.raises(ContextError) as caught:
        scheduler.submit(found)
    assert str(caught.value) == message and scheduler.is_idle


def test_blocks_without_users_are_taken_when_no_other_is_left():
    pool = BlockPool(3)
    first, second, third = keys_of([1, 2, 3, 4, 5, 6, 7], 2)
    taken = [pool.take() for _ in range(3)]
    for block, key in zip(taken, (first, second, second), strict=True):
        pool.publish(block, key)  # the third block is as the second, which goes on being shared
        pool.give_back(block)
    with pytest.raises(ValueError, match="block 0 has no users"):
        pool.give_back(0)
    assert pool.take() == taken[2], "one that nobody can share"
    assert pool.take() == taken[0] and pool.share(first) is None
    assert pool.share(second) == taken[1] and pool.share(third) is None
    with pytest.raises(LookupError, match="all 3 blocks of the cache are in use"):
        pool.take()
