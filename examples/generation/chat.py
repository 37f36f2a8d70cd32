"""Chats as a model was trained to read them: its own template, of Jinja, in an environment like that of transformers.

The text of a template has all the special tokens that it wants: it is encoded without those that the tokenizer adds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, str]
"""A message of a chat: its "role" ("system", "user", "assistant") and its "content"."""

DEFAULT = "default"


class ChatError(ValueError):
    """A checkpoint has no chat template, or one that fails."""


class ChatTemplate:
    """A checkpoint's chat template.

    Raises `ChatError`: there is none, none of this name, or one that is no Jinja.
    """

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None, origin: str = "the chat template"):
        self._tokens, self._origin = dict(tokens or {}), origin
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise ChatError(f"{origin}, line {error.lineno}: {error.message}") from None

    @classmethod
    def read(cls, folder: Path, name: str = "") -> ChatTemplate:
        """Of a checkpoint's folder. name: of one of several; by default "default", or the only one."""
        config = _json(folder / "tokenizer_config.json")
        templates = _templates(folder, config)
        if not templates:
            raise ChatError(f"{folder} has no chat template: neither chat_template.jinja nor one in {_CONFIG}")
        wanted = name or (DEFAULT if DEFAULT in templates or len(templates) > 1 else next(iter(templates)))
        if wanted not in templates:
            raise ChatError(f"{folder} has no chat template '{wanted}'; it has {', '.join(sorted(templates))}")
        origin, source = templates[wanted]
        return cls(source, _special_tokens(folder, config), origin)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The chat's text; at its end what begins the model's answer.

        Raises `ChatError`: the template refuses the chat, as with roles that it does not know, or fails.
        """
        values = {"tools": None, "documents": None, **self._tokens, **variables}
        try:
            return self._template.render(
                messages=[dict(message) for message in messages], add_generation_prompt=add_generation_prompt, **values
            )
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise ChatError(f"{self._origin}: {error}") from None


_CONFIG = "tokenizer_config.json"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def _templates(folder: Path, config: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """(where it is, the template) by name. Files go before what tokenizer_config.json has."""
    found = config.get("chat_template")
    listed = {DEFAULT: found} if isinstance(found, str) else {}
    if isinstance(found, list):
        listed = {entry["name"]: entry["template"] for entry in found}
    where = f"{folder / _CONFIG}, chat_template"
    templates = {name: (f"{where} '{name}'" if len(listed) > 1 else where, text) for name, text in listed.items()}
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (single := folder / "chat_template.jinja").is_file():
        files[DEFAULT] = single
    return templates | {name: (str(path), path.read_text(encoding="utf-8")) for name, path in files.items()}


def _special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The texts of special tokens that templates know by these names, as "bos_token"."""
    found = {**_json(folder / "special_tokens_map.json"), **config}
    texts = {name: found.get(name) for name in _SPECIAL}
    return {
        name: text["content"] if isinstance(text, Mapping) else str(text)
        for name, text in texts.items()
        if text is not None
    }


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ChatError(f"{path}: {error}") from None


class _Generation(Extension):
    """`{% generation %}` marks what the model writes: for training; here its content stays as it is."""

    tags = frozenset({"generation"})

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """Templates come with checkpoints: they run in Jinja's sandbox, with these functions and no files."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda text: datetime.now().strftime(text)}
    return environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """As JSON has it, and not as HTML would need it, which Jinja's own filter of this name makes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise TemplateError(message)
