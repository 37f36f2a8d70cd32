"""Natural loops of a control flow graph, and their nesting.

A back edge leads to a header that dominates its source; the loop consists of the blocks that reach the source without
passing through the header. Loops with the same header are merged. Irreducible cycles (with two entries), which
compilers of structured programs do not generate, are not recognised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Graph = Mapping[int, Sequence[int]]
"""Successors of each block; blocks are identified by the pc of their first instruction."""


@dataclass(frozen=True)
class Loop:
    """A natural loop.

    Attributes:
        header: the only entry block of the loop.
        blocks: all blocks, including the header and inner loops.
        latches: blocks with an edge back to the header.
        parent: header of the innermost enclosing loop.
        depth: nesting depth; 1 for an outermost loop.
    """

    header: int
    blocks: frozenset[int]
    latches: tuple[int, ...]
    parent: int | None
    depth: int


def find_loops(entries: Iterable[int], successors: Graph) -> tuple[Loop, ...]:
    """Find the loops reachable from `entries`, in the order of their headers."""
    roots = frozenset(entries)
    order = _reverse_postorder(sorted(roots), successors)
    predecessors = _predecessors(order, successors)
    dominators = _immediate_dominators(roots, order, predecessors)
    latches: dict[int, list[int]] = {}
    for block in order:
        for target in successors.get(block, ()):
            if _dominates(target, block, dominators):
                latches.setdefault(target, []).append(block)
    bodies = {header: _body(header, ends, predecessors) for header, ends in latches.items()}
    return tuple(_nested(header, bodies, tuple(sorted(latches[header]))) for header in sorted(bodies))


def innermost(loops: Iterable[Loop]) -> dict[int, Loop]:
    """Map each block in a loop to its innermost loop."""
    found: dict[int, Loop] = {}
    for loop in sorted(loops, key=lambda loop: loop.depth):
        found |= dict.fromkeys(loop.blocks, loop)
    return found


_ROOT = -1
"""Virtual block that precedes all entries."""


def _reverse_postorder(entries: Iterable[int], successors: Graph) -> list[int]:
    """Return the blocks in reverse postorder. Iterative, as long kernels would exceed the recursion limit."""
    done: list[int] = []
    seen: set[int] = set()
    for entry in entries:
        if entry in seen:
            continue
        seen.add(entry)
        stack = [(entry, iter(successors.get(entry, ())))]
        while stack:
            block, rest = stack[-1]
            following = next((target for target in rest if target not in seen), None)
            if following is None:
                done.append(block)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(successors.get(following, ()))))
    return done[::-1]


def _predecessors(order: list[int], successors: Graph) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for target in successors.get(block, ()):
            found[target].append(block)
    return found


def _immediate_dominators(
    roots: frozenset[int], order: list[int], predecessors: Mapping[int, list[int]]
) -> dict[int, int]:
    """Compute immediate dominators (Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm")."""
    number = {block: position for position, block in enumerate([_ROOT, *order])}
    found: dict[int, int] = {_ROOT: _ROOT}
    changed = True
    while changed:
        changed = False
        for block in order:
            known = [before for before in predecessors[block] if before in found]
            best = _ROOT if block in roots else known[0]
            for other in known:
                best = _meet(best, other, found, number)
            if found.get(block) != best:
                found[block], changed = best, True
    return found


def _meet(first: int, second: int, dominators: Mapping[int, int], number: Mapping[int, int]) -> int:
    while first != second:
        while number[first] > number[second]:
            first = dominators[first]
        while number[second] > number[first]:
            second = dominators[second]
    return first


def _dominates(above: int, block: int, dominators: Mapping[int, int]) -> bool:
    while block not in (above, _ROOT):
        block = dominators[block]
    return block == above


def _body(header: int, latches: list[int], predecessors: Mapping[int, list[int]]) -> frozenset[int]:
    body, left = {header}, list(latches)
    while left:
        block = left.pop()
        if block not in body:
            body.add(block)
            left += predecessors[block]
    return frozenset(body)


def _nested(header: int, bodies: Mapping[int, frozenset[int]], latches: tuple[int, ...]) -> Loop:
    around = [other for other, body in bodies.items() if header in body and other != header]
    parent = min(around, key=lambda other: len(bodies[other]), default=None)
    return Loop(header, bodies[header], latches, parent, len(around) + 1)
