"""The `aotbundle` command. What a command needs is imported when it runs, so that `--help` is quick."""

from __future__ import annotations

import click

from .bench import bench
from .doctor import doctor
from .explain import explain
from .failures import Commands
from .isa import isa
from .ls import ls
from .profile import profile
from .selftest import selftest
from .show import show
from .verify import verify


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="aotbuild")
def main() -> None:
    """Look into bundles of compiled kernels, check them, and check this machine.

    Exit status: 0 all is well; 1 a fault was found; 2 wrong usage.
    """


for command in (ls, show, isa, verify, selftest, explain, profile, bench, doctor):
    main.add_command(command)
