"""Messages about a GPU that Linux has and HIP does not show."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot_runtime.device.drivers.unseen import gpus_of_linux, why_unseen


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """Return the folder of a machine with a processor and two GPUs."""
    for number, version in enumerate((0, 90500, 110501)):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "properties").write_text(f"simd_count 8\ngfx_target_version {version}\n")
    return tmp_path


def test_linux_is_asked(nodes: Path):
    assert gpus_of_linux(nodes) == ["gfx950", "gfx1151"]
    assert gpus_of_linux(nodes / "nowhere") == []


def test_the_reason(nodes: Path, tmp_path: Path):
    old = why_unseen("hip", {}, nodes)
    assert old.startswith("; Linux shows gfx950, gfx1151: ")
    assert "install a newer ROCm" in old or "groups render and video" in old
    assert "HIP_VISIBLE_DEVICES=7 may hide it" in why_unseen("hip", {"HIP_VISIBLE_DEVICES": "7"}, nodes)
    assert why_unseen("cuda", {}, nodes) == why_unseen("hip", {}, nodes / "nowhere") == ""
