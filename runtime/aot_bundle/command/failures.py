"""Exit statuses and error output of `aotbundle`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from aot_bundle.terminal import error_lines, text_block, write, write_error
from aot_runtime.errors import AotError

EXIT_FAILED, EXIT_USAGE = 1, 2


class Failure(click.ClickException):
    """A fault or failure, with exit status 1. Its arguments are lines."""

    exit_code = EXIT_FAILED

    def __init__(self, *lines: str):
        super().__init__("\n".join(lines))
        self.lines = lines

    def show(self, file: Any = None) -> None:
        write_error("aotbundle", *self.lines)


class Unusable(Failure):
    """A request that cannot be carried out, with exit status 2."""

    exit_code = EXIT_USAGE


def _takes_value(command: click.Command, word: str) -> bool:
    options = [item for item in command.params if isinstance(item, click.Option) and word in item.opts]
    return any(not (option.is_flag or option.count) for option in options)


class Told(click.Command):
    """A command that prints usage errors through this package's terminal module instead of click."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command, then exit the process if `standalone_mode`."""
        run = partial(super().main, args, prog_name, complete_var, False, **extra)
        if not standalone_mode:
            return run()
        try:
            status: object = run()
        except Failure as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            write(*_usage(error), f"Error: {error.format_message()}", err=True)
            sys.exit(error.exit_code)
        except click.Abort:
            write("Aborted!", err=True)
            sys.exit(EXIT_FAILED)
        sys.exit(status if isinstance(status, int) else 0)


def _usage(error: click.ClickException) -> list[str]:
    ctx = getattr(error, "ctx", None)
    return [] if ctx is None else [*text_block(ctx.get_usage()), f"Try '{ctx.command_path} --help' for help.", ""]


class Commands(Told, click.Group):
    """A command group that prints `AotError` as a one-line failure, and shows whole first sentences in its help."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, command.get_short_help_str(limit=200)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Drop an option that still lacks its value during shell completion.

        Otherwise click's parser fails and loses the bundle, whose ops are completed.
        """
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.resilient_parsing and command is not None and rest and _takes_value(command, rest[-1]):
            rest = rest[:-1]
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (AotError, PermissionError) as error:
            raise Failure(*error_lines(error)) from error
