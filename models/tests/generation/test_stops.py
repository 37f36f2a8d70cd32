"""Texts produced token by token: whole characters only, up to a stop string, however tokens split them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot_models.generation.stops import CONTEXT, Detokenizer, StopStrings, TextStream

PIECES = ["a", "b", "ab", "€", "é"[:1], "\N{GRINNING FACE}", "ba"]
BYTES = [bytes([i]) for i in range(256)] + [piece.encode() for piece in PIECES]
"""The bytes of each token of a byte-level tokenizer: a few are whole texts, most are single bytes."""


def decode(tokens: Sequence[int]) -> str:
    return b"".join(BYTES[token] for token in tokens).decode(errors="replace")


def cut(text: str, draw: st.DataObject) -> list[int]:
    """Cut a text into tokens anywhere, even within characters."""
    tokens, rest = [], text.encode()
    while rest:
        fitting = [token for token, content in enumerate(BYTES) if rest.startswith(content)]
        tokens.append(draw.draw(st.sampled_from(fitting)))
        rest = rest[len(BYTES[tokens[-1]]) :]
    return tokens


def ended(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Return the text up to a stop string, searched character by character."""
    for end in range(1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, found))], True
    return text, False


TEXTS = st.text("ab€é\N{GRINNING FACE}", max_size=20)


@given(text=TEXTS, prompt=TEXTS, stops=st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3), data=st.data())
def test_a_text_is_the_same_however_it_is_cut(text: str, prompt: str, stops: list[str], data: st.DataObject):
    stream = TextStream(decode, cut(prompt, data), stops)
    shown = ""
    for token in cut(text, data):
        piece = stream.add(token)
        assert "\ufffd" not in piece
        shown += piece
        assert ended(text, stops)[0].startswith(shown), "what was shown stays"
    shown += stream.finish()
    assert (shown, stream.stopped) == ended(text, stops) and stream.text == shown


@given(tokens=st.lists(st.sampled_from([0x41, 0x80, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 258]), max_size=12))
def test_bytes_that_are_no_characters_are_shown_in_the_end(tokens: list[int]):
    stream = Detokenizer(decode)
    assert "".join(map(stream.add, tokens)) + stream.finish() == decode(tokens)


@given(
    text=st.text("ab", max_size=12), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), data=st.data()
)
def test_no_more_is_held_back_than_what_may_begin_a_stop_string(text: str, stops: list[str], data: st.DataObject):
    stream, shown = StopStrings(stops), ""
    for end, character in enumerate(text, 1):
        shown += stream.add(character)
        if stream.found:
            break
        held = text[len(shown) : end]
        assert all(not stop.startswith(text[at:end]) for at in range(len(shown)) for stop in stops)
        assert not held or any(stop.startswith(held) for stop in stops)


def test_the_first_token_is_decoded_behind_the_prompt():
    """The decoder drops the blank before a text's first word, as some do."""

    def words(tokens: Sequence[int]) -> str:
        return "".join(f" {token}" for token in tokens)[1:]

    for length in (0, 1, CONTEXT + 5):
        stream = Detokenizer(words, range(length))
        pieces = [stream.add(token) for token in (7, 8, 9)]
        assert pieces == ["7" if not length else " 7", " 8", " 9"]


@pytest.mark.parametrize("stops", ([], ["b"]))
def test_tokens_without_text(stops: list[str]):
    """Special tokens have no text."""
    stream = TextStream(lambda tokens: "".join("a" for token in tokens if token), (0, 0), stops)
    assert [stream.add(token) for token in (0, 1, 0, 0, 1)] == ["", "a", "", "", "a"]
