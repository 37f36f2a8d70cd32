"""How `aotbundle` fails: exit statuses, and errors as one line."""

from __future__ import annotations

from typing import Any

import click

from aot_runtime.errors import AotError

EXIT_FAILED, EXIT_USAGE = 1, 2


class Failure(click.ClickException):
    """A fault was found, or something went wrong: exit status 1."""

    exit_code = EXIT_FAILED

    def show(self, file: Any = None) -> None:
        click.echo(f"aotbundle: error: {self.message}", err=True)


class Unusable(Failure):
    """What was asked for cannot be done here: exit status 2."""

    exit_code = EXIT_USAGE


class Commands(click.Group):
    """Commands whose typed errors are shown as one line. Their help says of each all of its first sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, command.get_short_help_str(limit=200)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (AotError, PermissionError) as error:
            raise Failure("\n".join([str(error), *getattr(error, "__notes__", ())])) from error
