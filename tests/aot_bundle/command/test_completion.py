"""Shell completion with the contents of the bundle on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from aot_bundle.command.main import main

# What stands before the cursor, the bundle being @.
WORDS = [
    "show @ --op", "show --variants @ --json --op", "selftest @ --device emulator --op", "isa @ --op",
    "selftest @ --op copy --op", "explain @", "profile @",
]  # fmt: skip


@pytest.mark.parametrize("words", WORDS)
def test_ops_of_the_bundle(small_bundle: Path, words: str):
    given = [str(small_bundle) if word == "@" else word for word in words.split()]
    offered = ShellComplete(main, {}, "aotbundle", "_AOTBUNDLE_COMPLETE").get_completions(given, "row")
    assert [item.value for item in offered] == ["row_sums"]


def test_without_a_bundle_there_are_none(tmp_path: Path):
    complete = ShellComplete(main, {}, "aotbundle", "_AOTBUNDLE_COMPLETE").get_completions
    assert complete(["show", "--op"], "") == complete(["show", str(tmp_path), "--op"], "") == []
