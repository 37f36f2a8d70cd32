"""comgr, with which HIP reads and disassembles code, agrees with the index on code objects of each architecture."""

from __future__ import annotations

import pytest

from tests.support.session_builds import build_once

from .comgr import judge
from .programs import PYTHON
from .session import inside

pytestmark = pytest.mark.on("rocm")


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1201"])
def test_it_agrees_with_the_index(arch: str, tmp_path_factory: pytest.TempPathFactory):
    folder = build_once(tmp_path_factory, "manifests/first.yaml", {arch: ""})
    verdict = judge(folder / f"first-{arch}", inside().python(executable=PYTHON))
    assert verdict.faults == () and verdict.code_objects and verdict.instructions
