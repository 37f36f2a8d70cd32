"""The same inputs give the same bytes, in whatever folder."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from aot_runtime.bundle.reading import read_index
from tests.support.building.builds import Project, contents, figures
from tests.support.building.projects import KERNELS, SCALE, edit

ROOT = Path(__file__).parents[2]
ARCHS = ("gfx942", "sm_90")
HELPED = edit(
    KERNELS,
    ("import triton.language as tl\n", "import triton.language as tl\n\nfrom helpers.math import twice\n"),
    ("(value * factor)", "twice(value * factor)"),
)
HELPER = "import triton\n\n\n@triton.jit\ndef twice(x):\n    return x + x\n"


def project_at(folder: Path) -> Project:
    project = Project(folder, SCALE, HELPED)
    (folder / "helpers").mkdir()
    (folder / "helpers" / "math.py").write_text(HELPER)
    return project


def test_the_same_manifest_in_two_folders_gives_the_same_bytes(tmp_path):
    """Different folders, caches, and numbers of workers, so a different order of compiling too."""
    first, second = project_at(tmp_path / "a"), project_at(tmp_path / "deeper" / "still" / "b")
    assert figures(first.build("--jobs", "1", archs=ARCHS)) == (16, 0)
    assert figures(second.build("--jobs", "3", archs=ARCHS[::-1])) == (16, 0)
    for arch in ARCHS:
        one, other = (contents(project.output / f"tiny-{arch}") for project in (first, second))
        assert one.keys() == other.keys() and {"bundle.json", "include/tiny.h", "stubs/tiny.pyi"} < one.keys()
        assert [name for name in one if one[name] != other[name]] == []
        assert not [name for name, content in one.items() if str(tmp_path).encode() in content]
        assert first.bundle(arch).id == second.bundle(arch).id
    assert first.bundle("gfx942").id != first.bundle("sm_90").id


def test_a_build_from_the_cache_gives_the_same_bytes(tmp_path):
    project = project_at(tmp_path / "a")
    project.build("--filter", "block=16")
    assert figures(project.build("--filter", "block=16", "-o", str(tmp_path / "again"))) == (0, 4)
    assert contents(tmp_path / "again" / "tiny-gfx942") == contents(project.output / "tiny-gfx942")


def test_a_cache_serves_every_folder(tmp_path):
    first, second = project_at(tmp_path / "a"), project_at(tmp_path / "b")
    first.build("--filter", "block=16")
    second.cache = first.cache
    assert figures(second.build("--filter", "block=16")) == (0, 4)


@pytest.mark.parametrize(
    "change",
    [
        ("k.py", "value * factor", "value - factor"),
        ("helpers/math.py", "x + x", "x * 3"),
        ("m.yaml", "num_warps: 1", "num_warps: 2"),
        ("m.yaml", "{shape: [rows, cols], dtype: T}\n", "{shape: [rows, cols], dtype: T, align: false}\n"),
    ],
)
def test_what_changes_the_code_is_compiled_again(tmp_path, change):
    file, old, new = change
    project = project_at(tmp_path / "a")
    project.build("--filter", "block=16,dtype=float16")
    before = project.bundle().id
    path = project.folder / file
    path.write_text(edit(path.read_text(), (old, new)))
    compiled, cached = figures(project.build("--filter", "block=16,dtype=float16"))
    assert compiled >= 1 and compiled + cached == 2
    assert project.bundle().id != before


def test_what_changes_the_contract_alone_is_not_compiled_again(tmp_path):
    project = project_at(tmp_path / "a")
    project.build("--filter", "block=16")
    before = project.bundle()
    project.manifest.write_text(edit(SCALE, ("    dtypes:", "    require: [rows > 2]\n    dtypes:")))
    assert figures(project.build("--filter", "block=16")) == (0, 4)
    assert project.bundle().id != before.id and project.bundle().blobs == before.blobs


def test_lines_for_profilers_are_named_from_the_root(tmp_path):
    first, second = project_at(tmp_path / "a"), project_at(tmp_path / "b")
    options = ("--filter", "block=16,dtype=float16", "--line-info")
    for project in (first, second):
        assert figures(project.build(*options)) == (2, 0)
    one = contents(first.output / "tiny-gfx942")
    assert one == contents(second.output / "tiny-gfx942")
    code = [content for name, content in one.items() if name.startswith("code/")]
    assert all(b"k.py" in content and str(tmp_path).encode() not in content for content in code)


def test_our_own_bundles_say_nothing_of_where_they_were_built(rows_bundles):
    for arch in ARCHS:
        folder = rows_bundles / f"rows-{arch}"
        read_index(folder)
        assert not [name for name, content in contents(folder).items() if str(ROOT).encode() in content]


@pytest.mark.slow
def test_the_wheel_is_small_and_has_our_two_packages_alone(tmp_path):
    """Needs the network, or setuptools >= 77 where `build` finds it."""
    pytest.importorskip("build")
    tree = tmp_path / "tree"
    skip = shutil.ignore_patterns("__pycache__", ".git", "*.egg-info", "build", "dist", "tests", ".*_cache")
    shutil.copytree(ROOT, tree, ignore=skip)
    subprocess.run([sys.executable, "-m", "build", "--wheel", "-o", tmp_path, tree], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size < 200_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"aot", "aot_runtime"}
    expected = {
        "aot/manifest/manifest.schema.json",
        "aot/manifest/tuning.schema.json",
        "aot/py.typed",
        "aot_runtime/py.typed",
        "aot/cli.py",
        "aot_runtime/device/drivers/hip.py",
    }
    assert expected <= set(names)
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "aot").rglob("*.py")}
    sources |= {path.relative_to(ROOT / "runtime").as_posix() for path in (ROOT / "runtime").rglob("*.py")}
    assert sources == {name for name in names if name.endswith(".py")}, "every module is in it"
