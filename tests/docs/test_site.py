"""What docs/_site generates, rewrites and refuses while the site is built. CI builds the site itself."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from aot_bundle.command.main import main as aotbundle
from docs._site.loads import foreign_loads
from docs._site.pages import PAGES_OUTSIDE, command_page, schema_page
from docs._site.repository import linked_files, site_links
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


def test_the_page_of_the_schemas():
    page = schema_page(ROOT / "aot/manifest")
    tensor = {row[0].strip("`"): row[1:] for row in table(section(page, "Tensor"))}
    assert tensor["role"] == ["`input`, `output`, `inout`", '`"input"`'] and tensor["shape"][1] == "required"
    (ops,) = (row for row in table(section(page, "Manifests")) if row[0] == "`ops`")
    assert ops[1] == "name → Op"


def test_links_of_the_repository_become_links_of_the_site(tmp_path: Path):
    for name in ("README.md", "LICENSE", "docs/a.md", "docs/how/b.md", "docs/x.svg"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    pages = {tmp_path / "README.md": "index.md", tmp_path / "docs/a.md": "a.md", tmp_path / "docs/how/b.md": "how/b.md"}

    def rewritten(name: str, text: str) -> str:
        return site_links(text, tmp_path / name, pages[tmp_path / name], tmp_path, pages)

    assert rewritten("README.md", "[a](docs/a.md#x) `[a](docs/a.md)` [l](LICENSE) [w](https://x.y/docs/a.md)") == (
        "[a](a.md#x) `[a](docs/a.md)` [l](files/LICENSE) [w](https://x.y/docs/a.md)"
    )
    assert rewritten("docs/how/b.md", "[r](../../README.md)\n```\n[r](../../README.md)\n```\n![x](../x.svg)") == (
        "[r](../index.md)\n```\n[r](../../README.md)\n```\n![x](../x.svg)"
    )
    (tmp_path / "README.md").write_text("[a](docs/a.md), [l](LICENSE), [no](none)")
    assert linked_files(tmp_path, pages) == [tmp_path / "LICENSE"]


def test_pages_outside_are_there():
    assert all((ROOT / source).is_file() for source in PAGES_OUTSIDE)


@pytest.mark.parametrize(
    ("name", "text", "url"),
    [
        ("a.html", '<script src="https://cdn.example/x.js"></script>', "https://cdn.example/x.js"),
        ("a.html", '<link rel="stylesheet" href="//fonts.example/x">', "//fonts.example/x"),
        ("a.html", '<p><img src="http://example/x.png"></p>', "http://example/x.png"),
        ("a.css", "@import 'https://fonts.example/x.css';", "https://fonts.example/x.css"),
        ("a.svg", "<svg><style>p{background:url(https://e.x/y)}</style></svg>", "https://e.x/y"),
        ("a.html", '<a href="https://example.org">there</a><img src="x.png"><link rel="next" href="https://x">', None),
    ],
)
def test_what_is_loaded_from_elsewhere_is_found(tmp_path: Path, name: str, text: str, url: str | None):
    (tmp_path / name).write_text(text)
    assert list(foreign_loads(tmp_path)) == ([f"{name} would load {url}"] if url else [])


def test_the_menu_has_every_page_once():
    menu = re.findall(r"[ :]([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert written | set(PAGES_OUTSIDE.values()) <= set(menu) and len(menu) == len(set(menu))
