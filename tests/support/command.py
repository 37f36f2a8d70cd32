"""The command `aotbundle`, run in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from aot_bundle.command.main import main


def aotbundle(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
