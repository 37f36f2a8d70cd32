"""Integers and pointers in a kernel: sums of products of a few kinds of atoms.

`x_ptr + row * stride + cols` is the sum of an argument, of a product of a program id and an argument, and of a range.
Any other operation (a quotient, a remainder, a load) is an atom, which records the atoms that it depends on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

MAX_TERMS = 200
"""Maximum number of products of a sum; larger sums become atoms."""

ARGUMENT, PROGRAM, PROGRAMS, RANGE, LOOP, LOADED = "argument", "program", "programs", "range", "loop", "loaded"
LOADED_KEY = "loaded "
"""The beginning of the key of a loaded value, an atom of kind `other`."""
QUOTIENT, REMAINDER, OTHER = "quotient", "remainder", "other"


@dataclass(frozen=True, order=True)
class Atom:
    """A value that is neither a sum nor a product.

    Attributes:
        kind: one of the kinds above.
        key: name of an argument, axis of a program id, length of a range, or parameter of a loaded value; for other
            kinds, a unique text.
        parts: the values that it is computed from.
    """

    kind: str
    key: str
    parts: frozenset[Atom] = field(default=frozenset(), compare=False, repr=False)

    @cached_property
    def below(self) -> frozenset[Atom]:
        """The atom and all that it depends on."""
        return frozenset({self}).union(*(part.below for part in self.parts))


Product = tuple[Atom, ...]
"""The factors of a product, sorted."""


@dataclass(frozen=True)
class Sum:
    """A sum of products, each with a coefficient. The empty product stands for the number 1."""

    terms: Mapping[Product, int]

    @staticmethod
    def of(atom: Atom) -> Sum:
        return Sum({(atom,): 1})

    @staticmethod
    def number(value: int) -> Sum:
        return Sum({(): value} if value else {})

    @property
    def atoms(self) -> frozenset[Atom]:
        """The factors of all products."""
        return frozenset(atom for product in self.terms for atom in product)

    @property
    def below(self) -> frozenset[Atom]:
        """The atoms, and all that they depend on."""
        return frozenset().union(*(atom.below for atom in self.atoms))

    @property
    def constant(self) -> int | None:
        """The number, if the sum is constant; otherwise None."""
        return self.terms.get((), 0) if not set(self.terms) - {()} else None

    def key(self) -> frozenset[tuple[Product, int]]:
        """Key by which sums are compared."""
        return frozenset(self.terms.items())

    @property
    def digest(self) -> str:
        """Short digest of `key`."""
        return f"#{hashlib.sha256(str(sorted(map(str, self.terms.items()))).encode()).hexdigest()[:12]}"

    def plus(self, other: Sum, sign: int = 1) -> Sum:
        terms = dict(self.terms)
        for product, count in other.terms.items():
            terms[product] = terms.get(product, 0) + sign * count
        return _limited({product: count for product, count in terms.items() if count})

    def times(self, other: Sum) -> Sum:
        terms: dict[Product, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                product = tuple(sorted((*left, *right)))
                terms[product] = terms.get(product, 0) + a * b
        return _limited({product: count for product, count in terms.items() if count})

    def select(self, products: Iterable[Product]) -> Sum:
        return Sum({product: self.terms[product] for product in products})

    def argument(self) -> str:
        """The name, if the sum is a single argument; otherwise empty."""
        match list(self.terms.items()):
            case [((Atom(kind="argument", key=name),), 1)]:
                return name
        return ""


def other(text: str, values: Iterable[Sum], kind: str = OTHER) -> Sum:
    """Return an opaque value that depends on others."""
    parts = frozenset().union(*(value.atoms for value in values))
    return Sum.of(Atom(kind, text, parts))


def arguments(atoms: Iterable[Atom]) -> Iterator[str]:
    """Return the names of the arguments among atoms."""
    return (atom.key for atom in atoms if atom.kind == ARGUMENT)


def _limited(terms: dict[Product, int]) -> Sum:
    if len(terms) <= MAX_TERMS:
        return Sum(terms)
    whole = Sum(terms)
    return Sum.of(Atom(OTHER, "a long sum", whole.atoms))
