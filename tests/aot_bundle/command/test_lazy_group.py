"""Subcommands are imported when they are used."""

import subprocess
import sys

import click
import pytest

from aot_bundle.command.main import main as aotbundle

LOADED = """
import sys
from {module} import main
main(["--help"], standalone_mode=False)
print(*sorted(name for name in sys.modules if name.startswith({package!r} + ".")), sep="\\n")
"""


@pytest.mark.parametrize(
    ("module", "package", "commands"),
    [
        ("aot_bundle.command.main", "aot_bundle.command", {"ls", "merge", "verify", "bench", "doctor"}),
        ("aot.cli", "aot.command", {"cache", "check", "init", "tune"}),
    ],
)
def test_help_imports_no_command(module: str, package: str, commands: set[str]):
    pytest.importorskip("triton" if module == "aot.cli" else "click")
    source = LOADED.format(module=module, package=package)
    printed = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    assert not {f"{package}.{name}" for name in commands} & set(printed.splitlines())
    assert all(f"\n  {name} " in printed for name in commands)


def test_every_row_is_a_command_of_its_name():
    from aot.cli import main as aotbuild

    for group in (aotbundle, aotbuild):
        assert isinstance(group, click.Group)
        for name, command in group.commands.items():
            assert isinstance(command, click.Command) and command.name == name
