"""Groups of commands that are imported when they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import click

from .failures import Told

Table = Mapping[str, tuple[str, str]]
"""Name of a command → (module that defines it by this name, summary for the help of the group)."""


class LazyCommands(Mapping[str, click.Command]):
    """The commands of a table, by name. A command's module is imported when the command is looked up."""

    def __init__(self, package: str, table: Table):
        self.table, self._package = table, package

    def __getitem__(self, name: str) -> click.Command:
        module, _ = self.table[name]
        command: click.Command = getattr(import_module(f"{self._package}.{module}"), name.replace("-", "_"))
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def __contains__(self, name: object) -> bool:
        return name in self.table


class LazyGroup(Told, click.Group):
    """A group whose commands are those of a table of a package. Its own help imports none of them."""

    def __init__(self, *arguments: Any, package: str, table: Table, **options: Any):
        super().__init__(*arguments, **options)
        self.commands = LazyCommands(package, table)  # type: ignore[assignment]  # click only reads it
        self.table = table

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])
