"""Hooks of MkDocs: generated pages, pages outside of docs/, links to files of the repository, and a check of what pages
load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from loads import foreign_loads
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pages import PAGES_OUTSIDE, command_page, schema_page
from repository import linked_files, site_links

ROOT = Path(__file__).parents[2]
log = get_plugin_logger("aotbuild")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages outside docs/, the generated ones, and the files that pages link to."""
    pages = {ROOT / "docs" / file.src_uri: file.src_uri for file in files.documentation_pages()}
    for name, content in _generated():
        files.append(File.generated(config, name, content=content))
    pages |= {ROOT / source: target for source, target in PAGES_OUTSIDE.items()}
    config.extra["pages"] = pages
    for path in linked_files(ROOT, pages):
        files.append(File.generated(config, f"files/{path.relative_to(ROOT)}", content=path.read_bytes()))
    return files


def _generated() -> Iterator[tuple[str, str]]:
    from aot.cli import main as aotbuild
    from aot_bundle.command.main import main as aotbundle

    for source, target in PAGES_OUTSIDE.items():
        yield target, (ROOT / source).read_text(encoding="utf-8")
    yield "reference/aotbuild.md", command_page("aotbuild", aotbuild)
    yield "reference/aotbundle.md", command_page("aotbundle", aotbundle)
    yield "reference/schema.md", schema_page(ROOT / "aot/manifest")
    for path in (ROOT / "aot/manifest").glob("*.schema.json"):
        yield f"reference/{path.name}", path.read_text(encoding="utf-8")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the repository's files become links of the site."""
    pages: dict[Path, str] = config.extra["pages"]
    source = next((path for path, target in pages.items() if target == page.file.src_uri), None)
    return site_links(markdown, source, page.file.src_uri, ROOT, pages) if source else markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Warn of addresses that pages load from other sites: the site must open without a network."""
    for fault in foreign_loads(Path(config.site_dir)):
        log.warning(fault)
