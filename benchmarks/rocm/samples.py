"""Random products, which the libraries' own benchmark programs run and compare with a product on the host."""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise

MOST = 160
"""Maximum rows and columns of a matrix: an emulated product of this size takes seconds."""
_TOLERANCES = {"f32_r": 1e-5, "f16_r": 1e-2, "bf16_r": 1e-2}
_TYPES = {"hipblaslt": ("f32_r", "f16_r", "bf16_r"), "rocblas": ("f32_r", "f16_r", "bf16_r")}


@dataclass(frozen=True)
class Case:
    """A product C = alpha op(A) op(B) + beta C."""

    library: str
    type: str
    ops: str
    m: int
    n: int
    k: int
    beta: int

    def __str__(self) -> str:
        return f"{self.library} {self.type} {self.ops} {self.m} x {self.n} x {self.k}, beta {self.beta}"

    @property
    def tolerance(self) -> float:
        return _TOLERANCES[self.type]

    def arguments(self) -> list[str]:
        """Return cases as arguments of the library's benchmark program."""
        sizes = ["-m", str(self.m), "-n", str(self.n), "-k", str(self.k), "--beta", str(self.beta)]
        sizes += ["-i", "1", "-j", "0"]
        a, b = self.ops
        if self.library == "hipblaslt":
            return [*sizes, "--transA", a, "--transB", b, "--precision", self.type, "--verify"]
        rows = {"a": self.m if a == "N" else self.k, "b": self.k if b == "N" else self.n, "c": self.m, "d": self.m}
        types = [text for name in rows for text in (f"--{name}_type", self.type, f"--ld{name}", str(rows[name]))]
        ops = ["--transposeA", a, "--transposeB", b]
        return ["-f", "gemm_ex", *sizes, *ops, *types, "--compute_type", "f32_r", "-v", "1"]

    def error_of(self, output: str) -> float:
        """Return the error that the program found; infinite where it names none."""
        lines = [re.sub(r"^\[\d+\]:", "", line.strip()) for line in output.splitlines()]
        for head, values in pairwise(lines):
            if "norm_error" in head:
                names, found = next(csv.reader(StringIO(head))), next(csv.reader(StringIO(values)))
                known = dict(zip((name.strip() for name in names), found, strict=False))
                return max(float(value) for name, value in known.items() if name.startswith("norm_error"))
        return float("inf")


def cases(library: str, count: int, seed: int) -> Iterator[Case]:
    """Draw `count` cases. A seed always gives the same ones."""
    rng = random.Random(f"{library} {seed}")
    for _ in range(count):
        m, n, k = (rng.randint(1, MOST) for _ in range(3))
        ops = rng.choice(("NN", "NT", "TN", "TT"))
        yield Case(library, rng.choice(_TYPES[library]), ops, m, n, k, rng.choice((0, 1, 2)))
