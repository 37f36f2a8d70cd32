"""benchmarks/gfx942.py: what is fetched is what was pinned, calls fit the manifests, results that are kept are read.

No kernel of a peer is here, so none is built.
"""

from __future__ import annotations

import hashlib
import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

from tests.docs.scripts import ROOT

FOLDER = ROOT / "benchmarks"
NAMES = ("peers.sources", "peers.cases", "peers.building", "peers.modelling", "gfx942")


@pytest.fixture
def modules() -> Iterator[SimpleNamespace]:
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        yield SimpleNamespace(**{name.rpartition(".")[2]: importlib.import_module(name) for name in NAMES})
    finally:
        sys.path.remove(str(FOLDER))
        for name in set(sys.modules) - before:
            if (getattr(sys.modules[name], "__file__", None) or "/").startswith(str(FOLDER)):
                del sys.modules[name]


def test_what_is_fetched_is_what_was_pinned(modules: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    clone, commit = clone_with(tmp_path / "clone", "kernel.py", b"pinned\n")
    pinned = modules.sources.Source("some/project", commit, "kernel.py", hashlib.sha256(b"pinned\n").hexdigest())
    monkeypatch.setattr(modules.sources, "sources", lambda: iter([pinned]))
    peers = tmp_path / "peers"
    with pytest.raises(modules.sources.SourceError, match="is not there"):
        modules.sources.check(peers)
    assert modules.sources.fetch(peers, {"some/project": clone}) == 1
    pinned.within(peers).write_bytes(b"another\n")
    with pytest.raises(modules.sources.SourceError, match="has the sha256"):
        modules.sources.check(peers)
    wrong = replace(pinned, sha256="0" * 64)
    monkeypatch.setattr(modules.sources, "sources", lambda: iter([wrong]))
    with pytest.raises(modules.sources.SourceError, match="has the sha256"):
        modules.sources.fetch(tmp_path / "other", {"some/project": clone})
    assert not wrong.within(tmp_path / "other").exists()


def clone_with(folder: Path, name: str, content: bytes) -> tuple[Path, str]:
    """A git repository with one file, and its commit."""
    folder.mkdir()
    (folder / name).write_bytes(content)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["init", "-q"], ["add", name], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    return folder, subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_calls_fit_the_manifests(modules: SimpleNamespace):
    manifests: dict[Path, dict] = {}
    for case in modules.cases.cases():
        assert [way.who for way in case.ways].count(modules.cases.OURS) == 1 and len(case.ways) > 1
        for way in case.ways:
            folder = modules.building.SHIPPED if way.who == modules.cases.OURS else modules.sources.HERE
            path = folder / f"{way.manifest}.yaml"
            if path not in manifests:
                manifests[path] = yaml.load(path.read_text(), yaml.CSafeLoader)
            op = manifests[path]["ops"][way.op]
            assert way.dtypes.keys() == op["dtypes"].keys() and all(
                way.dtypes[t] in op["dtypes"][t] for t in way.dtypes
            )
            assert way.scalars.keys() <= op.get("scalars", {}).keys()
            assert way.content.keys() <= op["tensors"].keys()
            if way.configs:
                listed = len(op["launches"][0]["configs"])
                assert set(way.configs) <= set(range(listed)), f"{way.manifest} {way.op}"
    assert set(modules.cases.PEERS.values()) == {each.repository for each in modules.sources.sources()}


def test_a_call_that_cannot_be_built_leaves_the_others(
    modules: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def aotbuild(command: list[str], **_: object) -> SimpleNamespace:
        folder = Path(command[-1])
        calls = yaml.safe_load((folder / "calls.yaml").read_text())["calls"]
        if any(call["op"] == "large" for call in calls):
            return SimpleNamespace(returncode=1, stdout="", stderr="note\nout of resource: shared memory")
        (folder / "some-gfx942").mkdir()
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(modules.building.subprocess, "run", aotbuild)
    calls = [modules.building.Call(None, {"op": op}) for op in ("a", "b", "large", "c", "d")]
    found = modules.building.build(calls, tmp_path / "some.yaml", tmp_path)
    assert [found[call].folder is not None for call in calls] == [True, True, False, True, True]
    assert found[calls[2]].reason == "out of resource: shared memory"


def test_results_are_kept(modules: SimpleNamespace, tmp_path: Path):
    file = tmp_path / "new" / "results.jsonl"
    modelling: ModuleType = modules.modelling
    first = modelling.Modelled(1e-6, "one: num_warps=4", slots=1.5, spills=2)
    modelling.Results(file)._keep("key", first)
    modelling.Results(file)._keep("other", replace(first, seconds=2e-6))
    again = modelling.Results(file)._known
    assert again == {"key": first, "other": replace(first, seconds=2e-6)}


def test_the_summary_compares_with_the_best_peer(modules: SimpleNamespace):
    modelled = modules.modelling.Modelled
    case = modules.cases.Case("rows", "kind", "some", (), 0.0, 4e6)
    found = {"ours": modelled(2e-6), "perf_kernels": modelled(4e-6), "aiter": modelled(8e-6)}
    slower = {**found, "ours": modelled(8e-6)}
    lines = modules.gfx942.summary([(case, found), (case, slower)]).splitlines()
    assert lines[2] == "| rows: some | 2.0 | 2000 GB/s | - | - | perf_kernels | 4.0 | 2.00 |"
    assert lines[-1] == "rows: geometric mean 1.00 of 2; the best peer is faster in 1"


def test_of_a_list_those_configs_stand_for_a_kind_that_were_the_fastest_for_its_first_case(
    modules: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def way(who: str, size: int, configs: tuple[int, ...]):
        return modules.cases.Way(who, who, "op", {"n": size}, {}, configs=configs)

    def case(kind: str, size: int):
        ways = way("ours", size, ()), way("aiter", size, ()), way("perf_kernels", size, (0, 1, 2))
        return modules.cases.Case("group", kind, f"{kind} {size}", ways, 0.0, 1.0)

    all_cases = case("small", 1), case("large", 1), case("large", 2), case("large", 3)
    asked = []

    class Results:
        def __init__(self, path: Path):
            pass

        def of(self, call, built):
            asked.append((call.way.who, call.entry["dims"]["n"], call.entry.get("scalars", {}).get("config")))
            return modules.modelling.Modelled((5.0, 2.0, 1.0)[asked[-1][2] or 0])

    monkeypatch.setattr(modules.gfx942, "cases", lambda: iter(all_cases))
    monkeypatch.setattr(modules.gfx942, "build_all", lambda calls, options: dict.fromkeys(calls))
    monkeypatch.setattr(modules.gfx942, "Results", Results)
    options = SimpleNamespace(only=["large 3"], few=2, results=tmp_path, who=["ours", "perf_kernels"])
    ((found, best),) = modules.gfx942.modelled(options)
    assert found.name == "large 3" and best["perf_kernels"].seconds == 1
    assert asked == [
        *(("perf_kernels", 1, number) for number in (0, 1, 2)),  # ours has no list
        ("ours", 3, None), ("perf_kernels", 3, 2), ("perf_kernels", 3, 1),
    ]  # fmt: skip
