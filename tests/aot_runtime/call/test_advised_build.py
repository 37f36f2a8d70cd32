"""The build command in a call's error works as printed, and its bundle serves the call."""

from __future__ import annotations

import re
import shlex
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest

from aot_bundle.callspec import CallSpec, plan_call
from aot_runtime import open_bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.call.planner import op_planner
from aot_runtime.errors import NoVariantError

pytest.importorskip("triton", reason="building needs the extra `build`")

from tests.support.building.builds import Project
from tests.support.building.projects import SCALE
from tests.support.on_demand import key_of


def remedy(error: NoVariantError | Warning) -> tuple[list[str], str]:
    """Return the command that the error prints, and the calls file."""
    match = re.search(r"`(aotbuild [^`]*)`, with this in calls\.yaml:\n(.*)\Z", str(error), re.DOTALL)
    assert match, str(error)
    return shlex.split(match[1]), textwrap.dedent(match[2]) + "\n"


@pytest.mark.parametrize(
    ("working", "output", "command"),
    [
        (".", "dist", "aotbuild --arch gfx942 --for calls.yaml --add m.yaml"),
        (".", "out", "aotbuild --arch gfx942 --for calls.yaml --add -o out m.yaml"),
        ("dist", "dist", "aotbuild --arch gfx942 --for calls.yaml --add -o . ../m.yaml"),
    ],
)
def test_the_command_adds_to_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, working: str, output: str, command: str
):
    """The command runs as printed, with the entry in a file of its own. What was served before still is."""
    project = Project(tmp_path, SCALE)
    project.output = tmp_path / output
    project.build("--filter", "T=float16,BLOCK=32")
    folder = project.folder_of()
    before = read_index(folder)
    call = CallSpec(shapes={"x": (3, 16)}, dtypes={"T": "float32"}, scalars={"factor": "1"})
    monkeypatch.chdir(tmp_path / working)
    monkeypatch.setenv("AOTBUILD_CACHE_DIR", str(project.cache))
    with pytest.raises(NoVariantError) as raised:
        plan_call(before, op_planner(before, "scale", folder), call, None)
    words, text = remedy(raised.value)
    assert shlex.join(words) == command
    Path("calls.yaml").write_text(text)
    result = project.invoke(words[1:])
    assert result.exit_code == 0, result.output
    after = read_index(folder)
    assert plan_call(after, op_planner(after, "scale", folder), call, None).launches
    assert {key_of(variant) for variant in before.variants} < {key_of(variant) for variant in after.variants}
    assert len(after.variants) == len(before.variants) + 1


def test_a_call_beyond_a_recorded_bundle_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The bundle has general variants alone; what the warning prints adds the aligned ones, and ends it."""
    project = Project(tmp_path, SCALE)
    project.output = tmp_path / "dist"
    calls = tmp_path / "recorded.yaml"
    calls.write_text("calls: [{op: scale, shapes: {x: [3, 16]}, dtypes: {T: float32}, unaligned: [x]}]\n")
    project.build("--for", str(calls))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AOTBUILD_CACHE_DIR", str(project.cache))

    def called(cols: int) -> None:
        x = np.ones((3, cols), np.float32)
        np.testing.assert_array_equal(bundle.scale(x, factor=2.0), 2 * x)

    bundle = open_bundle(project.folder_of(), device="emulator")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        called(15)  # not aligned: nothing serves it better
    with pytest.warns(RuntimeWarning, match="lacks the faster variants") as told:
        called(16)
    words, text = remedy(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        called(8)
        Path("calls.yaml").write_text(text)
        result = project.invoke(words[1:])
        assert result.exit_code == 0, result.output
        bundle = open_bundle(project.folder_of(), device="emulator")
        called(16)
