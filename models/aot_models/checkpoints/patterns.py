"""Regular expressions from untrusted files, matched without backtracking and within a budget.

A matcher works on all positions of a text at once: a set of positions is an integer with one bit for each. Every part
of an expression is evaluated once for the whole set, and repetitions are charged to a budget. Python's own parser reads
the expressions. Back-references and look-behind are not supported.
"""

from __future__ import annotations

import re
import re._constants as code  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from typing import Any

from aot_models.checkpoints.keys import Key, listed, text
from aot_models.checkpoints.values import CheckpointError, Values, said

LONGEST = 1000
"""Maximum length of an expression, in characters."""
DEEPEST = 30
"""The deepest nesting of groups."""
BUDGET = 6_000_000
"""Evaluated parts of expressions, for all names together: a few seconds."""
NAMES: Key = listed(text(), 1 << 14, [])
"""A list of names or expressions."""

READING = 10
"""The cost of parsing a character."""
COMPARED = 50
"""Plain names that one unit of work compares with a layer's name."""
_PLAIN = re.compile(r"[\w.-]*")
"""Expressions without repetition or choice, which `re` matches in linear time."""


class Budget:
    """The remaining work for the expressions of a file."""

    def __init__(self, values: Values, left: int = BUDGET):
        self.values, self.left = values, left

    def spend(self, work: int) -> None:
        """Charge some work. Raises `CheckpointError` if the budget is exhausted."""
        self.left -= work
        if self.left < 0:
            raise CheckpointError(f"{self.values.path}: its regular expressions take too long to match")


class Subject:
    """A text to match expressions against."""

    def __init__(self, text: str, budget: Budget):
        self.text, self.budget = text, budget
        self.end = 1 << len(text)
        self._found: dict[str, int] = {}

    def places(self, text: str) -> int:
        """The positions where a substring begins, as bits."""
        if (found := self._found.get(text)) is None:
            found, at = 0, self.text.find(text)
            while at >= 0:
                found, at = found | 1 << at, self.text.find(text, at + 1)
            self._found[text] = found
        return found

    def of(self, fits: Callable[[str], bool]) -> int:
        """The positions of the characters for which `fits` is true."""
        return sum(self.places(letter) for letter in set(self.text) if fits(letter))

    @property
    def boundaries(self) -> int:
        """The positions of word boundaries."""
        words = self.of(_is_word)
        return words ^ words << 1


Match = Callable[[Subject, int], int]
"""Maps the positions where a part may begin to those where it may end."""


@dataclass(frozen=True)
class Pattern:
    """A compiled regular expression. size: its number of parts."""

    match: Match
    size: int

    def ends(self, subject: Subject) -> int:
        """The positions where a match from the beginning of a text may end, as bits; 0 if nothing matches."""
        subject.budget.spend(self.size)
        return self.match(subject, 1)


def compiled(text: str, budget: Budget) -> Pattern:
    """Compile an expression. Raises `CheckpointError` if it is invalid or not supported."""
    budget.spend(READING * len(text))
    try:
        if len(text) > LONGEST:
            raise ValueError(f"more than {LONGEST} characters")
        parsed = parser.parse(text)
        if parsed.state.flags & ~re.UNICODE:
            raise ValueError("flags")
        counted: list[object] = []
        return Pattern(_sequence(parsed, DEEPEST, counted), len(counted) + 1)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        path = budget.values.path
        raise CheckpointError(f"{path}: the regular expression {said(text)} is not supported: {error}") from None


class Listed:
    """Layer names that a list selects, by transformers' rule: an entry is a suffix of the name, or an expression that
    matches its first components."""

    def __init__(self, values: Values, listed: Sequence[str]):
        plain = [text for text in listed if _PLAIN.fullmatch(text)]
        self._budget, self._ends = Budget(values), tuple(listed)
        self._budget.spend(READING * sum(map(len, plain)))
        self._plain = re.compile(rf"(?:{'|'.join(plain)})(?:(?<=\.)|(?=\.|$))") if plain else None
        self._others = [compiled(text, self._budget) for text in listed if not _PLAIN.fullmatch(text)]

    def __contains__(self, name: str) -> bool:
        self._budget.spend(len(self._ends) // COMPARED)
        if name.endswith(self._ends) or (self._plain and self._plain.match(name)):
            return True
        subject = Subject(name, self._budget)
        dots = subject.places(".")
        return any(pattern.ends(subject) & (dots | dots << 1 | subject.end) for pattern in self._others)


class Matching:
    """Layer names that begin with a match of one of the expressions."""

    def __init__(self, budget: Budget, expressions: Iterable[str]):
        self._budget = budget
        self._patterns = [compiled(text, budget) for text in expressions]

    def __contains__(self, name: str) -> bool:
        subject = Subject(name, self._budget)
        return any(pattern.ends(subject) for pattern in self._patterns)


def _sequence(parts: Iterable[Any], depth: int, counted: list[object]) -> Match:
    matches: list[Match] = []
    for is_literal, run in groupby(parts, lambda part: part[0] is code.LITERAL):
        if is_literal:
            matches.append(_literal("".join(chr(letter) for _, letter in run)))
            counted.append(None)
        else:
            matches += [_part(kind, argument, depth, counted) for kind, argument in run]

    def match(subject: Subject, at: int) -> int:
        for one in matches:
            at = one(subject, at)
            if not at:
                break
        return at

    return match


def _part(kind: Any, argument: Any, depth: int, counted: list[object]) -> Match:
    """Compile one part. Raises `ValueError` if it is not supported."""
    counted.append(kind)
    if not depth:
        raise ValueError(f"more than {DEEPEST} groups within each other")
    if kind in _SINGLE:
        return _letter(kind, argument)
    if kind is code.AT and argument in _PLACES:
        places = _PLACES[argument]
        return lambda subject, at: at & places(subject)
    if kind is code.SUBPATTERN and not (argument[1] or argument[2]):
        return _sequence(argument[3], depth - 1, counted)
    if kind is code.BRANCH:
        branches = [_sequence(branch, depth - 1, counted) for branch in argument[1]]
        return lambda subject, at: reduce(lambda found, branch: found | branch(subject, at), branches, 0)
    if kind in (code.MAX_REPEAT, code.MIN_REPEAT):
        least, most, repeated = argument
        before = len(counted)
        body = _sequence(repeated, depth - 1, counted)
        if len(repeated) == 1 and repeated[0][0] in _SINGLE and most is code.MAXREPEAT:
            return _run(body, _letters(*repeated[0]), least)
        return _repeat(body, least, most, len(counted) - before)
    if kind in (code.ASSERT, code.ASSERT_NOT) and argument[0] > 0:
        return _ahead(_sequence(argument[1], depth - 1, counted), kind is code.ASSERT)
    raise ValueError(f"it has {str(kind).lower().replace('_', ' ')}")


def _literal(text: str) -> Match:
    return lambda subject, at: (at & subject.places(text)) << len(text)


def _letter(kind: Any, argument: Any) -> Match:
    letters = _letters(kind, argument)
    return lambda subject, at: (at & letters(subject)) << 1


def _letters(kind: Any, argument: Any) -> Callable[[Subject], int]:
    if kind is code.ANY:
        return lambda subject: subject.end - 1 & ~subject.places("\n")
    fits = _fitting(kind, argument)
    return lambda subject: subject.of(fits)


def _fitting(kind: Any, argument: Any) -> Callable[[str], bool]:
    if kind is code.LITERAL:
        return lambda letter: ord(letter) == argument
    if kind is code.NOT_LITERAL:
        return lambda letter: ord(letter) != argument
    if kind is code.RANGE:
        return lambda letter: argument[0] <= ord(letter) <= argument[1]
    if kind is code.CATEGORY:
        return _CATEGORIES[argument]
    negated = argument[0][0] is code.NEGATE
    alternatives = [_fitting(*item) for item in argument[negated:]]
    return lambda letter: any(fits(letter) for fits in alternatives) != negated


def _run(body: Match, letters: Callable[[Subject], int], least: int) -> Match:
    """Match `least` or more characters of a kind: the carry of an addition runs through all of them."""
    first = _repeat(body, least, least, 1)

    def match(subject: Subject, at: int) -> int:
        at, run = first(subject, at), letters(subject)
        return at | (((at & run) + run) ^ run)

    return match


def _repeat(body: Match, least: int, most: int, size: int) -> Match:
    def match(subject: Subject, at: int) -> int:
        # After as many rounds as there are places, nothing is left, or rounds that match no letter change nothing.
        for _ in range(min(least, len(subject.text) + 1)):
            subject.budget.spend(size)
            at = body(subject, at)
        found = at
        for _ in range(min(most - least, len(subject.text) + 1)):
            subject.budget.spend(size)
            at = body(subject, at) & ~found
            if not at:
                break
            found |= at
        return found

    return match


def _ahead(body: Match, wanted: bool) -> Match:
    def match(subject: Subject, at: int) -> int:
        found = 0
        for number in range(at.bit_length()):
            place = 1 << number
            if at & place and bool(body(subject, place)) == wanted:
                found |= place
        subject.budget.spend(at.bit_length())
        return found

    return match


def _is_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


_SINGLE = (code.LITERAL, code.NOT_LITERAL, code.ANY, code.IN)
_PLACES: dict[Any, Callable[[Subject], int]] = {
    code.AT_BEGINNING: lambda subject: 1,
    code.AT_BEGINNING_STRING: lambda subject: 1,
    code.AT_END: lambda subject: subject.end | (subject.end >> 1 if subject.text.endswith("\n") else 0),
    code.AT_END_STRING: lambda subject: subject.end,
    code.AT_BOUNDARY: lambda subject: subject.boundaries,
    code.AT_NON_BOUNDARY: lambda subject: (2 * subject.end - 1) & ~subject.boundaries,
}
_CATEGORIES: dict[Any, Callable[[str], bool]] = {
    code.CATEGORY_DIGIT: str.isdecimal,
    code.CATEGORY_NOT_DIGIT: lambda letter: not letter.isdecimal(),
    code.CATEGORY_SPACE: str.isspace,
    code.CATEGORY_NOT_SPACE: lambda letter: not letter.isspace(),
    code.CATEGORY_WORD: _is_word,
    code.CATEGORY_NOT_WORD: lambda letter: not _is_word(letter),
}
