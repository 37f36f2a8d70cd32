"""The command of `tests.fuzz`."""

from .command import main

main(prog_name="python -m tests.fuzz")
