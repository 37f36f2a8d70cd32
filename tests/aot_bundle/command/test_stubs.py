"""`aotbundle stubs`: the package of types that it writes, and errors."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aot_bundle.stub import module_text, stub_text
from aot_runtime.bundle.reading import read_index
from tests.support.command import aotbundle
from tests.support.forging import edit_index


def test_a_module_for_each_bundle(small_bundle: Path, rows_bundles: Path, tmp_path: Path):
    """Existing modules stay. If a bundle has two architectures, the first is used."""
    package = tmp_path / "types/aot_bundles"
    for bundles, name in ((small_bundle, "small"), (rows_bundles, "rows")):
        result = aotbundle("stubs", bundles, "-o", tmp_path / "types")
        assert result.exit_code == 0 and result.stdout == f"{package / name}.py\n", result.output
    files = {"__init__.py", "py.typed", "rows.py", "rows.pyi", "small.py", "small.pyi"}
    assert {path.name for path in package.iterdir()} == files
    for name, index in (("rows", read_index(rows_bundles / "rows-gfx942")), ("small", read_index(small_bundle))):
        assert (package / f"{name}.pyi").read_text() == stub_text(index)
        assert (package / f"{name}.py").read_text() == module_text(index)
        ast.parse(stub_text(index))


def test_installed_for_this_python(small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / name))
    result = aotbundle("stubs", small_bundle, "--install")
    assert result.exit_code == 0 and result.stdout == f"{tmp_path}/purelib/aot_bundles/small.py\n"


def test_importing_a_type_imports_nothing_else(small_bundle: Path, tmp_path: Path):
    """Programs import the type before they open a bundle, so this should be quick."""
    assert aotbundle("stubs", small_bundle, "-o", tmp_path).exit_code == 0
    code = "import sys; before = {*sys.modules}; from aot_bundles.small import Small; print(*{*sys.modules} - before)"
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert set(printed.split()) == {"aot_bundles", "aot_bundles.small"}


def test_two_bundles_of_one_name_that_differ(rows_bundles: Path, tmp_path: Path):
    for folder in rows_bundles.iterdir():
        if folder.is_dir():
            shutil.copytree(folder, tmp_path / "dist" / folder.name)
    edit_index(tmp_path / "dist/rows-sm_90", lambda index: index["ops"][0]["scalars"][0].pop("default"))
    result = aotbundle("stubs", tmp_path / "dist", "-o", tmp_path)
    assert result.exit_code == 1 and "are both named 'rows', but their ops differ" in result.stderr
    assert not (tmp_path / "aot_bundles").exists()


def test_where_the_package_goes_has_to_be_said(small_bundle: Path, tmp_path: Path):
    for options in ((), ("--install", "-o", tmp_path)):
        result = aotbundle("stubs", small_bundle, *options)
        assert result.exit_code == 2 and "either --output FOLDER or --install" in result.stderr
    (tmp_path / "file").write_text("")
    result = aotbundle("stubs", small_bundle, "-o", tmp_path / "file")
    assert (
        result.exit_code == 1 and result.stderr.startswith("aotbundle: error: ") and "file/aot_bundles" in result.stderr
    )


def test_nothing_is_written_through_links(small_bundle: Path, tmp_path: Path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "outside").mkdir()
    (tmp_path / "types/aot_bundles").mkdir(parents=True)
    (tmp_path / "types/aot_bundles/small.pyi").symlink_to(tmp_path / "precious")
    result = aotbundle("stubs", small_bundle, "-o", tmp_path / "types")
    assert result.exit_code == 0 and (tmp_path / "precious").read_text() == "precious", result.output
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/aot_bundles").symlink_to(tmp_path / "outside")
    result = aotbundle("stubs", small_bundle, "-o", tmp_path / "linked")
    assert result.exit_code == 1 and "linked/aot_bundles: a symbolic link is in its place" in result.stderr
    assert list((tmp_path / "outside").iterdir()) == []
