"""Turn tokens into growing text, in complete characters, up to a stop string."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Decode = Callable[[Sequence[int]], str]
"""Decodes tokens; U+FFFD stands for invalid or incomplete characters."""

INCOMPLETE = "\ufffd"
CONTEXT = 8
"""Tokens of the prompt to decode with the first new ones: decoders treat the first token of a text differently."""


class Detokenizer:
    """Decodes tokens one by one. Incomplete characters are held back.

    The concatenated pieces equal the text that all tokens decode to after the prompt.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int] = ()):
        self._decode = decode
        self._tokens = list(prompt[-CONTEXT:])
        self._known = len(self._tokens)

    def add(self, token: int) -> str:
        """Add a token, and return the new text."""
        self._tokens.append(token)
        text = self._rest()
        if text.endswith(INCOMPLETE):
            return ""
        if text:
            # Decoding depends on the tokens of the last piece only.
            del self._tokens[: self._known]
            self._known = len(self._tokens)
        return text

    def finish(self) -> str:
        """Return the text that was held back."""
        text, self._known = self._rest(), len(self._tokens)
        return text

    def _rest(self) -> str:
        known = self._decode(self._tokens[: self._known]) if self._known else ""
        return self._decode(self._tokens)[len(known) :]


class StopStrings:
    """Finds stop strings in a text that comes in pieces.

    The text ends before the stop string that is completed first; among those completed by the same character, before
    the longest. This does not depend on the pieces. A possible beginning of a stop string is held back.

    Attributes:
        found: a stop string was found.
    """

    def __init__(self, stops: Iterable[str] = ()):
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def add(self, text: str) -> str:
        """Add a piece, and return the text that is certain not to belong to a stop string."""
        if self.found:
            return ""
        held = self._held + text
        matches = [(at + len(stop), at) for stop in self._stops if (at := held.find(stop)) >= 0]
        if matches:
            self.found, self._held = True, ""
            return held[: min(matches)[1]]
        kept = max((_overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - kept :]
        return held[: len(held) - kept]

    def finish(self) -> str:
        """Return the text that was held back. No stop string can follow."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


class TextStream:
    """The text of a request's new tokens, up to a stop string.

    Attributes:
        text: the text so far.
        stopped: a stop string was found.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int] = (), stops: Iterable[str] = ()):
        self._characters, self._stops = Detokenizer(decode, prompt), StopStrings(stops)
        self.text = ""

    @property
    def stopped(self) -> bool:
        return self._stops.found

    def add(self, token: int) -> str:
        """Add a token, and return the new text."""
        return self._grow(self._stops.add(self._characters.add(token)))

    def finish(self) -> str:
        """Return the rest of the text, after the last token."""
        return self._grow(self._stops.add(self._characters.finish()) + self._stops.finish())

    def _grow(self, piece: str) -> str:
        self.text += piece
        return piece
