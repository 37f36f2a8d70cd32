"""The command `aotbuild`, also as a module. Missing packages are reported before anything else."""

from __future__ import annotations

import gc
import sys
from importlib.util import find_spec

from aot_bundle.terminal import guard, write_error

NEEDED = ("click", "rich", "filelock", "pebble", "pydantic", "ruamel.yaml", "triton")
"""Packages of the extra `build`, as they are imported."""
LIGHT = (["capture"], ["run"], ["install-cache"])
"""Subcommands that run where a program does, beside whatever Triton that has."""


def main() -> None:
    """Run `aotbuild`. Exits with status 2, naming the extra, where a package is missing."""
    missing = [] if sys.argv[1:2] in LIGHT else [name for name in NEEDED if not _is_there(name)]
    if missing:
        where = "" if sys.platform == "linux" else "; Triton has packages for Linux alone: build there, and run here"
        sys.exit(_told(f"building needs {', '.join(missing)}: pip install 'aotbuild[build]'{where}"))
    # By default, cyclic garbage is looked for hundreds of times while packages are imported and manifests are planned.
    gc.set_threshold(200_000, 30, 30)
    from aot.cli import main as command

    guard("aotbuild")
    command(prog_name="aotbuild")


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package that it is in is not there
        return False


def _told(message: str) -> int:
    write_error("aotbuild", message)
    return 2


if __name__ == "__main__":
    main()
