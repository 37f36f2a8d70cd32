"""The page of `aotbundle report` in a real browser."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aot_bundle.command.reporting.conftest import write_page
from tests.support.browser import Browser, chromium

INTERACTIVE_MS = 2000
FOCUSED = "const e = document.activeElement; return [e.tagName, e.textContent.trim().slice(0, 40), e.id]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def count(browser: Browser) -> str:
    return browser.run("return document.getElementById('count').textContent")


def choose(browser: Browser, label: str, value: str) -> None:
    browser.run(
        "const label = [...document.querySelectorAll('label')].find((l) => l.firstChild.data.trim() === arguments[0]);"
        "const select = label.querySelector('select'); select.value = arguments[1];"
        "select.dispatchEvent(new Event('change'))",
        label,
        value,
    )


def cells(browser: Browser, title: str) -> list[str]:
    """Return the rendered cells of a column."""
    return browser.run(
        "const table = document.getElementById('table');"
        "const at = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === arguments[0]);"
        "return [...table.tBodies[0].rows].map((row) => row.cells[at].textContent)",
        title,
    )


@pytest.mark.parametrize("width", [360, 1400])
def test_both_widths_and_schemes(browser: Browser, large_page: Path, width: int):
    grounds = set()
    for scheme in ("light", "dark"):
        browser.open(large_page, width, scheme)
        browser.run("document.querySelectorAll('details').forEach((e) => e.open = true)")
        assert browser.errors() == []
        assert browser.run("return document.documentElement.scrollWidth") <= width
        charts = browser.run("return [...document.querySelectorAll('svg')].map((e) => e.getBoundingClientRect().width)")
        assert len(charts) == 6 and all(250 < chart < width for chart in charts)
        sizes = browser.run(
            "return [...document.querySelectorAll('svg text')].map((e) => e.getBoundingClientRect().height)"
        )
        assert min(sizes) > 9, "the texts of charts can be read"
        colours = "const e = getComputedStyle(document.querySelector('svg text')); return [e.fill, "
        grounds.add(tuple(browser.run(colours + "getComputedStyle(document.body).backgroundColor]")))
    assert len(grounds) == 2, "ground and charts follow the scheme"


def test_it_is_soon_interactive(browser: Browser, large_page: Path):
    browser.open(large_page)
    done = "const t = performance.getEntriesByType('navigation')[0]; return t.domContentLoadedEventEnd"
    assert 0 < browser.run(done) < INTERACTIVE_MS
    assert count(browser) == "1706 of 1706 variants, the first 100 shown"
    assert browser.run("return document.getElementById('table').tBodies[0].rows.length") == 100


@pytest.mark.slow
def test_filters_and_the_count_that_is_announced(browser: Browser, large_page: Path):
    browser.open(large_page)
    assert (
        browser.run("const e = document.getElementById('count'); return e.ariaLive + ' ' + e.role") == "polite status"
    )
    choose(browser, "Op", "reduce")
    assert count(browser).startswith("1704 of 1706 variants")
    choose(browser, "WIDTH", "4096")
    choose(browser, "T", "bfloat16")
    choose(browser, "WEIGHTED", "True")
    assert count(browser) == "4 of 1706 variants" and set(cells(browser, "Variant")) == {"bfloat16 WEIGHTED WIDTH=4096"}
    browser.run("document.getElementById('spilling').click()")
    assert count(browser) == "2 of 1706 variants" and set(cells(browser, "Spills")) == {"17"}
    browser.run("document.getElementById('words').focus()")
    browser.press(*"GENERAL base")
    assert count(browser) == "1 of 1706 variants"
    browser.press(*" none")
    assert count(browser) == "0 of 1706 variants"
    choose(browser, "Op", "swap")
    assert browser.run("return document.getElementById('axes').children.length") == 0


@pytest.mark.slow
def test_no_filter_by_what_is_not_recorded(browser: Browser, rows_bundles: Path, large_page: Path, tmp_path: Path):
    shown = "return document.getElementById('spilling').checkVisibility()"
    browser.open(large_page)
    assert browser.run(shown)
    browser.open(write_page(rows_bundles / "rows-sm_90", tmp_path / "page.html"))
    assert not browser.run(shown) and set(cells(browser, "Spills")) == {"\u2013"}
    assert "These code objects do not record spills." in browser.run("return document.body.innerText")


@pytest.mark.slow
def test_sorting_and_more_rows(browser: Browser, large_page: Path):
    browser.open(large_page)
    heading = "[...document.querySelectorAll('thead button')].find((b) => b.textContent === 'VGPRs')"
    orders = []
    for _ in range(2):
        browser.run(f"{heading}.click()")
        orders.append(browser.run(f"return {heading}.parentElement.ariaSort"))
        orders.append([int(cell) for cell in cells(browser, "VGPRs")])
    assert orders == ["ascending", [32] * 100, "descending", [256] * 100]
    browser.run("document.getElementById('more').click()")
    assert count(browser) == "1706 of 1706 variants, the first 200 shown" and len(cells(browser, "Op")) == 200
    choose(browser, "Op", "swap")
    assert not browser.run("return document.getElementById('more').checkVisibility()")
    assert cells(browser, "VGPRs") == ["32", "32"] and browser.errors() == []


@pytest.mark.slow
def test_the_keyboard_reaches_everything(browser: Browser, large_page: Path):
    browser.open(large_page)
    browser.press("TAB")
    assert browser.run(FOCUSED)[1] == "Skip to the variants"
    outline = "const s = getComputedStyle(document.activeElement); return s.outlineStyle + ' ' + s.outlineWidth"
    assert browser.run(outline) == "solid 3px"
    assert browser.run("return document.activeElement.getBoundingClientRect().left") >= 0, (
        "it is seen where it has focus"
    )
    browser.press("ENTER", "TAB")
    assert browser.run(FOCUSED)[2] == "words"
    browser.press("TAB", "TAB", "TAB")
    assert browser.run("return document.activeElement.getAttribute('aria-label')") == "Table of variants"
    browser.press(*["TAB"] * 5)
    assert browser.run(FOCUSED)[:2] == ["BUTTON", "VGPRs"] and browser.run(outline) == "solid 3px"
    browser.press("ENTER")
    assert set(cells(browser, "VGPRs")) == {"32"}
    reached = browser.run(
        "return [...document.querySelectorAll('details summary, a, button, input, select, .wide, pre')]"
        ".filter((e) => e.tabIndex < 0).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert reached == []


NAMED = (
    "image",
    "region",
    "searchbox",
    "combobox",
    "checkbox",
    "button",
    "columnheader",
    "rowheader",
    "link",
    "heading",
)
WITHOUT_HEADINGS = (
    "return [...document.querySelectorAll('table')].filter((t) => !t.tHead.querySelector('th[scope=col]'))"
)


@pytest.mark.slow
def test_what_a_screen_reader_is_told(browser: Browser, forged_page: Path):
    browser.open(forged_page)
    browser.run("document.querySelectorAll('details').forEach((e) => e.open = true)")
    choose(browser, "Op", "swap")  # few rows: telling of each takes its time
    roles = browser.roles()
    names = {role: [name for found, name in roles if found == role] for role, _ in roles}
    assert len(names["main"]) == len(names["banner"]) == len(names["search"]) == 1
    assert names["navigation"] == ["Sections"]
    assert all(names[role] and all(names[role]) for role in NAMED)
    assert len(names["image"]) == 8
    assert browser.run(WITHOUT_HEADINGS) == []
    levels = browser.run("return [...document.querySelectorAll('h1,h2,h3')].map((e) => Number(e.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


@pytest.mark.slow
def test_forged_texts_do_nothing(browser: Browser, forged_page: Path):
    browser.open(forged_page)
    choose(browser, "Op", "reduce")
    assert browser.run("return window.forged === undefined && document.images.length === 0")
    assert browser.run("return document.scripts.length") == 2
    assert any("<img src=x" in cell for cell in cells(browser, "Limit"))
    assert browser.errors() == []


@pytest.mark.slow
def test_the_policy_stops_what_is_injected_nevertheless(browser: Browser, forged_page: Path, tmp_path: Path):
    """Even if escaping had a hole, the page's policy would let no script run and nothing be loaded."""
    page = tmp_path / "page.html"
    hole = "<main><script>window.forged = 1</script><img src='https://example.org/x.png' onerror='window.forged = 1'>"
    page.write_text(forged_page.read_text(encoding="utf-8").replace("<main>", hole), encoding="utf-8")
    browser.open(page)
    assert browser.run("return window.forged === undefined")
    said = browser.errors()
    assert sum("Content Security Policy" in line for line in said) >= 2 and len(said) == sum(
        "violates" in s for s in said
    )
