"""Shipped manifests by their names, in a checkout and in an installation."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from aot.cli import SUBCOMMANDS
from aot.manifest import shipped
from aot.manifest.loading import load_manifest
from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import plan_bundle
from aot.targets import Target
from aot.write.provenance import make_provenance
from tests.support.building.builds import Project
from tests.support.building.projects import SCALE, check_fault, load

ROOT = Path(__file__).parents[3]
INPUTS = [*(ROOT / "kernels").rglob("*.py"), *(ROOT / "manifests").rglob("*.yaml")]
INCLUDE = "bundle: tiny\ninclude:\n  memory: {copy: {}}\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project's folder with an environment in it, where aotbuild is installed from its wheel."""
    package = tmp_path / "project/.venv/site-packages/aot"
    for name in ("kernels", "manifests"):
        shutil.copytree(ROOT / name, package / "shipped" / name)
    monkeypatch.setattr(shipped, "_PACKAGE", package)
    return tmp_path / "project"


def test_the_wheel_has_all_that_is_built_from():
    """Setuptools takes the files of the listed packages, but of its own accord only `.py`."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {path: ".".join(("aot.shipped", *path.relative_to(ROOT).parts[:-1])) for path in INPUTS}
    assert {name for name in found["packages"] if "shipped" in name} == {*packages.values()}
    manifests = {packages[path] for path in INPUTS if path.suffix == ".yaml"}
    assert {name: ["*.yaml"] for name in manifests}.items() <= found["package-data"].items()


def test_names_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file of exactly this name takes precedence. A folder does not, since many projects have one of that name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    assert shipped.shipped_root() == ROOT and not {*shipped.shipped_manifests()} & {*SUBCOMMANDS}
    assert load_manifest(Path("rows")).file.path == ROOT / "manifests/rows.yaml"
    load(tmp_path, SCALE)
    (tmp_path / "m.yaml").rename(tmp_path / "memory")
    assert load_manifest(Path("memory")).spec.bundle == "tiny"
    assert load_manifest(tmp_path / "memory").spec.bundle == "tiny"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("atention", "neither a file atention nor a shipped manifest 'atention' exists; did you mean 'attention'?"),
        ("a/rows.yaml", "manifest a/rows.yaml does not exist; the shipped manifest is named 'rows'"),
        ("rows.yml", "manifest rows.yml does not exist; the shipped manifest is named 'rows'"),
        ("own/rows", "manifest own/rows does not exist; the shipped manifest is named 'rows'"),
        ("mine.yaml", "mine.yaml: cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_manifests_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, said: str):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ManifestError) as caught:
        load_manifest(Path(given))
    assert caught.value.messages == (said,)


def test_manifests_of_users_include_shipped_ones_by_name(tmp_path: Path):
    (source,) = load(tmp_path, INCLUDE).sources
    assert (source.name, source.manifest.root) == ("copy", ROOT)
    text = "bundle: tiny\ninclude:\n  @memry: {copy: {}}\n"
    said = f"neither a file {tmp_path / 'memry'} nor a shipped manifest 'memry' exists; did you mean 'memory'?"
    check_fault(tmp_path, text, said, load)


def test_what_is_built_is_the_same_from_a_checkout_and_installed(installed: Path, monkeypatch: pytest.MonkeyPatch):
    """The cache's keys and the bundle's provenance are the same, also for a manifest that includes a shipped one."""
    load(installed, INCLUDE)

    def planned() -> list[tuple]:
        bundles = [plan_bundle(load_manifest(path), Target("gfx942"), {}, True) for path in (Path("memory"), including)]
        return [({*bundle.jobs}, make_provenance(bundle, ["triton 3.9.0"]), len(bundle.cases)) for bundle in bundles]

    including = installed / "m.yaml"
    here = planned()
    assert shipped.shipped_root().is_relative_to(installed)
    monkeypatch.setattr(shipped, "_PACKAGE", ROOT / "aot")
    assert planned() == here
    names = {item.name for item in here[1][1].build_definition.resolved_dependencies}
    assert {"manifests/memory.yaml", "kernels/memory/streams.py", "m.yaml"} <= names


def test_the_command_takes_names_and_lists_them(tmp_path: Path):
    listed = Project.invoke(["--list-manifests"]).stdout.splitlines()
    assert [line.split()[0] for line in listed] == [*shipped.shipped_manifests()]
    assert "Copying, reading and writing memory" in next(line for line in listed if line.startswith("memory "))
    result = Project.invoke(["--arch", "gfx942", "--dry-run", "-o", str(tmp_path), "memory"])
    assert result.exit_code == 0 and "memory-gfx942: 6 variants" in result.stdout, result.output


@pytest.mark.parametrize("text", ("bundle: tiny\nops: {}\n", "ops: {}\n"))
def test_a_manifest_without_doc_has_no_summary(tmp_path: Path, text: str):
    (tmp_path / "tiny.yaml").write_text(text)
    assert shipped.summary(tmp_path / "tiny.yaml") == ""
