"""Entry point of the command `aotbundle`, also as a module."""

from __future__ import annotations

import sys

from aot_bundle.terminal import guard, write_error

NEEDED = ("click",)
"""Packages that the commands need."""


def main() -> None:
    """Run `aotbundle`. Exits with status 2 and names what to install if a package is missing."""
    try:
        from aot_bundle.command.main import main as command
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        write_error("aotbundle", f"the commands need {error.name}: pip install aotbuild")
        sys.exit(2)
    guard("aotbundle")
    command(prog_name="aotbundle")


if __name__ == "__main__":
    main()
