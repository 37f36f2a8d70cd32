"""The shipped packages suffice for everything from building to calling, without a checkout."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from .check import CHECKOUT
from .packages import make_release, packages
from .setting import Setting

MAX_RUNTIME_BYTES = 250_000


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_from_an_empty_environment_to_a_result(tmp_path: Path):
    assert packages(Setting(CHECKOUT, tmp_path, 2, tmp_path / "cache")).failures == []


@pytest.mark.slow
def test_the_wheels_have_what_is_shipped(tmp_path: Path):
    """Each wheel is made of its source distribution, and the runtime's is small."""
    wheels = make_release(Setting(CHECKOUT, tmp_path, 1, tmp_path / "cache"), tmp_path)
    contents = {}
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as file:
            contents[name] = {item: file.read(item) for item in file.namelist()}
    folders = {
        name: {item.partition("/")[0] for item in files if "dist-info" not in item} for name, files in contents.items()
    }
    assert folders == {
        "aot_runtime": {"aot_runtime"},
        "aot_models": {"aot_models"},
        "aotbuild": {"aot", "aot_bundle", "aot_capture", "aot_emulator"},
    }
    assert wheels["aot_runtime"].stat().st_size <= MAX_RUNTIME_BYTES
    wanted = [*(CHECKOUT / "kernels").rglob("*.py"), *(CHECKOUT / "manifests").rglob("*.yaml")]
    shipped = {f"aot/shipped/{path.relative_to(CHECKOUT).as_posix()}": path.read_bytes() for path in wanted}
    assert {name: data for name, data in contents["aotbuild"].items() if name.startswith("aot/shipped/")} == shipped
    assert {path.suffix for path in (tmp_path / "release").iterdir()} == {".gz", ".whl"}
