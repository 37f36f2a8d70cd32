"""docs/howto/no-compile.md: its commands are understood, and its error is worded as the guard words it."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest

from aot.command.capture import capture
from aot.command.run import run
from aot_capture.report import KERNEL, Event
from tests.docs.markdown import blocks
from tests.docs.scripts import ROOT

PAGE = (ROOT / "docs/howto/no-compile.md").read_text(encoding="utf-8")
COMMANDS = [
    line.partition("#")[0]
    for block in blocks(PAGE, "sh")
    for line in block.text.replace("\\\n", " ").splitlines()
    if line.startswith(("aotbuild capture", "aotbuild run"))
]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_understood(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "kernels.jsonl").touch()
    (tmp_path / "dist/kernels-gfx942-cache").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    _, name, *words = shlex.split(line)
    command: click.Command = {"capture": capture, "run": run}[name]
    parsed = command.make_context(name, words).params
    assert bool(parsed["program"]) != parsed["exports"]


def test_the_error_is_worded_as_shown():
    differences = [
        "differs from the nearest of 4 captured:",
        "  num_warps: captured 8, now 4",
        "  argument n: captured divisible by 16, now no assumption",
    ]
    event = Event(
        False, KERNEL, "layers.softmax", "KEY", 1, "/srv/layers.py", 40, "/srv/serve.py:88", "hip gfx942", differences
    )
    assert f"WouldCompileError: aotbuild run --no-compile: {event}\n" in PAGE
