"""A sample of the mutated bundles and manifests, and every one that failed once. `python -m tests.fuzz` tries many."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot_runtime.errors import BundleError
from aot_runtime.texts import escaped
from tests.fuzz import bundles as bundles_module
from tests.fuzz.archive_inputs import ArchiveInput
from tests.fuzz.archives import Archives
from tests.fuzz.bundle_inputs import BundleInput, Inputs, files_of
from tests.fuzz.bundles import Bundles
from tests.fuzz.calls_files import CallsFiles
from tests.fuzz.campaign import Failure, run_inputs
from tests.fuzz.corpus import CORPUS, keep, kept, smaller
from tests.fuzz.names import Names, NamesInput
from tests.fuzz.policies import Policies, PolicyInput

SEED = 20261122
Make = Callable[[Path], Any]


def bundles(folder: Path) -> Bundles:
    return Bundles(folder, SEED)


def archives(folder: Path) -> Archives:
    return Archives(folder, SEED)


def manifests(folder: Path) -> Any:
    pytest.importorskip("triton", reason="planning needs the extra `build`")
    from tests.fuzz.manifests import Manifests

    return Manifests(folder, SEED)


def calls_files(folder: Path) -> CallsFiles:
    return CallsFiles(folder, SEED)


def policies(folder: Path) -> Policies:
    return Policies(folder, SEED)


def names(folder: Path) -> Names:
    return Names(folder, SEED)


def terminals(folder: Path) -> Any:
    pytest.importorskip("triton", reason="manifests need the extra `build`")
    from tests.fuzz.terminals import Terminals

    return Terminals(folder, SEED)


def run(make: Make, count: int, folder: Path) -> tuple[Counter[str], list[Failure]]:
    failures: list[Failure] = []
    counts: Counter[str] = Counter()
    for outcomes in run_inputs(make, count, folder, failures.append):
        counts += outcomes.counts
    return counts, failures


@pytest.mark.parametrize(
    ("make", "count", "outcomes"),
    [
        (bundles, 600, {"refused when it is opened", "opened, verified, a call planned", "run: right"}),
        (manifests, 60, {"refused when it is read", "refused when it is planned", "planned"}),
        (archives, 60, {"refused when it is opened", "opened, verify finds faults", "whole"}),
        (calls_files, 100, {"refused", "taken"}),
        pytest.param(calls_files, 5000, {"refused", "taken"}, marks=pytest.mark.slow),
        (names, 600, {"opened", "refused"}),
        (policies, 600, {"refused", "nobody may sign", "taken, and decides as it says"}),
        (terminals, 400, {"bundle, status 0", "name, status 1", "kpack, status 0", "manifest, status 2",
                          "failure, status 0"}),
        pytest.param(archives, 5000, {"run: right"}, marks=pytest.mark.slow),
        pytest.param(bundles, 20_000, {"run: wrong, as its self-test says"}, marks=pytest.mark.slow),
        pytest.param(manifests, 2000, {"planned"}, marks=pytest.mark.slow),
        pytest.param(terminals, 20_000, {"bundle, status 0"}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_sample(tmp_path: Path, make: Make, count: int, outcomes: set[str]):
    """Not all are refused: what would be refused at once tells nothing of what comes later."""
    counts, failures = run(make, count, tmp_path)
    assert not failures, failures[0]
    assert sum(counts.values()) == count and counts.keys() >= outcomes


@pytest.mark.parametrize("name", ["bundles", "archives", "names", "policies", "manifests", "terminals"])
def test_what_failed_once(tmp_path: Path, name: str):
    """Each file of the corpus is an input for which a fault was mended, or one of an outcome."""
    if name == "bundles":
        handler, kind = bundles(tmp_path), BundleInput
    elif name == "archives":
        handler, kind = archives(tmp_path), ArchiveInput
    elif name == "names":
        handler, kind = names(tmp_path), NamesInput
    elif name == "policies":
        handler, kind = policies(tmp_path), PolicyInput
    elif name == "terminals":
        handler = terminals(tmp_path)
        from tests.fuzz.terminals import TerminalInput as kind  # type: ignore[assignment]
    else:
        handler = manifests(tmp_path)
        from tests.fuzz.manifests import ManifestInput as kind  # type: ignore[assignment]
    found = kept(CORPUS / name, kind)
    assert found
    for _, given in found:
        prepared = handler.prepare(given)
        handler.handle(given, prepared)
        handler.undo(given, prepared)


# What would be found


def broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: Callable[[Path], Any], count: int = 20
) -> list[Failure]:
    """The failures of a reader with a fault."""
    right = bundles_module.read_index
    seen: list[Path] = []

    def read(folder: Path) -> Any:
        seen.append(folder)
        return fault(folder) if len(seen) > len(Inputs(SEED).seeds) and len(seen) % 10 == 0 else right(folder)

    monkeypatch.setattr(bundles_module, "read_index", read)
    monkeypatch.setattr("tests.fuzz.campaign.CPU_SECONDS", 0.3)
    return run(bundles, count, tmp_path)[1]


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
        (lambda folder: (folder / "written").write_text("x"), "ForbiddenError at pathlib.py:open"),
        (lambda folder: Path("/etc/hostname").read_text(), "ForbiddenError at pathlib.py:open"),
        (lambda folder: (_ for _ in ()).throw(BundleError("")), "WrongError at bundles.py:must"),
        (loop, "CpuLimitError at test_inputs.py:loop"),
        (crash, "the process that ran it was killed by SIGKILL"),
    ],
)  # fmt: skip
def test_faults_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: Callable[[Path], Any], signature: str
):
    failures = broken(monkeypatch, tmp_path, fault)
    (failure,) = failures  # of one signature the first is kept
    assert failure.signature.partition(":")[0] == signature.partition(":")[0]


@pytest.mark.parametrize("escape", [lambda text: text, lambda text: "\n".join(map(escaped, text.split("\n")))])
def test_what_is_printed_raw_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, escape: Callable[[str], str]):
    """Raw characters, and lines that a text begins."""
    monkeypatch.setattr("aot_runtime.terminal.escaped", escape)
    assert {failure.signature for failure in run(terminals, 200, tmp_path)[1]} == {"WrongError at bundles.py:must"}


def test_a_failure_is_made_smaller_and_kept(tmp_path: Path):
    inputs = Inputs(SEED)
    found = next(given for number in range(10_000) if len((given := inputs.draw(number)).edits) >= 5)
    wanted = found.edits[3]
    small = smaller(found, lambda tried: wanted in tried.edits)
    assert small == replace(found, edits=(wanted,))
    path = keep(tmp_path / "corpus", "KeyError at here", small, "Traceback\nKeyError: 3\n")
    ((name, again),) = kept(tmp_path / "corpus", BundleInput)
    assert (name, again.seed) == (path.name, small.seed) == ("KeyError_at_here.json", found.seed)
    seed = inputs.seeds[found.seed]
    assert files_of(again, seed) == files_of(small, seed)


def test_a_forger_may_change_what_nobody_checks(tmp_path: Path):
    """Otherwise `verify` would find what the harness left undone, and nothing else."""
    handler = bundles(tmp_path)
    given = BundleInput("accumulate", (["index", "set", ["ops", 0, "doc"], "Other words."],), True, 1, False)
    assert handler.handle(given, handler.prepare(given)) == "opened, verified, a call planned"


def test_the_same_number_gives_the_same_input():
    one, other = Inputs(SEED), Inputs(SEED)
    assert [one.draw(number) for number in range(50)] == [other.draw(number) for number in range(50)]
    assert one.draw(1) != Inputs(SEED + 1).draw(1)
