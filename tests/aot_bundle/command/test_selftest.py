"""`aotbundle selftest`: output and exit status."""

from __future__ import annotations

import json
import os
import pty
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from aot_bundle.command.main import main
from tests.support.command import aotbundle
from tests.support.forging import edit_index, vectors_of

selftest = partial(aotbundle, "selftest")


def test_text(small_bundle: Path):
    result = selftest(small_bundle, "--device", "emulator", "--op", "row_sums")
    assert result.exit_code == 0 and result.stderr == ""
    head, *lines, last = result.stdout.splitlines()
    assert head.startswith("bundle small for gfx942, id ") and "on emulator:0 (" in head
    launched = "partial_sums[RETURN_LARGEST] general, config0 + add_partial[RETURN_LARGEST] general, config0"
    assert lines[0] == f"ok      row_sums case0: {launched}"
    assert lines[1].startswith("        total: error ")
    assert lines[2].startswith("        largest: error 0.00e+00, bound ")
    assert lines[3] == "ok      row_sums case1: partial_sums aligned, config0 + add_partial aligned, config0"
    assert last == "all 2 cases pass"


def test_a_terminal_shows_what_is_going_on(small_bundle: Path, monkeypatch: pytest.MonkeyPatch):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        with pytest.raises(SystemExit):
            main(["selftest", str(small_bundle), "--device", "emulator", "--op", "row_sums"])
    shown = b""
    with suppress(OSError):  # which ends what a closed terminal has shown
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    assert shown == b"\r\x1b[K1/2 row_sums case0\r\x1b[K\r\x1b[K2/2 row_sums case1\r\x1b[K"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "hip"), "AMD GPUs need"),
        (("--device", "emulator:MI100"), "emulator has no gfx908 device"),
        (("--device", "emulator:gfx908"), "emulator has no gfx908 device"),
        (("--device", "emulator:gfx90a"), "is for gfx942, but emulator:2 (AMD Instinct MI250X, one die, emulated)"),
        (("--device", "hip:x"), "'hip:x' is not a device"),
        (("--device", "emulator", "--op", "cpy"), "no op 'cpy'; did you mean 'copy'?"),
        (("--bogus",), "No such option"),
    ],
)
def test_what_cannot_be_tested_is_status_2(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], words: str
):
    for name in ("ROCM_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    result = selftest(small_bundle, *arguments)
    assert result.exit_code == 2 and words in result.stderr and result.stdout == ""


def test_damage_is_status_1_and_what_has_no_vectors_status_2(small_copy: Path):
    vectors_of(small_copy, "plain").write_bytes(b"")
    result = selftest(small_copy, "--device", "emulator")
    assert result.exit_code == 1 and "was altered" in result.stderr and result.stdout == ""
    edit_index(small_copy, lambda index: index.pop("selftest"))
    result = selftest(small_copy, "--device", "emulator")
    assert result.exit_code == 2 and "has no selftest vectors" in result.stderr
    edit_index(small_copy, lambda index: index["target"].update(arch="gfx950"))
    result = selftest(small_copy, "--device", "emulator:gfx942")
    assert result.exit_code == 2 and "is for gfx950, but emulator:0" in result.stderr


def test_one_case_is_told_as_one(small_bundle: Path):
    result = selftest(small_bundle, "--device", "emulator:mi300x", "--op", "accumulate")
    assert result.exit_code == 0 and result.stdout.endswith("\nthe only case passes\n")


@pytest.mark.parametrize("ops", (("accumulate",), ("row_sums", "accumulate")), ids=str)
def test_the_cases_of_the_ops_that_are_named(small_bundle: Path, ops: tuple[str, ...]):
    result = selftest(small_bundle, "--device", "emulator", "--json", *(f"--op={op}" for op in ops))
    assert {item["op"] for item in json.loads(result.stdout)["results"]} == set(ops)
