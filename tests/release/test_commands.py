"""The release check's table of exceptions agrees with the documentation."""

from __future__ import annotations

from pathlib import Path

from .commands import outdated
from .exceptions import TABLE
from .shown import collect, shipped_commands


def test_each_exception_is_for_something_that_is_shown():
    assert outdated(collect(Path(__file__).parents[2], shipped_commands())) == []
    assert all(rule.reason for rule in TABLE)
