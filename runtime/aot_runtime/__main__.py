"""The command `aotbundle`, by that name and as the module aot_runtime, where what it needs is installed."""

from __future__ import annotations

import sys

NEEDED = ("click", "rich")
"""Packages of the extra `cli`."""


def main() -> None:
    """Run `aotbundle`. Exits with status 2, naming the extra, where a package is missing."""
    try:
        from aot_runtime.command.main import main as command
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        print(f"aotbundle: error: the commands need {error.name}: pip install 'aotbuild[cli]'", file=sys.stderr)
        sys.exit(2)
    command(prog_name="aotbundle")


if __name__ == "__main__":
    main()
