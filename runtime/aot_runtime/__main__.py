"""`python -m aot_runtime` is the command `aotbundle`."""

from aot_runtime.command.main import main

if __name__ == "__main__":
    main(prog_name="aotbundle")
