"""Pages that are not written by hand: of commands from their help, of manifests from their JSON schemas."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

PAGES_OUTSIDE: Mapping[str, str] = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/foreign/README.md": "examples/foreign/index.md",
}
"""Pages of the repository that are not in docs/ → their paths in the site."""


def command_page(name: str, command: click.Command) -> str:
    """A command and its subcommands: usage, help and options."""
    return "\n\n".join([f"# {name}", *_command(name, command, 1, None)]) + "\n"


def _command(name: str, command: click.Command, level: int, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(command, parent, name, **command.context_settings)
    yield f"```text\n{name} {' '.join(command.collect_usage_pieces(context))}\n```"
    yield from _prose(command.help or "")
    options = [option for option in command.get_params(context) if isinstance(option, click.Option)]
    if records := [record for option in options if (record := option.get_help_record(context))]:
        rows = [f"| {_code(option)} | {_cell(text)} |" for option, text in records]
        yield "\n".join(["| Option | |", "|---|---|", *rows])
    yield from _prose(command.epilog or "")
    for title, inner in sorted(getattr(command, "commands", {}).items()):
        yield f"{'#' * (level + 1)} {name} {title}"
        yield from _command(f"{name} {title}", inner, level + 1, context)


def _prose(text: str) -> Iterator[str]:
    """Paragraphs of a help text. One that click would not wrap is a title and lines of code."""
    for paragraph in inspect.cleandoc(text).replace("\b\n", "\b").split("\n\n"):
        if paragraph.startswith("\b"):
            title, _, code = paragraph.removeprefix("\b").partition("\n")
            yield title
            yield f"```sh\n{inspect.cleandoc(code)}\n```"
        elif paragraph:
            yield paragraph.replace("<", "&lt;")


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


def schema_page(folder: Path) -> str:
    """The objects of manifests, tuning files, spaces and calls files with their keys, types and defaults."""
    parts = [
        "# Manifest schema",
        "What the JSON schemas say, for a look at it all; [Manifests](../manifest.md#keys) has each key's meaning"
        " and an example. Editors that know YAML schemas take [manifest.schema.json](manifest.schema.json),"
        " [tuning.schema.json](tuning.schema.json), [space.schema.json](space.schema.json) and"
        " [calls.schema.json](calls.schema.json) from a modeline at a file's head.",
    ]
    titles = {"Manifests": "manifest", "Tuning files": "tuning", "Spaces": "space", "Calls files": "calls"}
    for title, name in titles.items():
        schema = json.loads((folder / f"{name}.schema.json").read_text(encoding="utf-8"))
        parts += [f"## {title}", *_object(title, schema, named=False)]
        for key, definition in schema["$defs"].items():
            if "properties" in definition:
                parts += _object(key.removesuffix("Spec"), definition)
            else:
                parts += [f"### {key}", f"{_type(definition)}."]
    return "\n\n".join(parts) + "\n"


def _object(title: str, schema: Mapping[str, Any], named: bool = True) -> Iterator[str]:
    if named:
        yield f"### {title}"
    yield schema.get("description", "")
    required = schema.get("required", ())
    rows = [
        f"| `{key}` | {_type(value)} | {'required' if key in required else _default(value)} |"
        for key, value in schema["properties"].items()
    ]
    yield "\n".join(["| Key | Type | Default |", "|---|---|---|", *rows])


def _default(schema: Mapping[str, Any]) -> str:
    return f"`{json.dumps(schema['default'])}`" if "default" in schema else ""


def _type(schema: Mapping[str, Any]) -> str:
    """A JSON schema's type in words."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2].removesuffix("Spec")
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_type(schema['items'])}" if "items" in schema else "list"
    if kind == "object":
        values = [*schema.get("patternProperties", {}).values()] or [schema.get("additionalProperties")]
        return f"name → {_type(values[0])}" if isinstance(values[0], dict) else "object"
    return {"string": "text", "boolean": "bool", "null": "null"}.get(kind, kind)
