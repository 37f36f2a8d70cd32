"""The command `aotbundle`, by that name and as the module aot_runtime, where what it needs is installed."""

from __future__ import annotations

import sys

from aot_runtime.terminal import guard, write_error

NEEDED = ("click",)
"""Packages of the extra `cli`, which aotbundle needs of it."""


def main() -> None:
    """Run `aotbundle`. Exits with status 2, naming the extra, where a package is missing."""
    try:
        from aot_runtime.command.main import main as command
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        write_error("aotbundle", f"the commands need {error.name}: pip install 'aotbuild[cli]'")
        sys.exit(2)
    guard("aotbundle")
    command(prog_name="aotbundle")


if __name__ == "__main__":
    main()
