"""Exit statuses and error output of `aotbundle`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from aot_bundle.terminal import text_block, write, write_error

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
