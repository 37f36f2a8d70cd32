"""Pages that docs/_site generates. CI builds the site itself."""

from __future__ import annotations

import re

import click
import pytest

from aot_bundle.command.main import main as aotbundle
from docs._site.pages import PAGES_OUTSIDE, command_page
from tests.docs.markdown import blocks, section, table
from tests.docs.scripts import ROOT


def test_a_page_of_a_command_has_its_options_and_its_examples():
    page = command_page("aotbundle", aotbundle)
    for name, command in aotbundle.commands.items():
        text = page[page.index(f"\n## aotbundle {name}\n") :]
        flags = [flag for option in command.params if isinstance(option, click.Option) for flag in option.opts]
        assert all(flag in text for flag in (*flags, "-h, --help"))
    assert "### aotbundle bench memory\n" in page
    assert "aotbundle explain dist/rows-gfx942 softmax --dim rows=8" in "".join(b.text for b in blocks(page, "sh"))
    assert all(len(row) == 2 for row in table(section(page, "aotbundle profile"))), "a bar of a metavar is escaped"


def test_the_page_of_the_builder():
    pytest.importorskip("triton", reason="the builder needs the extra `build`")
    from aot.cli import main

    page = command_page("aotbuild", main)
    assert "[default: dist]" in page.replace("\\", "") and "&lt;bundle>-&lt;arch>" in page
    assert "aotbuild --arch gfx942 --dry-run manifests/" in blocks(page, "sh")[0].text
    assert "\n## aotbuild cache\n" in page and "### aotbuild cache prune" in page


def test_pages_outside_are_there():
    assert all((ROOT / source).is_file() for source in PAGES_OUTSIDE)


def test_the_menu_has_every_page_once():
    menu = re.findall(r"[ :]([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert written | set(PAGES_OUTSIDE.values()) <= set(menu) and len(menu) == len(set(menu))
