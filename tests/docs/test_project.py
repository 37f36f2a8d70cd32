"""Changelog and metadata of the packages."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib

import pytest

import aot_runtime
from tests.docs.markdown import section, table
from tests.docs.scripts import ROOT
from tests.support.sources import sources

PROJECT, RUNTIME = (
    tomllib.loads((ROOT / file).read_text(encoding="utf-8"))["project"]
    for file in ("pyproject.toml", "runtime/pyproject.toml")
)
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_changelog_begins_with_the_version_of_the_package():
    entries = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (unreleased|\d{4}-\d{2}-\d{2})$", CHANGELOG, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^## ", CHANGELOG, re.MULTILINE)), "each entry has a version and a date"
    assert entries[0][0] == aot_runtime.__version__
    versions = [tuple(map(int, version.split("."))) for version, _ in entries]
    assert versions == sorted(versions, reverse=True) and "unreleased" not in [date for _, date in entries[1:]]


def test_the_version_has_one_place():
    """Only the runtime's `__init__.py` states it; the metadata of the packages are derived from that."""
    version = re.compile(rf"\b_?_?version_?_?\s*[=:]\s*[\"']?{re.escape(aot_runtime.__version__)}")
    files = [*sources(ROOT)]
    projects = (ROOT / "pyproject.toml", ROOT / "runtime/pyproject.toml")
    said = [path for path in (*files, *projects) if version.search(path.read_text(encoding="utf-8"))]
    assert said == [ROOT / "runtime/aot_runtime/__init__.py"]
    assert PROJECT["dynamic"] == RUNTIME["dynamic"] == ["version"]
    for distribution in ("aotbuild", "aot-runtime"):
        assert importlib.metadata.version(distribution) == aot_runtime.__version__
    assert f"aot-runtime=={aot_runtime.__version__}" in PROJECT["dependencies"]
    models = tomllib.loads((ROOT / "models/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert models["version"] == aot_runtime.__version__


@pytest.mark.parametrize(
    ("project", "folders"),
    [
        (".", ("aot", "aot_capture", "runtime/aot_bundle", "runtime/aot_emulator")),
        ("runtime", ("aot_runtime",)),
        ("models", ("aot_models",)),
    ],
)
def test_every_package_is_in_its_wheel(project: str, folders: tuple[str, ...]):
    text = (ROOT / project / "pyproject.toml").read_text(encoding="utf-8")
    listed = tomllib.loads(text)["tool"]["setuptools"]["packages"]
    roots = [ROOT / project / folder for folder in folders]
    found = {path.parent.relative_to(root.parent) for root in roots for path in root.rglob("__init__.py")}
    assert {".".join(path.parts) for path in found} == {name for name in listed if not name.startswith("aot.shipped.")}


def test_every_dependency_has_its_reason():
    """Dependencies here are those of people who only use aotbuild."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    told = {
        (name.strip(), extra.strip("`"))
        for names, extra, reason in table(section(page, "Dependencies"))
        for name in names.split(",")
        if reason
    }
    wanted = {
        (re.split(r"[^\w.-]", requirement)[0], extra)
        for project in (PROJECT, RUNTIME)
        for extra, requirements in {"": project["dependencies"], **project["optional-dependencies"]}.items()
        if extra not in ("docs", "dev")
        for requirement in requirements
        if not requirement.startswith(("aotbuild[", "aot-runtime", "numpy>=2"))
    }
    assert told == wanted
