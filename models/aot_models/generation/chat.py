"""Format chats with a model's own Jinja template, as transformers does.

A template writes special tokens itself, so its text is encoded without those that the tokenizer adds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aot_models.checkpoints.values import CheckpointError, read_json, read_text, said
from aot_models.generation.template_process import SECONDS, Renderer, RenderingError

Message = Mapping[str, str]
"""A message of a chat, with a "role" ("system", "user", "assistant") and "content"."""

DEFAULT = "default"
MAX_TEMPLATE = 1 << 20
"""Maximum size of a template, in bytes."""


class ChatError(ValueError):
    """A checkpoint has no chat template, or the template fails."""


class ChatTemplate:
    """A checkpoint's chat template, which runs in a separate process.

    seconds: CPU time for a chat.

    Raises:
        ChatError: there is no such template, or it is invalid or takes too long.
    """

    def __init__(
        self, source: str, tokens: Mapping[str, str] | None = None, origin: str = "the chat template",
        seconds: float = SECONDS,
    ):  # fmt: skip
        self._tokens, self._origin = dict(tokens or {}), origin
        try:
            self._renderer = Renderer(source, seconds)
        except RenderingError as error:
            raise ChatError(f"{origin}: {error}") from None

    @classmethod
    def read(cls, folder: Path, name: str = "") -> ChatTemplate:
        """Read a checkpoint's template. name: the name of one of several; by default "default", or the only one."""
        try:
            config = _json(folder / _CONFIG)
            templates, tokens = _templates(folder, config), _special_tokens(folder, config)
        except CheckpointError as error:
            raise ChatError(str(error)) from None
        if not templates:
            raise ChatError(f"{folder} has no chat template: neither chat_template.jinja nor one in {_CONFIG}")
        wanted = name or (DEFAULT if DEFAULT in templates or len(templates) > 1 else next(iter(templates)))
        if wanted not in templates:
            known = ", ".join(map(said, sorted(templates)))
            raise ChatError(f"{folder} has no chat template '{wanted}'; it has {known}")
        origin, source = templates[wanted]
        return cls(source, tokens, origin)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The text of a chat, ending with the prefix of the model's answer.

        Raises:
            ChatError: the template refuses the chat (unknown roles, for example), fails or exceeds its limits.
        """
        values = {"tools": None, "documents": None, **self._tokens, **variables}
        said_before = [dict(message) for message in messages]
        try:
            return self._renderer.render(
                {**values, "messages": said_before, "add_generation_prompt": add_generation_prompt}
            )
        except (RenderingError, TypeError, RecursionError) as error:
            raise ChatError(f"{self._origin}: {error}") from None


_CONFIG = "tokenizer_config.json"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """(origin, source) of each template, by name. Files take precedence over tokenizer_config.json."""
    where = f"{folder / _CONFIG}, chat_template"
    listed = dict(_listed(config.get("chat_template"), where))
    templates = {name: (f"{where} '{said(name)}'" if len(listed) > 1 else where, text) for name, text in listed.items()}
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if os.path.lexists(single := folder / "chat_template.jinja"):
        files[DEFAULT] = single
    return templates | {name: (str(path), read_text(path, MAX_TEMPLATE)) for name, path in files.items()}


def _listed(found: Any, where: str) -> Iterator[tuple[str, str]]:
    """(name, source) of the templates in tokenizer_config.json, which has one or a list of named ones."""
    if found is None:
        return
    entries = [{"name": DEFAULT, "template": found}] if isinstance(found, str) else found
    if not isinstance(entries, list):
        raise CheckpointError(f"{where}: it is {said(entries)}, and should be a text or a list")
    for entry in entries:
        name, source = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(source, str):
            raise CheckpointError(f"{where}: an entry is {said(entry)}, and should have a 'name' and a 'template'")
        yield name, source


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The texts of special tokens, by their names in templates, such as "bos_token"."""
    found = {**_json(folder / "special_tokens_map.json"), **config}
    texts = {name: found[name] for name in _SPECIAL if found.get(name) is not None}
    texts = {name: text.get("content") if isinstance(text, Mapping) else text for name, text in texts.items()}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise CheckpointError(f"{folder / _CONFIG}: {name} is {said(found[name])}, and should be a text")
    return texts


def _json(path: Path) -> dict[str, Any]:
    return read_json(path) if os.path.lexists(path) else {}
