"""A sample of what hypothesis draws of caches and outputs. `FUZZ_COUNT` tries many."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the builder needs the extra `build`")

from aot.compile.compiler import KernelReader
from aot_runtime.errors import BundleError
from aot_runtime.folders import OpenFolder
from tests.fuzz.drawn import try_drawn
from tests.fuzz.entries import Entries, Entry
from tests.fuzz.folders import BUNDLE, Case, Folders


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_nothing_outside_of_a_folder_changes(tmp_path: Path, count: int):
    handler = Folders(tmp_path)
    outcomes = try_drawn(handler.strategy(), handler.check, count)
    assert {
        f"{name}: {outcome}" for name in ("read", "write", "place") for outcome in ("done", "refused")
    } <= outcomes.keys()


@pytest.mark.parametrize(
    "case",
    [
        Case("place", ((f"{BUNDLE}/code", "link out"),), ()),
        Case("place", (), ((20, (f"{BUNDLE}/code", "link out")),)),
        Case("write", (("v2/ab", "link out"),), ()),
    ],
)
def test_a_link_that_is_followed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case):
    handler = Folders(tmp_path)
    handler.check(case)
    monkeypatch.setattr("aot_runtime.folders._NO_LINK", 0)
    monkeypatch.setattr(OpenFolder, "_check", lambda *_: None)
    monkeypatch.setattr(OpenFolder, "remove", lambda *_: None)
    with pytest.raises(AssertionError, match="what is outside changed"):
        handler.check(case)


@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_entries_are_refused_or_good(tmp_path: Path, count: int):
    handler = Entries(tmp_path)
    outcomes = try_drawn(handler.strategy(), handler.check, count)
    assert outcomes.keys() >= {"kernel: refused", "kernel: taken", "vectors: refused"}


def test_an_entry_that_is_taken_and_no_reader_would_take_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(KernelReader, "fault", lambda *_: "")
    handler = Entries(tmp_path)
    with pytest.raises((BundleError, AssertionError)):
        handler.check(Entry("kernel", ((("num_warps",), 2),), (), False, ()))
