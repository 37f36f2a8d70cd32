"""hipBLASLt's kernels by AMD's generator: fetching it, and the form of its tables."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rocm import generator
from benchmarks.rocm.generator import Kind, converted, cut, merged, sources
from benchmarks.rocm.libraries import Libraries

from .packages import Unavailable


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the generator, a table, and a file that is not needed."""
    made = tmp_path / "repository"
    for name in ("tensilelite/generator.py", f"{generator._TABLES}/table.yaml", "docs/large.bin"):
        (made / name).parent.mkdir(parents=True)
        (made / name).write_text(name)
    git(made, "init", "--quiet")
    git(made, "add", ".")
    git(made, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "all")
    git(made, "config", "uploadpack.allowFilter", "true")
    git(made, "config", "uploadpack.allowAnySHA1InWant", "true")
    monkeypatch.setattr(generator, "COMMIT", git(made, "rev-parse", "HEAD"))
    return made


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_remote_repository_is_fetched_in_part(repository: Path, tmp_path: Path):
    found = sources(f"file://{repository}", tmp_path / "fetched")
    assert (found / generator._TABLES / "table.yaml").exists()
    assert not (found / "docs").exists()
    objects = subprocess.run(
        ["git", "-C", str(found), "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)"],
        check=True, capture_output=True, text=True, env={"GIT_NO_LAZY_FETCH": "1"},
    )  # fmt: skip
    assert objects.stdout.split().count("blob") == 2
    repository.rename(tmp_path / "gone")
    assert sources(f"file://{repository}", tmp_path / "fetched") == found, "it is fetched once"


def test_a_local_repository_may_lack_what_is_not_needed(repository: Path, tmp_path: Path):
    blob = git(repository, "rev-parse", "HEAD:docs/large.bin")
    (repository / ".git/objects" / blob[:2] / blob[2:]).unlink()
    bare = tmp_path / "bare"
    (repository / ".git").rename(bare)
    assert (sources(str(bare), tmp_path / "made") / "tensilelite/generator.py").exists()


def test_a_checkout_is_used_as_it_is(repository: Path, tmp_path: Path):
    assert sources(str(repository), tmp_path / "made") == repository
    assert not (tmp_path / "made").exists()


def test_a_repository_that_is_not_there(tmp_path: Path):
    with pytest.raises(Unavailable, match=r"(?s)git fetch .* fails: .*\n--source names a checkout"):
        sources(f"file://{tmp_path}/nowhere", tmp_path / "made")


def test_the_tables_of_operations():
    assert Kind("bf16", "TN").file == "aquavanjaram_Cijk_Alik_Bljk_BBS_BH_UserArgs.yaml"
    assert Kind("f16", "NT").file == "aquavanjaram_Cijk_Ailk_Bjlk_HHS_BH_UserArgs.yaml"


def test_a_table_keeps_all_winners_but_kernels_by_hand():
    solutions = [{"CustomKernelName": name, "SolutionIndex": index} for index, name in enumerate(("", "by_hand", ""))]
    sizes = [[[64, 64, 1, 64], [2, 9.0]], [[2, 64, 1, 32], [1, 9.0]], [[32, 16, 1, 32, 8], [0, 5.0]]]
    found = cut(["version", "", "", "", {}, solutions, [], sizes, "rest"], None)
    assert [solution["CustomKernelName"] for solution in found[5]] == ["", ""]
    assert found[7] == [[[64, 64, 1, 64], [1, 9.0]], [[32, 16, 1, 32, 8], [0, 5.0]]]


def test_a_table_keeps_the_winners_of_some_sizes():
    solutions = [{"name": name, "SolutionIndex": index} for index, name in enumerate("abc")]
    sizes = [[[64, 64, 1, 64], [2, 9.0]], [[64, 64, 1, 32], [1, 9.0]], [[32, 32, 1, 32, 8], [0, 5.0]]]
    found = cut(["version", "", "", "", {}, solutions, [], sizes, "rest"], [32, 64])
    assert found[5] == [{"name": "a", "SolutionIndex": 0}, {"name": "c", "SolutionIndex": 1}]
    assert found[7] == [[[64, 64, 1, 64], [1, 9.0]], [[32, 32, 1, 32, 8], [0, 5.0]]]
    assert found[8] == "rest"


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(generator, "_NEEDED", {"os": "os", "not_there": "the-package"})
    with pytest.raises(Unavailable, match=r"pip install the-package$"):
        generator.generate(Libraries(tmp_path), [Kind("bf16", "TN")], [64], "")
    with pytest.raises(Unavailable, match="no table of bf16 TT for gfx942"):
        generator._cut(tmp_path / "none.yaml", tmp_path / "cut.yaml", [64], Kind("bf16", "TT"))
    (tmp_path / "some.yaml").write_text("[a, b, c, d, e, [{}], [], [[[64, 64, 1, 64], [0, 9.0]]]]")
    with pytest.raises(Unavailable, match="bf16 TN for gfx942 does not have the sizes 96, 128"):
        generator._cut(tmp_path / "some.yaml", tmp_path / "cut.yaml", [64, 96, 128], Kind("bf16", "TN"))


def made_table() -> dict[str, Any]:
    predicates = [{"type": "WorkspaceCheck", "value": [4, 0, 1]}, {"type": "UseE", "value": False}]
    solution = {
        "index": 0, "libraryLogicIndex": 0, "problemPredicate": {"type": "And", "value": predicates},
        "problemType": {"useE": False}, "sizeMapping": {"depthU": 64},
    }  # fmt: skip
    row = {
        "predicate": {"type": "EqualityMatching"},
        "library": {"table": [{"key": [64, 64, 1, 64], "index": 0}], "distance": "Equality"},
    }
    return {"solutions": [solution], "library": {"type": "Problem", "rows": [row]}}


def test_tables_take_the_form_of_the_library():
    found = converted(made_table(), 7)
    (solution,) = found["solutions"]
    assert (solution["index"], solution["libraryLogicIndex"]) == (7, 7)
    assert solution["problemPredicate"]["value"] == [{"type": "UseE", "value": False}]
    assert solution["taskPredicate"] == {"type": "WorkspaceCheck"}
    assert solution["problemType"]["swizzleTensorA"] is False
    assert solution["sizeMapping"] == {**generator._ADDED_TO_MAPPINGS, "depthU": 64}
    exact, nearest = found["library"]["rows"]
    assert exact["library"] == {"table": [{"key": [64, 64, 1, 64], "index": 7}], "distance": "Equality"}
    assert nearest["predicate"] == {"type": "TruePred"}
    assert nearest["library"]["distance"] == "Euclidean"


def test_masters_are_one():
    masters = [master("TN", "bf16"), master("TN", "f16"), master("NN", "bf16")]
    (row,) = merged(masters)["library"]["rows"]
    assert {ops: each["rows"] for ops, each in row["library"]["map"].items()} == {"TN": ["bf16", "f16"], "NN": ["bf16"]}
    assert masters == [master("TN", "bf16"), master("TN", "f16"), master("NN", "bf16")]


def master(ops: str, row: str) -> dict[str, Any]:
    problems = {ops: {"type": "Problem", "rows": [row]}}
    return {"library": {"type": "Hardware", "rows": [{"library": {"type": "ProblemMap", "map": problems}}]}}
