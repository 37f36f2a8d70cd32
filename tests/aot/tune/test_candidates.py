"""Spaces: their candidates, and their faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.manifest.loading import OpSource, load_manifest
from aot.manifest.spaces import load_space
from aot.manifest.yamlfile import ManifestError
from aot.tune.candidates import SCALAR, Group, read_groups, with_candidates
from tests.docs.markdown import blocks
from tests.support.building.projects import EVERYTHING, edit, rows, tuning, unmarked, write_project
from tests.support.session_builds import ROOT

SPACE = """\
op: scale
groups:
  - name: base
    candidates:
      - {blocks: {WIDTH: [1, 2, 4]}, options: {num_warps: [1, 2]}}
      - {blocks: {WIDTH: 2}, options: {num_warps: [2, 8]}}
    constraints: [WIDTH * num_warps <= lds_bytes // 8192, WIDTH != 1]
    calls: [{dims: {rows: 4, cols: 16}, dtypes: {T: float16}}]
  - name: late
    when: cols > 100
    candidates: [{blocks: {WIDTH: 8}, options: {waves_per_eu: 2}}]
"""


def read(folder: Path, text: str = SPACE, arch: str = "gfx942") -> tuple[OpSource, tuple[Group, ...]]:
    (source,) = load_manifest(write_project(folder, EVERYTHING)).sources
    (folder / "space.yaml").write_text(text)
    return source, read_groups(load_space(folder / "space.yaml"), source, arch)


def test_lists_stand_for_every_choice_that_meets_the_constraints(tmp_path: Path):
    _, (base, late) = read(tmp_path)
    found = [
        (candidate.number, candidate.blocks["WIDTH"], candidate.options["num_warps"]) for candidate in base.candidates
    ]
    assert found == [(1, 2, 1), (2, 2, 2), (3, 4, 1), (4, 4, 2)]
    assert base.left_out == {"WIDTH != 1": 2, "WIDTH * num_warps <= lds_bytes // 8192": 1}
    (candidate,) = late.candidates
    assert (candidate.number, candidate.text) == (5, "WIDTH 8, waves_per_eu 2") and late.base is None


def test_candidates_stand_where_their_config_does(tmp_path: Path):
    """Calls of an earlier config keep it; keys that the candidates do not give stay as they were."""
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning/scale.yaml").write_text(
        tuning("{scale_rows: [{when: rows > 9, blocks: {WIDTH: 16}}, {name: base, options: {num_stages: 1}}]}")
    )
    source, groups = read(tmp_path)
    (launch,) = with_candidates(source, groups, "gfx942").spec.ops["scale"].launches
    names = [config.name for config in launch.configs]
    assert names == ["candidate5", "tuned0", "wide", *(f"candidate{i}" for i in range(1, 5)), "base"]
    assert launch.configs[0].when == f"{SCALAR} == 5 and (cols > 100)"
    assert launch.configs[3].when == f"{SCALAR} == 1"
    assert launch.configs[3].options == {"num_warps": 1, "num_stages": 1}


# What is replaced in the space, by what, with an @ where the fault is, and what is said.
FAULTS = """
op: scale -> @op: skale -> the space is for op 'skale', not for 'scale'
name: base -> @name: nearly -> scale_rows has no config 'nearly', and a new one needs a `when`; known: base, wide
name: base -> name: wide\\n    @when: rows > 3 -> scale_rows has 'wide', with a different `when`: cols > 32
name: base -> name: base\\n    @launch: other -> op 'scale' has no launch 'other'; known: scale_rows
name: base -> name: base\\n    @lunch: other -> unknown key 'lunch'; did you mean 'launch'?
name: late\\n    when: cols > 100 -> @name: base -> another group of gfx942 is 'base', too
[WIDTH * num_warps <= -> [@WIDTH > > -> 'WIDTH > > lds_bytes // 8192' is not an expression: invalid syntax
WIDTH != 1] -> @wide != 1] -> 'wide != 1' needs wide, which has no value here
"""


@pytest.mark.parametrize("old, new, message", rows(FAULTS))
def test_a_fault_has_its_place(tmp_path: Path, old: str, new: str, message: str):
    place, text = unmarked(edit(SPACE, (old, new)))
    with pytest.raises(ManifestError) as caught:
        read(tmp_path, text)
    assert caught.value.messages == (f"{tmp_path / 'space.yaml'}:{place}: {message}",)


def test_an_architecture_without_a_group(tmp_path: Path):
    text = SPACE.replace("    candidates:", "    arch: [gfx90a]\n    candidates:")
    with pytest.raises(ManifestError, match=r"no group is for gfx942; there are groups for gfx90a$"):
        read(tmp_path, text)


def test_the_space_that_the_page_shows(tmp_path: Path):
    block, _ = blocks((ROOT / "docs/howto/tune.md").read_text(encoding="utf-8"), "yaml")
    (tmp_path / "softmax.yaml").write_text(block.text)
    source = next(item for item in load_manifest(ROOT / "manifests/rows.yaml").sources if item.name == "softmax")
    (group,) = read_groups(load_space(tmp_path / "softmax.yaml"), source, "gfx942")
    assert len(group.candidates) == 10 and group.base is not None and len(group.spec.calls) == 2
