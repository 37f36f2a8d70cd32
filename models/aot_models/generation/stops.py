"""A text that grows by tokens: characters appear when they are complete, and the text ends at a stop string."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

Decode = Callable[[Sequence[int]], str]
"""Tokens to their text; U+FFFD stands for bytes that are no characters, or none yet."""

INCOMPLETE = "\ufffd"
CONTEXT = 8
"""Tokens of the prompt that the first new ones are decoded with: decoders treat the first token of a text otherwise."""


class Detokenizer:
    """The text of tokens, given as they come. A character whose bytes are not all there is held back.

    The pieces together are what all the tokens decode to behind the prompt.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int] = ()):
        self._decode = decode
        self._tokens = list(prompt[-CONTEXT:])
        self._known = len(self._tokens)

    def add(self, token: int) -> str:
        """What the token adds to the text."""
        self._tokens.append(token)
        text = self._rest()
        if text.endswith(INCOMPLETE):
            return ""
        if text:
            # Only the tokens of the last piece matter to how the next ones are decoded.
            del self._tokens[: self._known]
            self._known = len(self._tokens)
        return text

    def finish(self) -> str:
        """What has been held back."""
        text, self._known = self._rest(), len(self._tokens)
        return text

    def _rest(self) -> str:
        known = self._decode(self._tokens[: self._known]) if self._known else ""
        return self._decode(self._tokens)[len(known) :]


class StopStrings:
    """Finds the first of some strings in a text that comes in pieces.

    The text ends before the one that is complete first, and of those that are complete with the same character before
    the longest, however the text is cut into pieces. What may be the beginning of one is held back.

    Attributes:
        found: whether the text has ended.
    """

    def __init__(self, stops: Iterable[str] = ()):
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def add(self, text: str) -> str:
        """What is certain to be part of the text: it grows by that."""
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
        """What has been held back, of a text that ends without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


class TextStream:
    """The text of a request's new tokens, up to a stop string.

    Attributes:
        text: all that has been given out.
        stopped: whether a stop string has been found.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int] = (), stops: Iterable[str] = ()):
        self._characters, self._stops = Detokenizer(decode, prompt), StopStrings(stops)
        self.text = ""

    @property
    def stopped(self) -> bool:
        return self._stops.found

    def add(self, token: int) -> str:
        """What can be shown now."""
        return self._grow(self._stops.add(self._characters.add(token)))

    def finish(self) -> str:
        """The rest, where no more tokens come."""
        return self._grow(self._stops.add(self._characters.finish()) + self._stops.finish())

    def _grow(self, piece: str) -> str:
        self.text += piece
        return piece
