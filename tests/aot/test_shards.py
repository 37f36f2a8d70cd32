"""Builds in shards: the parts of a build's jobs, which other machines compile into a cache."""

import json
from pathlib import Path

import pytest

from aot.shards import Shard
from tests.support.building.builds import Project, contents, figures
from tests.support.building.projects import KERNELS

ARCHS = ("gfx942", "sm_90")


def listed(project: Project, *options: str) -> list[dict[str, object]]:
    result = project.build("--list-jobs", *options, archs=ARCHS)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(("count", "jobs"), [(1, 5), (3, 7), (7, 7), (16, 7)])
def test_shards_are_disjoint_even_and_all(count: int, jobs: int):
    whole = {f"{key:03}": key for key in range(jobs)}
    shards = [Shard(number, count).of(whole) for number in range(1, count + 1)]
    assert sorted(key for shard in shards for key in shard) == sorted(whole)
    sizes = {len(shard) for shard in shards}
    assert max(sizes) - min(sizes) <= 1


def test_a_build_after_all_shards_compiles_nothing(tmp_path: Path):
    """Each shard on a machine of its own, with a shared cache between them. The bundle is that of a plain build."""
    shared = ("--shared-cache", str(tmp_path / "shared"))
    compiled = 0
    for number in (1, 2, 3):
        machine = Project(tmp_path / f"machine-{number}")
        result = machine.build("--shard", f"{number}/3", *shared)
        part = (3, 3, 2)[number - 1]
        assert figures(result) == (part, 0) and not machine.output.exists()
        assert f"shard {number}/3: {part} of 8 jobs\n" in result.stdout
        compiled += part
    project, plain = Project(tmp_path / "last"), Project(tmp_path / "plain")
    assert figures(project.build(*shared)) == (0, compiled)
    assert figures(plain.build()) == (compiled, 0)
    assert contents(project.output) == contents(plain.output)


def test_a_shard_fails_as_a_build_does(tmp_path: Path):
    """The shards of a kernel that does not compile exit with 1; what compiles is in the cache."""
    kernels = KERNELS.replace("    i = tl.arange", "    tl.static_assert(BLOCK == 16)\n    i = tl.arange")
    project = Project(tmp_path, kernels=kernels)
    results = [project.build("--shard", f"{number}/2") for number in (1, 2)]
    assert {result.exit_code for result in results} == {1}
    assert all("did not compile\n" in result.stderr and "static_assert" in result.stderr for result in results)
    assert figures(project.build("--filter", "block=16")) == (0, 4) and not list(tmp_path.glob("out/tiny*32*"))


def test_jobs_are_listed_as_json(tmp_path: Path):
    """In the order that shards take them in; a kernel that two targets share is two jobs."""
    project = Project(tmp_path)
    whole = listed(project)
    assert not project.output.exists() and not project.cache.exists()
    assert [job["key"] for job in whole] == sorted(job["key"] for job in whole) and len(whole) == 16
    for number in (1, 2, 3):
        part = listed(project, "--shard", f"{number}/3")
        assert [job["key"] for job in part] == [job["key"] for job in whole[number - 1 :: 3]]
        assert {job["shard"] for job in part} == {f"{number}/3"}
    (job,) = (job for job in whole if "tiny-gfx942: scale[T=float16, BLOCK=16] aligned config 0" in job["variants"])
    assert job | {"key": "", "signature": {}, "shard": ""} == {
        "key": "", "shard": "", "arch": "gfx942", "kernel": "k.py:scale_rows", "signature": {}, "sources": ["k.py"],
        "constants": {"BLOCK": 16}, "options": {"num_warps": 1}, "ops": ["scale"],
        "variants": ["tiny-gfx942: scale[T=float16, BLOCK=16] aligned config 0"],
    }  # fmt: skip
    assert job["signature"] == {
        "x": "*fp16", "out": "*fp16", "cols": "i32", "stride_x_rows": "i32", "stride_out_rows": "i32", "factor": "fp32",
        "BLOCK": "constexpr",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0/3", "no shard 0/3; shards are 1/3 to 3/3"),
        ("4/3", "no shard 4/3; shards are 1/3 to 3/3"),
        ("1/0", "1/0"),
        ("3", "'3' is not a shard; write NUMBER/COUNT, such as 3/16"),
    ],
)
def test_wrong_shards(tmp_path: Path, text: str, said: str):
    result = Project(tmp_path).build("--shard", text)
    assert result.exit_code == 2 and said in result.stderr


def test_a_dry_run_goes_without_shards(tmp_path: Path):
    assert Project(tmp_path).build("--dry-run", "--list-jobs").exit_code == 2
