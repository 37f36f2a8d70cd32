"""A sample of the mutated bundles and manifests, and every one that failed once. `FUZZ_COUNT` tries many."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from aot_runtime.errors import BundleError
from aot_runtime.texts import escaped
from tests.fuzz import bundles as bundles_module
from tests.fuzz.bundle_inputs import BundleInput, Inputs
from tests.fuzz.bundles import Bundles
from tests.fuzz.trial import SEED, Handler, count_of, kept, smaller, try_inputs

CAMPAIGNS = {
    "bundles": ("Bundles", "bundle_inputs.BundleInput"),
    "archives": ("Archives", "archive_inputs.ArchiveInput"),
    "names": ("Names", "names.NamesInput"),
    "policies": ("Policies", "policies.PolicyInput"),
    "manifests": ("Manifests", "manifests.ManifestInput"),
    "terminals": ("Terminals", "terminals.TerminalInput"),
    "calls_files": ("CallsFiles", ""),
}
"""Modules that make inputs, each with its handler and, where it has a corpus, the type of its inputs."""


def handler_of(name: str) -> Callable[[Path], Handler]:
    if name in ("manifests", "terminals"):
        pytest.importorskip("triton", reason="planning needs the extra `build`")
    return partial(getattr(import_module(f"tests.fuzz.{name}"), CAMPAIGNS[name][0]), seed=SEED)


@pytest.mark.parametrize(
    ("name", "count", "outcomes"),
    [
        ("bundles", 600, {"refused when it is opened", "opened, verified, a call planned", "run: right"}),
        ("manifests", 60, {"refused when it is read", "refused when it is planned", "planned"}),
        ("archives", 60, {"refused when it is opened", "opened, verify finds faults", "whole"}),
        ("calls_files", 100, {"refused", "taken"}),
        ("names", 600, {"opened", "refused"}),
        ("policies", 600, {"refused", "nobody may sign", "taken, and decides as it says"}),
        ("terminals", 400, {"bundle, status 0", "name, status 1", "kpack, status 0", "manifest, status 2",
                            "failure, status 0"}),
        pytest.param("calls_files", 5000, {"refused", "taken"}, marks=pytest.mark.slow),
        pytest.param("archives", 5000, {"run: right"}, marks=pytest.mark.slow),
        pytest.param("bundles", 20_000, {"run: wrong, as its self-test says"}, marks=pytest.mark.slow),
        pytest.param("manifests", 2000, {"planned"}, marks=pytest.mark.slow),
        pytest.param("terminals", 20_000, {"bundle, status 0"}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_sample(tmp_path: Path, name: str, count: int, outcomes: set[str]):
    """Some inputs are accepted: a refusal at once would test nothing of the later stages."""
    counts = try_inputs(handler_of(name), count_of(count), tmp_path)
    assert sum(counts.values()) == count_of(count) and counts.keys() >= outcomes


@pytest.mark.parametrize("name", [name for name in CAMPAIGNS if CAMPAIGNS[name][1]])
def test_what_failed_once(tmp_path: Path, name: str):
    """Each file of the corpus is an input that once failed, or one of a kind that must not fail."""
    handler = handler_of(name)(tmp_path)
    module, _, kind = CAMPAIGNS[name][1].partition(".")
    found = kept(name, getattr(import_module(f"tests.fuzz.{module}"), kind))
    assert found
    for given in found:
        prepared = handler.prepare(given)
        handler.handle(given, prepared)
        handler.undo(given, prepared)


# What would be found


def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: Callable[[Path], Any]) -> str:
    """Return the report of the first failure of a reader with a fault."""
    right = bundles_module.read_index
    seen: list[Path] = []

    def read(folder: Path) -> Any:
        seen.append(folder)
        return fault(folder) if len(seen) > len(Inputs(SEED).seeds) and len(seen) % 10 == 0 else right(folder)

    monkeypatch.setattr(bundles_module, "read_index", read)
    monkeypatch.setattr("tests.fuzz.trial.CPU_SECONDS", 0.3)
    with pytest.raises(AssertionError) as failure:
        try_inputs(handler_of("bundles"), 20, tmp_path)
    return str(failure.value)


def loop(folder: Path) -> None:
    while True:
        pass


def crash(folder: Path) -> None:
    signal.raise_signal(signal.SIGKILL)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("fault", "signature"),
    [
        (lambda folder: {}["missing"], "KeyError at test_inputs.py:<lambda>"),
        (lambda folder: bytearray(1 << 40), "MemoryError at test_inputs.py:<lambda>"),
        (lambda folder: __import__("os").system("true"), "ForbiddenError at test_inputs.py:<lambda>"),
        (lambda folder: (folder / "written").write_text("x"), "ForbiddenError at pathlib"),
        (lambda folder: Path("/etc/hostname").read_text(), "ForbiddenError at pathlib"),
        (lambda folder: (_ for _ in ()).throw(BundleError("")), "WrongError at bundles.py:must"),
        (loop, "CpuLimitError at test_inputs.py:loop"),
        (crash, "the process that ran it was killed by SIGKILL"),
    ],
)  # fmt: skip
def test_faults_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: Callable[[Path], Any], signature: str
):
    assert signature in broken(monkeypatch, tmp_path, fault)


@pytest.mark.parametrize("escape", [lambda text: text, lambda text: "\n".join(map(escaped, text.split("\n")))])
def test_what_is_printed_raw_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, escape: Callable[[str], str]):
    """Both raw characters and lines that begin inside a text are found."""
    monkeypatch.setattr("aot_runtime.terminal.escaped", escape)
    with pytest.raises(AssertionError, match=r"WrongError at bundles\.py:must"):
        try_inputs(handler_of("terminals"), 200, tmp_path)


def test_a_failure_is_made_smaller():
    inputs = Inputs(SEED)
    found = next(given for number in range(10_000) if len((given := inputs.draw(number)).edits) >= 5)
    wanted = found.edits[3]
    assert smaller(found, lambda tried: wanted in tried.edits) == replace(found, edits=(wanted,))


def test_a_forger_may_change_what_nobody_checks(tmp_path: Path):
    """Otherwise `verify` would only find what the harness left undone."""
    handler = Bundles(tmp_path, SEED)
    given = BundleInput("accumulate", (["index", "set", ["ops", 0, "doc"], "Other words."],), True, 1, False)
    assert handler.handle(given, handler.prepare(given)) == "opened, verified, a call planned"
