"""The page of `aotbundle report` as text: its content, that it loads and runs nothing else, and refused inputs."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import statistics
import sys
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from aot_bundle.command.reporting.given import read_profiled
from aot_bundle.packing import merge_bundles
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract import records
from aot_runtime.contract.provenance import decode_provenance
from docs._site.loads import foreign_loads
from tests.aot_bundle.command.reporting.conftest import FORGED, profile_data, selftest_data, time_data, write_page
from tests.support.colours import contrast
from tests.support.command import aotbundle

SAME = {
    "Op": "op", "Config": "config", "VGPRs": "vgprs", "AGPRs": "agprs", "SGPRs": "sgprs", "Scratch": "scratch_bytes",
    "LDS": "lds_bytes", "Threads": "block_threads", "Waves": "waves_per_simd", "Limit": "occupancy_limit",
    "Code": "code_bytes", "Kernel": "symbol", "File": "file",
}  # fmt: skip
"""Heading of a column → key of `show --json`."""


class Elements(HTMLParser):
    """Every element of a page with its attributes, and the text of scripts and styles."""

    def __init__(self, page: Path):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.cdata_elem:
            self.texts[self.cdata_elem].append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]

    @property
    def data(self) -> dict:
        return json.loads(self.texts["script"][0])


def test_the_figures_are_those_of_show(sample: records.Index, large_page: Path):
    page = Elements(large_page)
    shown = json.loads(aotbundle("show", large_page.parent, "--json").output)["variants"]
    assert len(shown) == len(page.data["rows"]) > 1700
    at = {title: number for number, (title, _) in enumerate(page.data["columns"])}
    for title, key in SAME.items():
        assert [row[at[title]] for row in page.data["rows"]] == [variant[key] for variant in shown], title
    spills = [None if v["vgpr_spills"] is None else v["vgpr_spills"] + v["sgpr_spills"] for v in shown]
    assert [row[at["Spills"]] for row in page.data["rows"]] == spills and any(spills)
    assert page.data["axes"] == {"reduce": ["T", "WEIGHTED", "WIDTH"], "swap": []}
    text = large_page.read_text(encoding="utf-8")
    assert f"<strong>{sum(map(bool, spills))} of {len(shown)} variants spill registers.</strong>" in text
    assert "Weighted sum of each row." in text and "given(weight)" in text and "cols &gt; 1024 and not WEIGHTED" in text


def test_each_chart_has_a_name_and_a_table(large_page: Path):
    page = Elements(large_page)
    assert [svg["aria-label"] for svg in page.named("svg")] == [
        "Vector registers per lane", "Scalar registers per wave", "Spilled registers", "LDS per workgroup", "Occupancy",
        "Code size",
    ]  # fmt: skip
    assert all(svg["role"] == "img" for svg in page.named("svg"))
    labels = {region.get("aria-label") for region in page.named("div")}
    assert {f"{svg['aria-label']}, in numbers" for svg in page.named("svg")} <= labels
    text = large_page.read_text(encoding="utf-8")
    rows = [row for row in page.data["rows"] if row[0] == "reduce" and row[3] == "wide"]
    sizes = sorted(row[4] for row in rows)
    cells = [len(sizes), sizes[0], statistics.median_low(sizes), sizes[-1]]
    assert len({*sizes}) > 1
    (table,) = re.findall(r'aria-label="Vector registers per lane, in numbers">(.*?)</table>', text, re.DOTALL)
    found = re.search(r'<th scope="row">reduce, reduce_rows, wide</th>(.*?)</tr>', table, re.DOTALL)
    assert found and [int(cell) for cell in re.findall(r">([^<>]+)</td>", found[1])] == cells
    ids = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(ids) == len(set(ids)), "an id of a chart is that of another one"
    clips = re.findall(r"url\(#([^)]+)\)", text) + [use["href"].removeprefix("#") for use in page.named("use")]
    assert clips and set(clips) <= set(ids)


def test_differences_are_those_that_diff_tells(rows_bundles: Path, sample_folder: Path, tmp_path: Path):
    old, new = rows_bundles / "rows-sm_90", rows_bundles / "rows-gfx942"
    merge_bundles([old], tmp_path / "old.aotb")
    text = html.unescape(write_page(new, tmp_path / "page.html", "--against", tmp_path / "old.aotb").read_text("utf-8"))
    (found,) = json.loads(aotbundle("diff", old, new, "--json").stdout)["bundles"]
    section = text[text.index('<section id="differences"') : text.index('<section id="variants"')]
    assert f"for sm_90, id {found['old']['id'][:12]}." in section
    rows = [item for key in ("bundle", "toolchain", "provenance", "selftest") for item in found[key]]
    for item in (*rows, *found["ops"][0]["contract"]):
        assert f'<th scope="row" class="text">{item["what"]}</th>' in section, item
    assert all(f'class="text">{item["variant"]}</th>' in section for item in found["ops"][0]["changed"])
    assert f"{found['ops'][0]['old']} variants, now {found['ops'][0]['new']}" in section
    page = write_page(sample_folder, tmp_path / "page.html", "--against", sample_folder)
    assert "which is the same bundle" in page.read_text("utf-8")
    result = aotbundle("report", sample_folder, "-o", tmp_path / "page.html", "--against", rows_bundles)
    assert result.exit_code == 2 and "has no bundle of the name and architecture of" in result.stderr


def test_forged_texts_are_only_text(forged_page: Path):
    page = Elements(forged_page)
    tags = [tag for tag, _ in page.found]
    assert tags.count("script") == 2 and not {"img", "iframe", "object", "form", "base"} & set(tags)
    assert not any(name.startswith("on") for _, attributes in page.found for name in attributes)
    assert any(FORGED in row for row in page.data["rows"]), "the bundle's texts are in the table's data as they are"
    assert len(page.named("svg")) == 7 + 1, "the charts of the bundle, the roofline and the mix"


def test_the_policy_allows_the_own_style_and_script_alone(forged_page: Path, tmp_path: Path):
    page = Elements(forged_page)
    (policy,) = (meta["content"] for meta in page.named("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    digests = {
        kind: base64.b64encode(hashlib.sha256(page.texts[kind][-1].encode()).digest()).decode()
        for kind in ("style", "script")
    }
    rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
    assert rules == {
        "default-src": "'none'", "base-uri": "'none'", "form-action": "'none'",
        "style-src": f"'sha256-{digests['style']}'", "script-src": f"'sha256-{digests['script']}'",
    }  # fmt: skip
    assert len(page.texts["style"]) == 1 and not any("style" in attributes for _, attributes in page.found)
    (tmp_path / "page.html").write_text(forged_page.read_text(encoding="utf-8"), encoding="utf-8")
    assert not list(foreign_loads(tmp_path))


def test_the_same_bundle_gives_the_same_page(sample_folder: Path, tmp_path: Path):
    pages = [write_page(sample_folder, tmp_path / name).read_bytes() for name in ("one.html", "two.html")]
    assert pages[0] == pages[1] and [path.name for path in sorted(tmp_path.glob("*.html"))] == ["one.html", "two.html"]
    assert not list(tmp_path.glob(".*")), "what was written aside is gone"


def test_what_other_commands_print_is_read(rows_bundle: Path, tmp_path: Path):
    """The test reads the real reports of both commands, and the columns of the code."""
    files = {}
    for name, arguments in {
        "selftest": ("--device", "emulator"),
        "profile": ("softmax", "--shape=x=4,512", "--dtype=T=float16"),
    }.items():
        result = aotbundle(name, rows_bundle, *arguments, "--json")
        files[name] = tmp_path / f"{name}.json"
        files[name].write_text(result.stdout)
    options = [f"--{name}={path}" for name, path in files.items()]
    page = write_page(rows_bundle, tmp_path / "page.html", *options, "--code")
    text = page.read_text(encoding="utf-8")
    tested, profiled = (json.loads(path.read_text()) for path in files.values())
    assert (
        all(f'<th scope="row">{result["case"]}</th>' in text for result in tested["results"])
        and "all cases pass" in text
    )
    (launch,) = profiled["launches"]
    assert launch["memory_bytes"] == 2 * 4 * 512 * 2 and f'<td class="number">{launch["memory_bytes"]:,}</td>' in text
    assert all(f'<td class="number">{count:,}</td>' in text for count in launch["classes"].values())
    assert [title for title, _ in Elements(page).data["columns"]][-3:] == ["Loop", "Load bits", "Matrix"]
    provenance = decode_provenance(read_index(rows_bundle))
    assert provenance is not None and "<p>Signature: not signed.</p>" in text
    for item in provenance.build_definition.resolved_dependencies:
        assert all(f"<code>{digest}</code>" in text for digest in item.digest.values()) and item.name in text


def test_a_roofline_point_is_where_the_lower_bound_puts_it(sample: records.Index, tmp_path: Path):
    (tmp_path / "profile.json").write_text(json.dumps(profile_data(sample.id)))
    (launch,) = read_profiled(tmp_path / "profile.json", sample).launches
    assert (launch.intensity, launch.seconds, launch.highest_rate) == (20, 2e-6, 81920 / 2e-6)
    assert launch.in_roofline and launch.limit == "text" and launch.main_kind == "f16"


def test_modelled_times(sample_folder: Path, tmp_path: Path):
    (tmp_path / "time.json").write_text(json.dumps(time_data(read_index(sample_folder).id)))
    text = write_page(sample_folder, tmp_path / "page.html", "--time", tmp_path / "time.json").read_text("utf-8")
    for cell in ("5,000", "2", "2.0 µs", "1.5 TFLOP/s"):
        assert f'<td class="number">{cell}</td>' in text
    assert '<td class="text">matrix 75%, text 25%</td>' in text and "None of these times was measured" in text


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("selftest", {"id": "1" * 64}, "is about the bundle with id 111111111111; this one has id "),
        ("profile", {"id": "1" * 64}, "is about the bundle with id 111111111111; this one has id "),
        ("selftest", {"results": 3}, "is not what `aotbundle selftest --json` writes: Expected `array`, got `int`"),
        ("profile", {"launches": [{}]}, "is not what `aotbundle profile --json` writes: "),
        ("time", {"id": "1" * 64}, "is about the bundle with id 111111111111; this one has id "),
        ("time", {"launches": [{}]}, "is not what `aotbundle profile --time --json` writes: "),
        ("profile", None, "is not what `aotbundle profile --json` writes: "),
        ("selftest", "absent", "cannot be read: No such file or directory"),
        ("time", "a pipe", "is not a regular file"),
    ],
)
def test_files_that_are_about_something_else(
    sample_folder: Path, tmp_path: Path, name: str, change: object, message: str
):
    whole = {"selftest": selftest_data, "profile": profile_data, "time": time_data}[name](read_index(sample_folder).id)
    given = tmp_path / "given.json"
    if change == "a pipe":
        os.mkfifo(given)
    elif change != "absent":
        given.write_text(json.dumps({**whole, **change}) if isinstance(change, dict) else "{")
    result = aotbundle("report", sample_folder, "-o", tmp_path / "page.html", f"--{name}", given)
    assert result.exit_code == 2 and f"{given} {message}" in result.stderr
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_cannot_be_written(sample_folder: Path, tmp_path: Path):
    result = aotbundle("report", sample_folder, "-o", tmp_path / "none/page.html")
    assert result.exit_code == 1 and "page.html cannot be written: No such file or directory" in result.stderr


def test_without_the_extra(sample_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("aot_bundle.command.reporting.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    result = aotbundle("report", sample_folder, "-o", tmp_path / "page.html")
    assert result.exit_code == 2 and "pip install 'aotbuild[report]'" in result.stderr


def test_colours_are_legible_in_both_schemes():
    style = (resources.files("aot_bundle.command.reporting") / "page.css").read_text(encoding="utf-8")
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6})", body)) for body in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    )
    assert light.keys() == dark.keys() >= {"ink", "muted", "data", "other", "line", "ground", "panel"}
    for scheme in (light, dark):
        for ground in ("ground", "panel"):
            assert min(contrast(scheme[name], scheme[ground]) for name in ("ink", "muted", "data", "other")) >= 4.5
            assert contrast(scheme["line"], scheme[ground]) >= 3
