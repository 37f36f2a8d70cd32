"""The index arrays of a pass over tokens of several sequences, in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aot_models.generation.scheduler import Running, Span, Step

Array = np.ndarray


@dataclass(frozen=True)
class Part:
    """Spans whose attention is computed by one op.

    Attributes:
        rows: the spans' rows of the pass.
        fresh: the sequences have no earlier tokens, so that attention does not read the cache.
        starts: the first row of each span, int32 [spans + 1].
        longest: the most tokens of a span.
        tables: block tables, int32 [spans, blocks]; -1 for no block.
        seqlens: number of keys of each sequence, including this pass, int32 [spans].
    """

    rows: slice
    fresh: bool
    starts: Array
    longest: int
    tables: Array
    seqlens: Array


@dataclass(frozen=True)
class Pass:
    """The tokens of a step, ordered by parts.

    Attributes:
        ids, positions, slots: int32 [tokens]; a slot is block * block_size + offset.
        last: the row of the last token of each sampling span, int32 [sampling spans].
        spans: the spans that sample.
        adapters: the name of each token's adapter; "": none.
    """

    ids: Array
    positions: Array
    slots: Array
    parts: tuple[Part, ...]
    last: Array
    spans: tuple[Span, ...]
    adapters: tuple[str, ...]


def pass_of(step: Step, block_size: int, width: int) -> Pass:
    """Order the spans of a step by parts. width: blocks in a row of the tables."""
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
    """The slots for the keys and values of tokens."""
    at = np.arange(start, start + count)
    return np.asarray(sequence.blocks)[at // block_size] * block_size + at % block_size


def tables_of(sequences: Sequence[Running], rows: int, width: int) -> Array:
    """Block tables, int32 [rows, width]; -1 for no block and no sequence."""
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
