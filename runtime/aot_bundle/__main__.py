"""The command `aotbundle`, by that name and as `python -m aot_bundle`; names the extra that is missing."""

from __future__ import annotations

import sys

from aot_bundle.terminal import guard, write_error

NEEDED = ("click",)
"""Packages of the extra `cli`, which aotbundle needs of it."""


def main() -> None:
    """Run `aotbundle`. Exits with status 2, naming the extra, where a package is missing."""
    try:
        from aot_bundle.command.main import main as command
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        write_error("aotbundle", f"the commands need {error.name}: pip install 'aotbuild[cli]'")
        sys.exit(2)
    guard("aotbundle")
    command(prog_name="aotbundle")


if __name__ == "__main__":
    main()
