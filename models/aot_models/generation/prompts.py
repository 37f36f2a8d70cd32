"""Make requests from texts of the command line, or from a file with options for each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from aot_models.checkpoints.values import CheckpointError, read_text
from aot_models.generation.options import Limits, OptionError, Sampling, changed, demand
from aot_models.generation.scheduler import Request

MAX_TOKENIZER = 1 << 28
"""Maximum size of tokenizer.json, in bytes."""


class Tokens:
    """A checkpoint's tokenizer. Everything raises `CheckpointError` if tokenizer.json is missing or fails."""

    def __init__(self, folder: Path):
        from tokenizers import Tokenizer

        self._path = folder / "tokenizer.json"
        if not os.path.lexists(self._path):
            raise CheckpointError(f"{self._path}: there is no such file")
        content = read_text(self._path, MAX_TOKENIZER)
        with self._faults():
            self._tokenizer = Tokenizer.from_str(content)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text. special: add the tokens for its beginning and end."""
        with self._faults():
            return self._tokenizer.encode(text, add_special_tokens=special).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special tokens."""
        with self._faults():
            return self._tokenizer.decode(list(tokens))

    def text(self, token: int) -> str:
        """The text of one token, which may be special."""
        with self._faults():
            return self._tokenizer.decode([token], skip_special_tokens=False)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Convert the library's untyped exceptions, and its panics, to `CheckpointError`."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise CheckpointError(f"{self._path}: {error}") from None
            raise


@dataclass(frozen=True)
class Prompts:
    """Makes requests.

    Attributes:
        folder: the checkpoint.
        sampling, limits: the defaults of requests. The default seed is incremented for each request.
        chat: texts are messages of a user in a chat.
        system: the system message of chats; "": none.
        template: the name of the chat template; "": the checkpoint's default.
        adapters: the names of adapters that requests may use.
    """

    folder: Path
    tokens: Tokens
    sampling: Sampling
    limits: Limits
    end: frozenset[int]
    chat: bool = False
    system: str = ""
    template: str = ""
    adapters: tuple[str, ...] = ()

    def request(self, number: int, entry: str | Mapping[str, Any]) -> Request:
        """Make a request from a text, or from an object with keys of `KEYS`. Raises `OptionError`, `ChatError`."""
        values = {"prompt": entry} if isinstance(entry, str) else dict(entry)
        if unknown := sorted(values.keys() - KEYS.keys()):
            raise OptionError(f"there is no option {unknown[0]!r}; there are {', '.join(KEYS)}")
        values = {KEYS[name]: value for name, value in values.items() if value is not None}
        prompt, messages = values.pop("prompt", None), values.pop("messages", None)
        adapter = values.pop("adapter", "")
        known = ", ".join(self.adapters) or "there are none"
        demand("adapter", adapter, f"the name of one: {known}", adapter in ("", *self.adapters))
        sampling = {name: values.pop(name) for name in SAMPLING if name in values}
        sampling.setdefault("seed", (self.sampling.seed + number) % 2**63)
        return Request(
            tuple(self._encode(prompt, messages)), changed(self.sampling, sampling), changed(self.limits, values),
            self.end, adapter,
        )  # fmt: skip

    def read(self, path: Path) -> Iterator[Request]:
        """Read requests from a file: objects from a .jsonl, otherwise a prompt a line. Empty lines are skipped.

        Raises:
            OptionError: a request is invalid; the error names the line.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"{path}: {error}") from None
        filled = [(at, line) for at, line in enumerate(lines, 1) if line.strip()]
        for number, (at, line) in enumerate(filled):
            try:
                yield self.request(number, _object(line) if path.suffix == ".jsonl" else line)
            except ValueError as error:
                raise type(error)(f"{path}, line {at}: {error}") from None

    def _encode(self, prompt: object, messages: object) -> list[int]:
        demand("prompt", prompt, "a text", prompt is None or isinstance(prompt, str))
        if (prompt is None) == (messages is None):
            raise OptionError("a request needs either 'prompt' or 'messages'")
        if messages is None and not self.chat:
            return self.tokens.encode(str(prompt))
        said = [{"role": "user", "content": str(prompt)}] if messages is None else _messages(messages)
        if self.system and said[0]["role"] != "system":
            said = [{"role": "system", "content": self.system}, *said]
        # The template writes the special tokens.
        return self.tokens.encode(self._template.render(said), special=False)

    @cached_property
    def _template(self) -> Any:
        from aot_models.generation.chat import ChatTemplate  # needs jinja2, for chats only

        return ChatTemplate.read(self.folder, self.template)


SAMPLING = tuple(field.name for field in fields(Sampling))
KEYS = {
    "prompt": "prompt", "messages": "messages", "max_tokens": "tokens", "stop": "stops", "ignore_end": "ignore_end",
    "logprobs": "logprobs", "adapter": "adapter", **{name: name for name in SAMPLING},
}  # fmt: skip
"""The keys of a request in a file, with the names of the options."""


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise OptionError(f"invalid JSON: {error}") from None
    if not isinstance(found, dict):
        raise OptionError("not a JSON object")
    return found


def _messages(found: object) -> list[dict[str, Any]]:
    is_chat = isinstance(found, list) and all(isinstance(message, dict) and "role" in message for message in found)
    demand("messages", found, "a list of objects with 'role' and 'content'", is_chat and bool(found))
    return list(found)  # type: ignore[call-overload]
