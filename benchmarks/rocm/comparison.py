"""Products that are modelled for our kernels and for hipBLASLt's side by side: squares, and sizes drawn at random."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SQUARES = (2048, 4096, 8192)
TYPES = ("bf16", "f16")
MULTIPLES = {"by 64": 64, "by 8": 8, "odd": 1}
"""Groups of random sizes, and the number that divides each extent."""
LEAST, MOST = 16, 16384
"""Extents of random products."""
MOST_WORK = 1e11
"""Maximum m n k of a random product."""


@dataclass(frozen=True)
class Product:
    """A product of type `type`, whose sizes belong to `group`."""

    group: str
    type: str
    m: int
    n: int
    k: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    def __str__(self) -> str:
        return f"{self.type} {self.m} x {self.n} x {self.k}"


def squares(sizes: Sequence[int]) -> list[Product]:
    return [Product("squares", kind, size, size, size) for kind in TYPES for size in sizes]


def drawn(count: int, seed: int) -> Iterator[Product]:
    """Draw `count` products of each group in turns. Logarithms of extents are uniform; a seed gives the same ones."""
    rng = random.Random(seed)
    for number in range(count):
        for group, multiple in MULTIPLES.items():
            kind = TYPES[number % len(TYPES)]
            while True:
                product = Product(group, kind, *(_extent(rng, multiple) for _ in range(3)))
                if math.prod(product.sizes) <= MOST_WORK:
                    break
            yield product


def _extent(rng: random.Random, multiple: int) -> int:
    drawn = round(math.exp(rng.uniform(math.log(LEAST), math.log(MOST))))
    return drawn | 1 if multiple == 1 else max(1, round(drawn / multiple)) * multiple


def distribution(ratios: Sequence[float]) -> str:
    """Return median, lowest tenth and worst of ratios."""
    ordered = sorted(ratios)
    tenth = ordered[len(ordered) // 10]
    return (
        f"{len(ordered)} products: median {statistics.median(ordered):.2f}, lowest tenth {tenth:.2f}, worst "
        f"{ordered[0]:.2f}"
    )


class Results:
    """A file of modelled seconds, to which each is appended once it is known."""

    def __init__(self, path: Path):
        self._path = path
        self._known: dict[str, float | None] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                key, seconds = json.loads(line)
                self._known[key] = seconds

    def of(self, key: str, model: Callable[[], float | None]) -> float | None:
        """Return the seconds that are known for a key, or those that `model` finds."""
        if key not in self._known:
            self._known[key] = model()
            with self._path.open("a") as file:
                file.write(json.dumps([key, self._known[key]]) + "\n")
        return self._known[key]
