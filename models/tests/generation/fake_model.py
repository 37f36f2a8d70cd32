"""A model whose next token is a function of the tokens in its cache, so a pass that reads a wrong token shows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from aot_models.generation.arrays import pass_of
from aot_models.generation.scheduler import Request, Scheduler, Step

VOCABULARY = 11


def next_token(tokens: Sequence[int], seed: int = 0) -> int:
    return hashlib.sha256(repr((list(tokens), seed)).encode()).digest()[0] % VOCABULARY


def alone(request: Request) -> list[int]:
    """Return a request's new tokens when it runs alone and without a cache."""
    tokens = list(request.prompt)
    while len(tokens) < request.longest:
        token = next_token(tokens, request.sampling.seed)
        if token in request.end and not request.limits.ignore_end:
            break
        tokens.append(token)
    return tokens[len(request.prompt) :]


@dataclass
class FakeModel:
    """A model whose cache holds (token, position) by slot; a block keeps what it held before."""

    block_size: int
    width: int
    cache: dict[int, tuple[int, int]] = field(default_factory=dict)

    def run(self, step: Step) -> list[list[int]]:
        found = pass_of(step, self.block_size, self.width)
        self.cache |= zip(
            found.slots.tolist(), zip(found.ids.tolist(), found.positions.tolist(), strict=True), strict=True
        )
        seen = {}
        for part in found.parts:
            ids = found.ids[part.rows].tolist()
            for number, (start, stop) in enumerate(zip(part.starts, part.starts[1:], strict=False)):
                keys = ids[start:stop] if part.fresh else self._read(part.tables[number], part.seqlens[number])
                assert keys[-(stop - start) :] == ids[start:stop], "the last keys are those of the queries"
                seen[part.rows.start + int(stop) - 1] = (keys, part.tables[number])
        chosen = {
            span.sequence: self._chosen(*seen[row], span.sequence.request.sampling.seed, step.repeats)
            for row, span in zip(found.last.tolist(), found.spans, strict=True)
        }
        return [chosen[span.sequence] for span in step.sampling]

    def follow(self, step: Step, tokens: Sequence[Sequence[int]], following: Step) -> list[list[int]]:
        """Run a step that follows one whose tokens nobody else knows yet."""
        before = {span.sequence: [*span.sequence.tokens] for span in step.spans}
        for span, found in zip(step.spans, tokens, strict=True):
            span.sequence.tokens += found
        chosen = self.run(following)
        for sequence, known in before.items():
            sequence.tokens[:] = known
        return chosen

    def _chosen(self, keys: list[int], table: Sequence[int], seed: int, repeats: int) -> list[int]:
        chosen = [next_token(keys, seed)]
        while len(chosen) < repeats:
            self.cache[self._slot(table, len(keys))] = (chosen[-1], len(keys))
            keys = self._read(table, len(keys) + 1)
            chosen.append(next_token(keys, seed))
        return chosen

    def _read(self, table: Sequence[int], length: int) -> list[int]:
        found = [self.cache[self._slot(table, position)] for position in range(length)]
        assert [position for _, position in found] == list(range(length))
        return [token for token, _ in found]

    def _slot(self, table: Sequence[int], position: int) -> int:
        block = table[position // self.block_size]
        assert block >= 0, "there is no block for this token"
        return int(block) * self.block_size + position % self.block_size


def check_blocks(scheduler: Scheduler) -> None:
    """Assert that each block has as many users as running sequences hold it, and is free where none does."""
    pool = scheduler.pool
    users = [block for sequence in scheduler.running for block in sequence.blocks]
    assert [pool.users(block) for block in range(pool.count)] == [users.count(block) for block in range(pool.count)]
    assert pool.free == pool.count - len(set(users))
