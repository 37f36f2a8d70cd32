"""`aotbuild cache`: entries are listed, and the least recently used are pruned."""

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from aot.cli import main
from tests.support.building.builds import Project, figures

DAY = 86400.0


def run(*words: str, cache: Path) -> str:
    result = CliRunner().invoke(main, ["cache", *words, "--cache-dir", str(cache)])
    assert result.exit_code == 0, result.output
    return result.output


def entries(cache: Path) -> dict[str, int]:
    """Return the number of entries of each kind."""
    return {kind: found["entries"] for kind, found in json.loads(run("ls", "--json", cache=cache))["kinds"].items()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("cache"))
    assert figures(project.build()) == (8, 0)
    return project


def aged(project: Project, days: float, count: int) -> None:
    """Set the time of the last use of the first `count` kernels of the cache."""
    then = time.time() - days * DAY
    for path in sorted(project.cache.glob("v2/*/*"))[:count]:
        os.utime(path, (then, then))


def test_entries_go_by_age_then_size_and_what_is_used_stays(built: Project):
    assert entries(built.cache) == {"kernels": 8}
    assert "kernels        8" in run("ls", cache=built.cache)
    aged(built, days=40, count=3)
    told = run("prune", "--unused-for", "30d", "--dry-run", cache=built.cache)
    assert told.startswith("would remove 3 of 8 entries, ") and entries(built.cache) == {"kernels": 8}
    assert figures(built.build()) == (0, 8), "a build uses all of them again"
    assert run("prune", "--unused-for", "30d", cache=built.cache).startswith("removed 0 of 8")
    aged(built, days=40, count=3)
    assert run("prune", "--unused-for", "5w", cache=built.cache).startswith("removed 3 of 8")
    sizes = [path.stat().st_size for path in sorted(built.cache.glob("v2/*/*"))]
    aged(built, days=1, count=2)
    assert run("prune", "--max-size", str(sum(sizes) - 1), cache=built.cache).startswith("removed 1 of 5")
    assert figures(built.build()) == (4, 4)


def test_other_files_stay_and_older_versions_go(tmp_path: Path):
    for name in ("v1/ab/key", "v2/ab/key", "mine/ab/key", "v2.txt", "CACHEDIR.TAG"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "vectors-v1").symlink_to(tmp_path / "mine")
    assert entries(tmp_path) == {"of older versions": 1, "kernels": 1}
    assert run("prune", cache=tmp_path).startswith("removed 1 of 2 entries, 1 B")
    assert run("prune", "--all", cache=tmp_path).startswith("removed 1 of 1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CACHEDIR.TAG", "mine", "v2.txt", "vectors-v1"]
    assert (tmp_path / "mine/ab/key").exists()
    assert run("ls", cache=tmp_path) == f"{tmp_path} is empty\n"
    assert run("ls", cache=tmp_path / "gone") == f"{tmp_path / 'gone'} is empty\n"


@pytest.mark.parametrize(
    ("option", "said"),
    [(("--max-size", "2 GB"), "write 2GiB, 500MiB"), (("--unused-for", "30"), "write 30d, 2w or 12h")],
)
def test_wrong_options(tmp_path: Path, option: tuple[str, str], said: str):
    result = CliRunner().invoke(main, ["cache", "prune", *option, "--cache-dir", str(tmp_path)])
    assert result.exit_code == 2 and said in result.output
