"""What a pass over tokens of several sequences reads and writes, in numpy: this is all that a device is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aot_models.generation.scheduler import Running, Span, Step

Array = np.ndarray


@dataclass(frozen=True)
class Part:
    """Spans that one attention op serves, whose tokens are those of `rows`.

    Attributes:
        fresh: their sequences have no earlier keys: what a span needs is what the pass computes of itself.
        starts: int32 [spans + 1], where each span's tokens begin among the rows.
        longest: most tokens of a span.
        tables: int32 [spans, blocks], those of the cache; -1 where a sequence has none.
        seqlens: int32 [spans], keys of each sequence, the pass's included.
    """

    rows: slice
    fresh: bool
    starts: Array
    longest: int
    tables: Array
    seqlens: Array


@dataclass(frozen=True)
class Pass:
    """Tokens of a step, part by part.

    Attributes:
        ids, positions, slots: int32 [tokens]; slot: block * block_size + place in it.
        last: int32 [sampling spans], the row of each one's last token, in the order of `spans`.
        spans: those that sample.
        adapters: the name of each token's; "": none.
    """

    ids: Array
    positions: Array
    slots: Array
    parts: tuple[Part, ...]
    last: Array
    spans: tuple[Span, ...]
    adapters: tuple[str, ...]


def pass_of(step: Step, block_size: int, width: int) -> Pass:
    """width: blocks of a row of the tables."""
    groups = [
        [span for span in step.spans if span.start and span.count == 1],
        [span for span in step.spans if span.start and span.count > 1],
        [span for span in step.spans if not span.start],
    ]
    spans = [span for group in groups for span in group]
    ends = np.cumsum([span.count for span in spans])
    at = np.concatenate([np.arange(span.start, span.start + span.count) for span in spans])
    ids = np.concatenate([span.sequence.tokens[span.start : span.start + span.count] for span in spans])
    slots = np.concatenate([slots_of(span.sequence, span.start, span.count, block_size) for span in spans])
    parts, row = [], 0
    for group in groups:
        if group:
            parts.append(_part(group, row, width))
            row = parts[-1].rows.stop
    last = [end - 1 for span, end in zip(spans, ends, strict=True) if span.samples]
    sampling = tuple(span for span in spans if span.samples)
    adapters = tuple(span.sequence.request.adapter for span in spans for _ in range(span.count))
    return Pass(_int32(ids), _int32(at), _int32(slots), tuple(parts), _int32(last), sampling, adapters)


def slots_of(sequence: Running, start: int, count: int, block_size: int) -> Array:
    """Where the keys and values of these tokens go."""
    at = np.arange(start, start + count)
    return np.asarray(sequence.blocks)[at // block_size] * block_size + at % block_size


def tables_of(sequences: Sequence[Running], rows: int, width: int) -> Array:
    """int32 [rows, width]: block tables; -1 where there is no block, or no sequence."""
    tables = np.full((rows, width), -1, np.int32)
    for row, sequence in zip(tables, sequences, strict=False):
        row[: len(sequence.blocks)] = sequence.blocks
    return tables


def _part(spans: Sequence[Span], row: int, width: int) -> Part:
    counts = [span.count for span in spans]
    starts = np.concatenate([[0], np.cumsum(counts)])
    return Part(
        rows=slice(row, row + int(starts[-1])),
        fresh=not spans[0].start,
        starts=_int32(starts),
        longest=max(counts),
        tables=tables_of([span.sequence for span in spans], len(spans), width),
        seqlens=_int32([span.start + span.count for span in spans]),
    )


def _int32(values: object) -> Array:
    return np.asarray(values, np.int32)
