"""The check says what it found, and its exit status follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from . import check as module
from .check import check, main
from .running import Findings, each
from .setting import Setting


def good(setting: Setting) -> Findings:
    return Findings("2 things", skipped=["a third"])


def bad(setting: Setting) -> Findings:
    return Findings("1 thing", ["it is broken", "so is that"])


def raising(setting: Setting) -> Findings:
    raise OSError("no space left")


def test_all_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A part that fails or stops does not keep the others from being done."""
    found = check(Setting(tmp_path, tmp_path, 1, tmp_path / "cache"), {"bad": bad, "raising": raising, "good": good})
    assert [len(findings.failures) for _, findings, _ in found] == [2, 1, 0]
    text = capsys.readouterr().out
    for line in ("  bad: it is broken", "  bad: so is that", "  raising: OSError: no space left", "  good: a third"):
        assert line in text.splitlines()
    last = [line.split()[:2] for line in text.splitlines()[-4:]]
    assert last == [["bad", "2"], ["raising", "1"], ["good", "ok"], ["all", "3"]]


@pytest.mark.parametrize(("part", "status"), [(good, 0), (bad, 1), (raising, 1)])
def test_exit_status(monkeypatch: pytest.MonkeyPatch, part, status: int):
    monkeypatch.setattr(module, "PARTS", {"plan": part, "commands": bad})
    result = CliRunner().invoke(main, ["--only", "plan"])
    assert result.exit_code == status
    assert "commands: the whole part" in result.output, "what was not asked for was skipped"


def test_results_are_in_order():
    assert list(each(str, range(50), 8)) == [(i, str(i)) for i in range(50)]
