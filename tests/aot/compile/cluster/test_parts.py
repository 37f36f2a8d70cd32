"""What is sent to workers, who gets it, and which of them may."""

import hashlib
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="clusters need the extra `cluster`")

from aot.compile.cluster import worker
from aot.compile.cluster.roster import Call, Roster, differences
from aot.compile.cluster.sources import packed_sources, unpacked_root
from aot.compile.errors import KernelFileError
from tests.support.building import jobs, tasks


def test_sources_are_what_was_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """They lie as they did, be one beside the root; and one that was changed since is named."""
    (tmp_path / "project" / "kernels").mkdir(parents=True)
    files = {"kernels/a.py": b"a", "../../beside.py": b"b"}
    root = tmp_path / "project" / "kernels" / "root"
    root.mkdir()
    for file, content in files.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(content)
    sources = tuple((file, hashlib.sha256(content).hexdigest()) for file, content in files.items())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    unpacked = unpacked_root(packed_sources(str(root), sources))
    assert not unpacked.is_relative_to(tmp_path / "project")
    assert {file: (unpacked / file).read_bytes() for file in files} == files
    (root / "kernels/a.py").write_bytes(b"other")
    packed_sources.cache_clear()
    with pytest.raises(KernelFileError, match=r"file kernels/a\.py changed during the build; build again"):
        packed_sources(str(root), sources)


def test_who_gets_a_job_next():
    """Who is least busy; and one that is given out again gets a worker of its own, which then gets no other."""
    roster = Roster()
    facts = {"a": {"id": 1, "nthreads": 2}, "b": {"id": 2, "nthreads": 4}, "c": {"id": 3, "nthreads": 0}}
    new, gone = roster.update(facts)
    assert [seat.address for seat in new] == ["a", "b"] and not gone and roster.pick(False) is None
    a, b = new
    a.admitted = b.admitted = True
    first = Call(Future(), tasks.act, jobs.scalars("gfx942"))
    b.calls += [first, replace(first), replace(first)]
    assert roster.pick(False) is a and roster.pick(True) is a
    b.calls.pop()
    a.calls.append(replace(first, alone=True))
    assert roster.pick(False) is b and roster.pick(True) is None
    b.fault = "its disk is full"
    assert roster.pick(False) is None and roster.faults() == ""
    a.fault = "it has another Triton"
    assert roster.faults() == "a: it has another Triton; b: its disk is full"
    assert roster.update({"a": {"id": 4, "nthreads": 2}, "b": facts["b"]})[1] == [a], "a was started again"


def test_what_differs_is_named():
    wanted = {"Python": "3.11", "Triton": "3.9.0", "environment variable X": "1"}
    assert differences(wanted, wanted) == ""
    found = {"Python": "3.11", "Triton": "3.9.0", "environment variable Y": "2"}
    variables = "environment variable X is not set, not 1, environment variable Y is 2, not set"
    assert differences(found, wanted) == variables
    assert differences(found | {"Python": "3.12"}, wanted) == "Python is 3.12, not 3.11"
    assert {"Python", "machine", "aotbuild", "Triton", "compiler for sm_90"} <= worker.facts(["sm_90"], False).keys()
