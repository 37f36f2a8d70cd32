"""Natural loops, on graphs made by hand and against the definition of dominance on random ones."""

from __future__ import annotations

import random

from aot_emulator.profile.loops import find_loops, innermost


def test_nesting():
    graph = {0: (1,), 1: (2,), 2: (3,), 3: (2, 4), 4: (5, 1), 5: (5, 6), 6: (1, 7), 7: ()}
    outer, first, second = find_loops([0], graph)
    assert (outer.header, outer.blocks, outer.latches) == (1, frozenset(range(1, 7)), (4, 6))
    assert (outer.parent, outer.depth) == (None, 1)
    assert (first.header, first.blocks, first.parent, first.depth) == (2, frozenset({2, 3}), 1, 2)
    assert (second.header, second.blocks, second.parent, second.depth) == (5, frozenset({5}), 1, 2)
    inside = innermost((outer, first, second))
    assert {block: inside[block].header for block in inside} == {1: 1, 2: 2, 3: 2, 4: 1, 5: 5, 6: 1}


def test_several_entries():
    graph = {0: (1,), 1: (1, 2), 2: (), 10: (11,), 11: (11, 2)}
    assert [loop.header for loop in find_loops((0, 10), graph)] == [1, 11]
    # What can be entered in its middle from elsewhere is no loop.
    assert not find_loops((0, 2), {0: (1,), 1: (2,), 2: (1, 3), 3: ()})


def test_long_chains_do_not_recurse():
    length = 1500
    graph = {block: (block + 1,) for block in range(length)} | {length: (0,)}
    assert [(loop.header, len(loop.blocks)) for loop in find_loops([0], graph)] == [(0, length + 1)]


def reachable(graph: dict[int, tuple[int, ...]], without: int | None = None) -> set[int]:
    seen: set[int] = set()
    left = [0] if without != 0 else []
    while left:
        block = left.pop()
        if block not in seen and block != without:
            seen.add(block)
            left += graph[block]
    return seen


def test_against_the_definition():
    rng = random.Random(0)
    for _ in range(60):
        size = rng.randrange(2, 14)
        graph = {block: tuple(rng.sample(range(size), rng.randrange(0, min(3, size)))) for block in range(size)}
        everything = reachable(graph)
        dominates = {(a, b) for a in everything for b in everything if a == b or b not in reachable(graph, without=a)}
        expected: dict[int, set[int]] = {}
        for latch, header in ((b, a) for b in everything for a in graph[b] if (a, b) in dominates):
            body = {header, latch}
            while more := {b for b in everything for a in graph[b] if a in body - {header}} - body:
                body |= more
            expected[header] = expected.get(header, set()) | body
        assert {loop.header: set(loop.blocks) for loop in find_loops([0], graph)} == expected, graph
