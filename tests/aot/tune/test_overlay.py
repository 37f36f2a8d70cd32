"""Configs written to tuning files: other text is preserved, and the same config gives the same text."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.manifest.loading import load_tuning
from aot.manifest.schema import ConfigSpec, TuningSpec
from aot.tune.overlay import is_measured, with_config
from tests.support.building.projects import edit

FILE = """\
doc: Of rows.
tuning:
  - arch: [gfx90a, gfx942] # two
    modelled: {by: registers}
    launches:
      scale_rows:
        # What is short.
        - {name: short, when: cols <= 16, options: {num_warps: 1}}
        - name: base # in lines
          options: {num_warps: 4}

        # The end.
  - arch: [sm_90]
    measured: {device: H200, date: "2026-11-21", figure: The best.}
    launches: {scale_rows: [{name: base, options: {num_warps: 8}}], other: []}
"""
MODELLED = {"by": "aotbuild tune", "figure": "1.10 times as fast: the best of 3.", "version": "model 1"}


def config(**members: object) -> ConfigSpec:
    return ConfigSpec.model_validate({"modelled": MODELLED, **members})


def tuned(tmp_path: Path, text: str) -> TuningSpec:
    (tmp_path / "tuned.yaml").write_text(text)
    return load_tuning(tmp_path / "tuned.yaml").spec


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "sm_75", "sm_90"])
@pytest.mark.parametrize("launch", ["scale_rows", "third"])
@pytest.mark.parametrize("name", ["base", "new"])
def test_a_config_takes_its_place_and_nothing_else_changes(tmp_path: Path, arch: str, launch: str, name: str):
    written = config(name=name, blocks={"BLOCK": 64}, options={"llvm_fn_attrs": "a b: c, # d", "num_warps": 2},
                     when="cols > 16 and T != 'float32'" * (name == "new"))  # fmt: skip
    text = with_config(FILE, arch, launch, written, "schema.json")
    before, after = tuned(tmp_path, FILE), tuned(tmp_path, text)
    entries = {name: entry for entry in after.tuning for name in entry.arch}
    others = {name: entry for entry in before.tuning for name in entry.arch if name != arch}
    for other, entry in others.items():
        assert entries[other].model_copy(update={"arch": entry.arch}) == entry
    old = next((entry for entry in before.tuning if arch in entry.arch), None)
    configs = list(old.launches.get(launch, [])) if old else []
    places = [i for i, item in enumerate(configs) if item.name == name]
    expected = [written if i in places else item for i, item in enumerate(configs)] if places else [written, *configs]
    assert entries[arch].launches[launch] == expected and entries[arch].arch == [arch]
    assert all(part in text for part in ("# What is short.", "# The end.", "# two", "doc: Of rows."))
    assert with_config(text, arch, launch, written, "schema.json") == text
    assert all(len(line) <= 120 for line in text.splitlines())


def test_a_new_file(tmp_path: Path):
    text = with_config("", "gfx942", "scale_rows", config(name="base"), "schema.json")
    assert text.startswith("# yaml-language-server: $schema=schema.json\ntuning:\n  - arch: [gfx942]\n")
    (entry,) = tuned(tmp_path, text).tuning
    (written,) = entry.launches["scale_rows"]
    assert written == config(name="base") and entry.modelled and entry.modelled.by == "aotbuild tune"


def test_what_was_measured(tmp_path: Path):
    measured = 'measured: {device: H200, date: "2026-11-21", figure: Best.}'
    text = edit(FILE, ("{name: short, ", f"{{name: short, {measured}, "),
                ("{name: base, options: {num_warps: 8}}", "{name: base, modelled: {by: x}}, {name: late}"))  # fmt: skip
    tuned(tmp_path, text)
    tuning = load_tuning(tmp_path / "tuned.yaml")
    found = {
        (arch, name)
        for arch in ("gfx90a", "sm_90", "gfx950")
        for name in ("short", "base", "late")
        if is_measured(tuning, arch, "scale_rows", name)
    }
    assert found == {("gfx90a", "short"), ("sm_90", "late")}
