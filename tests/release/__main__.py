"""`python -m tests.release`."""

from .check import main

main(prog_name="python -m tests.release")
