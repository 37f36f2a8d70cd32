"""What a stranger looks for first: changelog, metadata of the package, templates of issues and pull requests."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import aot_runtime
from tests.docs.markdown import section, table
from tests.docs.scripts import ROOT

PROJECT, RUNTIME = (
    tomllib.loads((ROOT / file).read_text(encoding="utf-8"))["project"]
    for file in ("pyproject.toml", "runtime/pyproject.toml")
)
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def test_the_changelog_begins_with_the_version_of_the_package():
    entries = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (unreleased|\d{4}-\d{2}-\d{2})$", CHANGELOG, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^## ", CHANGELOG, re.MULTILINE)), "each entry has a version and a date"
    assert entries[0][0] == aot_runtime.__version__
    versions = [tuple(map(int, version.split("."))) for version, _ in entries]
    assert versions == sorted(versions, reverse=True) and "unreleased" not in [date for _, date in entries[1:]]


def test_the_version_has_one_place():
    """Of the files that are shipped, the runtime's alone says it; the package's metadata are made of that."""
    version = re.compile(rf"\b_?_?version_?_?\s*[=:]\s*[\"']?{re.escape(aot_runtime.__version__)}")
    sources = [path for folder in ("aot", "runtime") for path in (ROOT / folder).rglob("*.py")]
    projects = (ROOT / "pyproject.toml", ROOT / "runtime/pyproject.toml")
    said = [path for path in (*sources, *projects) if version.search(path.read_text(encoding="utf-8"))]
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
        (".", ("aot", "runtime/aot_bundle", "runtime/aot_emulator")),
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


@pytest.mark.parametrize("project", [PROJECT, RUNTIME], ids=lambda project: project["name"])
def test_classifiers_say_what_the_other_keys_say(project: dict[str, Any]):
    given = project["classifiers"]
    pythons = [name.rpartition(" ")[2] for name in given if re.search(r":: 3\.\d+$", name)]
    assert project["requires-python"] == f">={pythons[0]}"
    assert not any(name.startswith("License ::") for name in given), "the license is an SPDX expression"
    assert len(given) == len(set(given)) and given == sorted(given, key=lambda name: name.split(" :: ")[0])


def test_every_dependency_has_its_reason():
    """Of what people install who only use aotbuild."""
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


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates_are_forms(path: Path):
    yaml = pytest.importorskip("ruamel.yaml", reason="reading YAML needs the extra `build`")
    form = yaml.YAML(typ="safe").load(path)
    if path.name == "config.yml":
        assert set(form) <= {"blank_issues_enabled", "contact_links"}
        return
    assert form["name"] and form["description"] and len(form["body"]) >= 2
    asked = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(asked) == len(set(asked)) and {field["type"] for field in form["body"]} <= {
        "markdown", "input", "textarea", "dropdown", "checkboxes",
    }  # fmt: skip
    for named in re.findall(r"\b((?:docs|aot|tests)/[\w./-]*\w)", path.read_text(encoding="utf-8")):
        assert (ROOT / named).exists(), named


def test_the_pull_request_template_runs_what_contributing_says():
    template = (ROOT / ".github/pull_request_template.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"`(ruff check .*)`", template)
    assert f"\n{command}\n" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
