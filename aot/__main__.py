"""`python -m aot` is the command `aotbuild`."""

from aot.cli import main

if __name__ == "__main__":
    main(prog_name="aotbuild")
