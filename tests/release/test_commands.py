"""Wrong command lines fail the check, and so does a table of exceptions that is outdated."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.building.tasks import gone, wait_for

from .commands import TRACEBACK, faults_of, outdated, run_script
from .exceptions import NO_GPU, TABLE, Action, Rule, treat, unused
from .running import run
from .setting import Setting
from .shown import collect, shipped_commands

CHECKOUT = Path(__file__).parents[2]
RULES = (
    Rule("<name>", Action.REPLACE, "a name of the reader's own", "echo"),
    Rule("^echo long", Action.APPEND, "shorter", "--brief"),
    Rule("^rm ", Action.SKIP, "would remove something"),
    Rule("^gpu|says", Action.REFUSED, "computes", NO_GPU),
)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(CHECKOUT, tmp_path / "work", 1, tmp_path / "cache")


def page_of(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "README.md").write_text(text)
    return folder


def faults(setting: Setting, folder: Path, rules: tuple[Rule, ...] = RULES) -> list[str]:
    found = collect(folder, shipped_commands())
    scripts = [script for script in found if script.sources[0].startswith("README.md")]
    outcomes = [outcome for script in scripts for outcome in run_script(setting, script, folder, rules)]
    return [fault for outcome in outcomes for fault in faults_of(outcome)]


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("aotbundle explan dist/x", "No such command 'explan'"),
        ("aotbundle ls --everything dist", "No such option"),
        ("aotbundle ls elsewhere", "elsewhere"),
        ("python no_such_file.py", "can't open file"),
        ("aotbuild --arch gfx942 manifests/no_such.yaml", "no_such.yaml"),
    ],
)
def test_a_wrong_command_line_is_a_fault(setting: Setting, tmp_path: Path, shown: str, said: str):
    (fault,) = faults(setting, page_of(tmp_path / "a", f"See `{shown}`."))
    assert fault.startswith(f"`{shown}`: exit status ") and said in fault


@pytest.mark.parametrize(("shown", "said"), [("aotbundle explan", "explan"), ("aotbuild --nonsense", "--nonsense")])
def test_so_is_the_name_of_what_there_is_not(setting: Setting, tmp_path: Path, shown: str, said: str):
    (fault,) = faults(setting, page_of(tmp_path / "a", f"See `{shown}`."))
    assert said in fault


def test_right_ones_are_none(setting: Setting, tmp_path: Path):
    text = "`aotbundle explain` and `aotbuild --list-archs`\n```sh\ntrue && echo 1\naotbuild --list-archs\n```\n"
    assert faults(setting, page_of(tmp_path / "a", text)) == []


def test_every_line_of_a_block_is_run(setting: Setting, tmp_path: Path):
    """Also those after one that failed; and each sees what those before it wrote."""
    folder = page_of(tmp_path / "a", "```sh\nfalse\necho 1 > file && cat file\nrm file\ncat file && cat none\n```\n")
    found = faults(setting, folder)
    assert [fault.split("\n")[0] for fault in found] == ["`false`: exit status 1", "`cat none`: exit status 1"]


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("bash -c \"echo says 'no usable GPU'; exit 1\"", None),
        ("gpu() { echo 'no usable GPU'; return 1; }; gpu", None),
        ("gpu() { echo 'AMD GPUs need HIP, and it cannot be loaded'; return 2; }; gpu", None),
        ("gpu() { echo 'no usable GPU'; }; gpu", "ended well, where the table of exceptions has it refused"),
        ("gpu() { echo 'no such op'; return 1; }; gpu", "exit status 1, without the error /no usable"),
        (f"gpu() {{ echo '{TRACEBACK}'; echo 'no usable GPU'; return 1; }}; gpu", "without the error"),
    ],
)  # fmt: skip
def test_what_needs_a_gpu_has_to_say_so(setting: Setting, tmp_path: Path, shown: str, said: str | None):
    found = faults(setting, page_of(tmp_path / "a", f"```sh\n{shown}\n```\n"))
    assert [said in fault for fault in found] == [True] if said else (found == [])


def test_how_commands_are_treated():
    assert treat("<name> long", RULES).text == "echo long --brief"
    assert treat("rm -r x", RULES).skipped == "would remove something"
    assert treat("gpu", RULES).refused == NO_GPU
    assert treat("ls", RULES) == treat("ls", ()), "as it is"


def test_an_entry_for_nothing_is_a_fault(tmp_path: Path):
    assert [rule.pattern for rule in unused(["<name> long", "rm x"], RULES)] == ["^gpu|says"]
    scripts = collect(page_of(tmp_path / "a", "```sh\n<name> long\ngpu\n```\n"), {})
    (fault,) = outdated(scripts, RULES)
    assert "/^rm /" in fault


def test_the_table_is_for_what_is_shown():
    assert outdated(collect(CHECKOUT, shipped_commands())) == []
    assert all(rule.reason for rule in TABLE)


def test_what_hangs_is_killed_with_what_it_started(tmp_path: Path):
    started = time.monotonic()
    result = run(["bash", "-c", "sleep 100 & echo $!; sleep 100"], tmp_path, os.environ, timeout=0.5)
    assert result.status and result.output.endswith("killed after 0 s\n") and time.monotonic() - started < 20
    wait_for(lambda: gone(int(result.output.split()[0])))
