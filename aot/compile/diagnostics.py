"""Errors and warnings in the output of LLVM, MLIR, ptxas and the linker, and their places in a kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

MAX_TOLD = 4
"""Maximum number of lines of compiler output that an error repeats."""

_LINE = re.compile(r"(?P<head>.*?)\b(?P<kind>error|fatal|warning)\s*:(?!:)\s*(?P<message>.*)", re.IGNORECASE)
_AT = re.compile(r"(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)?\s*\Z")
_OF_LISTING = re.compile(r"(?:, line |triton-amdgpu-assembler:)(?P<line>\d+)(?:;|:\d+:)\s*\Z")
_IN_FUNCTION = re.compile(r"(?P<file>[^\s:]+):(?P<line>\d+):\d+: in function (?P<function>\S+) .*?\): (?P<message>.*)")
_WHY = "Layout has "
"""Beginning of the second line of a diagnostic about a layout, which has the reason."""
_SUMMARIES = ("Failures have been detected", "Ptx assembly aborted due to errors", "PTX codegen error")
"""Beginnings of errors that only refer to other errors."""
_CHANGES_RESULTS = re.compile(
    r"demoting|uninitialized|undefined (register|variable)|exceeds limit|ignoring extern|contains reserved registers",
    re.IGNORECASE,
)
"""Warnings about code that computes something other than the source says."""
_CRASH_NOISE = re.compile(r"UNREACHABLE executed at|PLEASE submit a bug|Stack dump|\s*#?\d+[.\s]|\s*/\S+\(")


@dataclass(frozen=True)
class Diagnostic:
    """An error or a warning.

    Attributes:
        is_error: an error, or a warning that changes results.
        place: `file:line` in the kernel's sources; empty if the compiler gave none.
        text: the line of assembly that it is about, if any.
    """

    message: str
    is_error: bool = True
    place: str = ""
    text: str = ""

    def __str__(self) -> str:
        """The diagnostic in one line or two."""
        said = f"{self.place}: {self.message}" if self.place else self.message
        return f"{said}\n    {self.text}" if self.text else said


def diagnostics(printed: str, listing: str = "") -> list[Diagnostic]:
    """Return errors and warnings in order, without repetition.

    Args:
        listing: the assembly that the compiler made, with its line table; errors of an assembler are lines of it.
    """
    found = [item for line in printed.splitlines() if (item := _diagnostic(line.strip(), _Listing(listing)))]
    return list(dict.fromkeys(found))


def errors(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the errors among diagnostics."""
    return [item for item in found if item.is_error]


def foremost(wrong: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return the first few errors: those with a place, if any, and those that explain them."""
    placed = [item for item in wrong if item.place]
    why = [item for item in wrong if item.message.startswith(_WHY)]
    return [*placed[:MAX_TOLD], *(item for item in why if not item.place)] if placed else [*wrong[:MAX_TOLD]]


def located(found: Sequence[Diagnostic], again: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Add places to the errors of a compilation, from another compilation of the same kernel that prints them. Returns
    the other's errors if these are not the same."""
    if len(found) != len(again):
        return [*again] or [*found]
    return [replace(one, place=one.place or other.place) for one, other in zip(found, again, strict=True)]


def warnings(found: Iterable[Diagnostic]) -> tuple[str, ...]:
    """Return the warnings, each in a line or two."""
    return tuple(str(item) for item in found if not item.is_error)


def last_words(printed: str) -> list[str]:
    """Return the last lines of a compiler that crashed, without its stack."""
    lines = [line for line in printed.splitlines() if line.strip() and not _CRASH_NOISE.match(line)]
    first = next((at for at, line in enumerate(lines) if "ERROR" in line or "Assertion" in line), None)
    kept = lines[-MAX_TOLD:] if first is None else lines[first : first + MAX_TOLD]
    return [_shortened(line.strip()) for line in kept]


def ptxas_output(printed: str) -> str:
    """Return the lines of ptxas."""
    return "\n".join(line for line in printed.splitlines() if line.startswith("ptxas"))


def _diagnostic(line: str, listing: _Listing) -> Diagnostic | None:
    if line.startswith(_WHY):
        return Diagnostic(_shortened(line))
    match = _LINE.match(line)
    if not match or any(summary in match["message"] for summary in _SUMMARIES):
        return None
    head, message = match["head"], match["message"]
    place = text = ""
    if inside := _IN_FUNCTION.match(message):
        place, message = _known(inside), inside["message"]
    elif at := _OF_LISTING.search(head):
        place, text = listing.place(int(at["line"])), listing.text(int(at["line"]))
    elif at := _AT.match(head):
        place = _known(at)
    elif "lld:" in head:
        message = f"the linker: {message}"
    is_error = match["kind"].lower() != "warning" or bool(_CHANGES_RESULTS.search(message))
    return Diagnostic(_shortened(message), is_error, place, _shortened(text))


def _known(place: re.Match[str]) -> str:
    return "" if place["file"] == "<unknown>" else f"{place['file']}:{place['line']}"


def _shortened(line: str) -> str:
    return line if len(line) <= 300 else f"{line[:300]} …"


class _Listing:
    """Assembly with `.loc` directives."""

    _FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?')
    _LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")

    def __init__(self, assembly: str):
        self._lines = assembly.splitlines()

    def text(self, number: int) -> str:
        return self._lines[number - 1].strip() if 0 < number <= len(self._lines) else ""

    def place(self, number: int) -> str:
        for line in reversed(self._lines[:number]):
            if (at := self._LOC.match(line)) and at[2] != "0" and (file := dict(self._files()).get(at[1])):
                return f"{file}:{at[2]}"
        return ""

    def _files(self) -> Iterator[tuple[str, str]]:
        for match in filter(None, map(self._FILE.match, self._lines)):
            yield match[1], "/".join(filter(None, match.groups()[1:])).removeprefix("./")
