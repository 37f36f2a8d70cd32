"""Command lines are found where they are shown, and nothing else is taken for one."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from .shown import Script, collect, files_of_pages, in_markdown, in_text

NAMES = {"aotbuild", "aotbundle", "aotbundle show", "aotbundle bench", "aotbundle bench memory"}


def lines_of(found) -> list[tuple[str, ...]]:
    return [lines for _, lines in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```sh\naotbuild a.yaml\n```\n", [("aotbuild a.yaml",)]),
        ("```bash\nmake it   # anywhere\n# a comment\n\naotbundle ls \\\n    dist\n```\n",
         [("make it", "aotbundle ls dist")]),
        ("```\naotbuild a.yaml\n```\n", []),
        ("```sh\naotbuild a\n```\nThen:\n\n<!-- continues -->\n```sh\naotbundle ls a\n```\n```sh\naotbuild b\n```\n",
         [("aotbuild a", "aotbundle ls a"), ("aotbuild b",)]),
        ("```python\nx = 'aotbuild a.yaml'\n```\n", []),
        ("```sh\n# nothing\n```\n", []),
        ("Run `aotbundle ls\ndist` now.", [("aotbundle ls dist",)]),
        ("`X=1 pytest tests -m gpu` is one", [("X=1 pytest tests -m gpu",)]),
        ("`aotbundle show` lists them", [("aotbundle show --help",)]),
        ("`aotbundle bench memory` measures", [("aotbundle bench memory --help",)]),
        ("`aotbuild --dry-run` counts", [("aotbuild --help | grep -e --dry-run",)]),
        ("`aotbundle shwo` is wrong", [("aotbundle shwo",)]),
        ("`aotbuild` and `python` and `--device emulator` are none", []),
    ],
)  # fmt: skip
def test_markdown(text: str, expected: list[tuple[str, ...]]):
    assert lines_of(in_markdown(text, NAMES)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A list.\n\nExamples:\n  aotbundle ls dist\n  aotbundle show a --op x \\\n      --json",
         [("aotbundle ls dist", "aotbundle show a --op x --json")]),
        ("One.\n\n    aotbuild m.yaml && python x.py dist/m     # slow\n\nMore.",
         [("aotbuild m.yaml && python x.py dist/m",)]),
        ("Rows. Build it with: aotbuild --arch gfx942 rows.yaml", [("aotbuild --arch gfx942 rows.yaml",)]),
        ("Rows. Build it with:\naotbuild --arch gfx942 rows.yaml\nThen more.", [("aotbuild --arch gfx942 rows.yaml",)]),
        ("Numbers: python examples/x.py FOLDER", [("python examples/x.py FOLDER",)]),
        ("`aotbundle bench memory`: how fast", [("aotbundle bench memory --help",)]),
        ("What it is:\naotbuild writes a folder for each, and\naotbundle reads them.", []),
        ("Args:\n    code: a name that is long, which\n        aotbundle show has", []),
    ],
)  # fmt: skip
def test_text(text: str, expected: list[tuple[str, ...]]):
    assert lines_of(in_text(text, NAMES)) == expected


def test_lines_are_counted():
    assert list(in_markdown("a\n\n```sh\npip install x\n```\n`aotbundle ls dist`\n", NAMES)) == [
        (4, ("pip install x",)),
        (6, ("aotbundle ls dist",)),
    ]
    assert list(in_text("a\n\n  aotbundle ls dist\n", NAMES)) == [(3, ("aotbundle ls dist",))]


@click.group(epilog="\b\nExamples:\n  tool sub a b")
def tool() -> None:
    """Works.

    \b
    Examples:
      aotbundle ls dist
    """


@tool.command()
def sub() -> None:
    """One part: aotbuild ./m.yaml"""


def test_everything_is_looked_through(tmp_path: Path):
    """Pages, help texts of commands and their subcommands, docstrings, and manifests' head comments; each once."""
    for name, text in {
        "README.md": "`aotbundle ls dist` and `tool sub`",
        "docs/a.md": "```sh\naotbundle ls dist\n```\n\n<!-- file: my/k.py -->\n```python\nx = 1\n```\n",
        "aot/deep/x.py": '"""Module: aotbuild ./x.yaml"""\n\n\ndef f():\n    """F.\n\n        python f.py\n    """\n',
        "manifests/m.yaml": "# Rows.\n# aotbuild --arch gfx942 manifests/m.yaml\nbundle: m\n# aotbuild ./no.yaml\n",
        "other.md": "`aotbundle ls elsewhere`",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert collect(tmp_path, {"tool": tool}) == [
        Script(("aotbundle ls dist",), ("README.md:1", "docs/a.md:2", "tool --help")),
        Script(("aotbuild ./m.yaml",), ("tool sub --help",)),
        Script(("aotbuild ./x.yaml",), ("aot/deep/x.py:1",)),
        Script(("python f.py",), ("aot/deep/x.py:7",)),
        Script(("aotbuild --arch gfx942 manifests/m.yaml",), ("manifests/m.yaml:2",)),
    ]
    assert files_of_pages(tmp_path) == {"my/k.py": "x = 1\n"}
