"""docs/calls.md lists all keys, and `aotbuild --for` accepts its example."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docs.markdown import blocks, section, table
from tests.docs.scripts import ROOT

pytest.importorskip("triton", reason="calls files need the extra `build`")

from aot.manifest.calls import CallEntrySpec, check_entries, entries, load_calls
from aot.manifest.loading import load_manifest

PAGE = (ROOT / "docs/calls.md").read_text(encoding="utf-8")


def test_the_keys():
    rows = {key.strip("`"): default for key, _, default, _ in table(section(PAGE, "Keys"))}
    fields = CallEntrySpec.model_fields
    wanted = {
        name: "required" if item.is_required() else f"`{json.dumps(item.default)}`" for name, item in fields.items()
    }
    assert rows == wanted and list(rows) == list(wanted)


def test_the_program_prints_what_the_page_says(
    rows_bundles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("tinygrad", reason="the emulator needs the extra `emulator`")
    (tmp_path / "dist").symlink_to(rows_bundles)
    monkeypatch.chdir(tmp_path)
    (program,) = blocks(PAGE, "python")
    exec(compile(program.text, "docs/calls.md", "exec"), {})
    assert [f"# {line}" for line in capsys.readouterr().out.splitlines()] == re.findall(r"# .*$", program.text, re.M)


def test_the_example_is_of_the_manifest_that_it_names(tmp_path: Path):
    (example,) = blocks(PAGE, "yaml")
    (tmp_path / "calls.yaml").write_text(example.text)
    found = entries([load_calls(tmp_path / "calls.yaml")])
    assert len(found) == 2
    check_entries(found, [load_manifest(ROOT / "manifests/rows.yaml")])
