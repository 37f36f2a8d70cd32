"""The shipped packages suffice for everything from building to calling, without a checkout."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from .check import CHECKOUT
from .packages import make_release, packages
from .setting import Setting


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_from_an_empty_environment_to_a_result(tmp_path: Path):
    assert packages(Setting(CHECKOUT, tmp_path, 2, tmp_path / "cache")).failures == []


@pytest.mark.slow
def test_the_wheel_has_what_is_shipped_and_its_source_distribution_makes_it(tmp_path: Path):
    wheel = make_release(Setting(CHECKOUT, tmp_path, 1, tmp_path / "cache"), tmp_path)
    with zipfile.ZipFile(wheel) as file:
        contents = {name: file.read(name) for name in file.namelist()}
    wanted = [*(CHECKOUT / "kernels").rglob("*.py"), *(CHECKOUT / "manifests").rglob("*.yaml")]
    shipped = {f"aot/shipped/{path.relative_to(CHECKOUT).as_posix()}": path.read_bytes() for path in wanted}
    assert {name: data for name, data in contents.items() if name.startswith("aot/shipped/")} == shipped
    assert {name.partition("/")[0] for name in contents if "dist-info" not in name} == {
        "aot", "aot_runtime", "aot_emulator",
    }  # fmt: skip
    assert {path.suffix for path in (tmp_path / "release").iterdir()} == {".gz", ".whl"}
