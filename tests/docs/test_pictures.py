"""The pictures of the documents: readable in both colour schemes, described in words, and of what there is."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from aot_runtime.contract import records
from tests.docs.scripts import ROOT
from tests.support.colours import contrast

PICTURES = sorted((ROOT / "docs/images").glob("*.svg"))
DRAWN_BY_HAND = [path for path in PICTURES if path.stem != "roofline"]
SVG = "{http://www.w3.org/2000/svg}"
SCHEMES = re.compile(r"^(.*?)@media \(prefers-color-scheme: dark\) \{(.*)\}", re.DOTALL)


def colours(style: str) -> dict[str, dict[str, str]]:
    """Selector → property → value."""
    rules = re.findall(r"([\w.# -]+?)\s*\{([^{}]*)\}", style)
    pairs = {name.strip(): re.findall(r"([\w-]+): (#\w{6})", body) for name, body in rules}
    return {name: dict(found) for name, found in pairs.items()}


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_used_and_described(path: Path):
    pages = {page: page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")}
    found = [
        (page, alt)
        for page, text in pages.items()
        for alt, target in re.findall(r"!\[([^]]*)\]\(([^)]+)\)", text)
        if (page.parent / target).resolve() == path
    ]
    assert found and all(len(alt.split()) > 10 for _, alt in found)
    assert ElementTree.parse(path).getroot().tag == f"{SVG}svg"


@pytest.mark.parametrize("path", DRAWN_BY_HAND, ids=lambda path: path.stem)
def test_text_is_legible_in_both_schemes(path: Path):
    root = ElementTree.parse(path).getroot()
    (style,) = (element.text or "" for element in root.iter(f"{SVG}style"))
    found = SCHEMES.search(style)
    assert found
    light = colours(found[1])
    dark = {name: light.get(name, {}) | changed for name, changed in colours(found[2]).items()}
    for scheme in (light, dark):
        grounds = [scheme[name]["fill"] for name in (".panel", ".box", ".step", ".row") if name in scheme]
        texts = [scheme[name]["fill"] for name in ("text", ".note")]
        assert min(contrast(text, ground) for text in texts for ground in grounds) >= 4.5
        assert contrast(scheme[".line"]["stroke"], scheme[".panel"]["fill"]) >= 3


def test_the_bundle_is_the_one_that_is_written(rows_bundle: Path):
    names = [
        element.text or ""
        for element in ElementTree.parse(ROOT / "docs/images/bundle.svg").iter(f"{SVG}text")
        if element.get("class") == "name"
    ]
    fields = {field for name in names if "/" not in name and "." not in name for field in name.split(", ")}
    assert fields <= set(records.Index.__struct_fields__)
    files = [name for name in names if "/" in name or "." in name]
    assert files and all(list(rows_bundle.glob(name)) for name in files)
    drawn = {name.partition("/")[0] for name in files}
    assert drawn == {path.name for path in rows_bundle.iterdir()}


def test_the_roofline_is_drawn_of_its_table():
    """The committed picture is what the script draws; without its library, that the labels are there."""
    committed = (ROOT / "docs/images/roofline.svg").read_text(encoding="utf-8")
    with (ROOT / "docs/images/roofline.csv").open(encoding="utf-8", newline="") as file:
        comments, lines = [], []
        for line in file:
            (comments if line.startswith("#") else lines).append(line)
    rows = list(csv.DictReader(lines))
    assert {row["kind"] for row in rows} == set(re.findall(r"^# (\w+): ", "".join(comments), re.MULTILINE)), "sources"
    assert all(f">{row['name']}<" in committed for row in rows if row["name"])
    assert committed.count("<use ") >= len(rows)
    pytest.importorskip("matplotlib", reason="drawing needs the extra `docs`")
    from docs.images.roofline import draw

    assert _numbers(draw()) == pytest.approx(_numbers(committed), abs=0.51)


def _numbers(svg: str) -> list[float]:
    places = re.findall(r"<use [^>]*?x=\"([\d.]+)\" y=\"([\d.]+)\"[^>]*style=\"fill: var\(--c[14]\)", svg)
    assert places
    return [float(number) for place in places for number in place]
