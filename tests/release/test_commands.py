"""A smoke run of the release check: commands are found where they are shown, and wrong ones are faults."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from . import check as module
from .check import check, main
from .commands import faults_of, outdated, run_script
from .exceptions import NO_GPU, TABLE, Action, Rule, treat
from .running import Findings
from .setting import Setting
from .shown import collect, shipped_commands

CHECKOUT = Path(__file__).parents[2]
RULES = (Rule("^rm ", Action.SKIP, "would remove something"), Rule("^gpu", Action.REFUSED, "computes", NO_GPU))
PAGE = """\
See `aotbundle explan` and `aotbuild --list-archs`.
```sh
false
echo 1 > file && cat file
rm file
cat file && cat none
gpu() { echo 'there is no usable GPU'; return 1; }; gpu
gpu() { echo 'there is no usable GPU'; }; gpu
```
"""


def test_each_wrong_command_of_a_page_is_a_fault(tmp_path: Path):
    """Lines after one that failed run as well, and see what those before them wrote."""
    page = tmp_path / "page"
    page.mkdir()
    (page / "README.md").write_text(PAGE)
    setting = Setting(CHECKOUT, tmp_path / "work", 1, tmp_path / "cache")
    scripts = [one for one in collect(page, shipped_commands()) if one.sources[0].startswith("README.md")]
    outcomes = [outcome for script in scripts for outcome in run_script(setting, script, page, RULES)]
    faults = [fault for outcome in outcomes for fault in faults_of(outcome)]
    assert [fault.split("`")[1] for fault in sorted(faults)] == [
        "aotbundle explan", "cat none", "false", "gpu() { echo 'there is no usable GPU'; }; gpu",
    ]  # fmt: skip
    assert "No such command 'explan'" in min(faults) and treat("rm x", RULES).skipped == "would remove something"


def test_each_exception_is_for_something_that_is_shown():
    assert outdated(collect(CHECKOUT, shipped_commands())) == []
    assert all(rule.reason for rule in TABLE)


def test_parts_that_fail_are_listed_and_fail_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def raising(setting: Setting) -> Findings:
        raise OSError("no space left")

    parts = {"plan": raising, "commands": lambda setting: Findings("2 things", skipped=["a third"])}
    found = check(Setting(tmp_path, tmp_path, 1, tmp_path / "cache"), parts)
    assert [len(findings.failures) for _, findings, _ in found] == [1, 0]
    monkeypatch.setattr(module, "PARTS", parts)
    assert [CliRunner().invoke(main, ["--only", part]).exit_code for part in parts] == [1, 0]
