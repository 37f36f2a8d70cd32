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


def _takes_value(command: click.Command, word: str) -> bool:
    options = [item for item in command.params if isinstance(item, click.Option) and word in item.opts]
    return any(not (option.is_flag or option.count) for option in options)


class Commands(click.Group):
    """Commands whose typed errors are shown as one line. Their help says of each all of its first sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, command.get_short_help_str(limit=200)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Where a shell completes the value of an option, the words before it are read without that option: click's
        parser gives up at an option with no value, and with it the bundle, whose ops are to be offered."""
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.resilient_parsing and command is not None and rest and _takes_value(command, rest[-1]):
            rest = rest[:-1]
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (AotError, PermissionError) as error:
            raise Failure("\n".join([str(error), *getattr(error, "__notes__", ())])) from error
