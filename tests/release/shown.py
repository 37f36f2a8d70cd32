"""Collects the command lines that documents, help texts, docstrings and manifests show."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

PAGES = (
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", ".github/*.md", "docs/**/*.md", "examples/**/*.md",
    "models/*.md", "dist/README.md",
)  # fmt: skip
MODULES = ("aot", "runtime", "models", "kernels", "examples", "benchmarks")
MANIFESTS = ("manifests/*.yaml", "examples/**/*.yaml", "benchmarks/**/*.yaml")
SHELLS = {"sh", "bash", "shell", "console"}

_PROGRAM = r"(?:[A-Z_]+=\S+ )*(?:aotbuild|aotbundle|python3?|pip|pytest|ruff|mypy|mkdocs|\.ci/run)"
_FENCED = re.compile(r"(?:^<!-- ([^\n]*?) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_COMMAND = re.compile(rf"{_PROGRAM} \S")
# In prose without a code span: only where an option or a path follows, for `aotbuild` begins sentences too.
_IN_PROSE = re.compile(rf"(?:^|: )({_PROGRAM} (?:-|[\w.]*[/.]\w).*)$", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    """Command lines that are shown together, and so are run one after the other; and where they are shown."""

    lines: tuple[str, ...]
    sources: tuple[str, ...]


def collect(root: Path, commands: Mapping[str, click.Command]) -> list[Script]:
    """Collect the commands shown below `root` and in the help of `commands`. A script shown twice is collected once."""
    names = {name for name, _ in _subcommands(commands)}
    sources: dict[tuple[str, ...], list[str]] = {}
    for where, lines in _everything(root, commands, names):
        sources.setdefault(lines, []).append(where)
    return [Script(lines, tuple(dict.fromkeys(found))) for lines, found in sources.items()]


def shipped_commands() -> dict[str, click.Command]:
    """Return the commands that the package installs, by name."""
    from aot.cli import main as aotbuild
    from aot_bundle.command.main import main as aotbundle

    return {"aotbuild": aotbuild, "aotbundle": aotbundle}


def files_of_pages(root: Path) -> dict[str, str]:
    """Return path → text of code blocks that a page marks as a file: `<!-- file: PATH -->` on the line before."""
    return {
        match[1].removeprefix("file: "): match[3]
        for path in _files(root, PAGES)
        for match in _FENCED.finditer(path.read_text(encoding="utf-8"))
        if (match[1] or "").startswith("file: ")
    }


def _everything(
    root: Path, commands: Mapping[str, click.Command], names: set[str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for path in _files(root, PAGES):
        for line, lines in in_markdown(path.read_text(encoding="utf-8"), names):
            yield f"{path.relative_to(root)}:{line}", lines
    for name, command in _subcommands(commands):
        for text in (command.help or "", command.epilog or ""):
            for _, lines in in_text(inspect.cleandoc(text.replace("\b", "")), names):
                yield f"{name} --help", lines
    for path in _files(root, [f"{folder}/**/*.py" for folder in MODULES]):
        for first, text in _docstrings(path):
            for line, lines in in_text(text.replace("\b", ""), names):
                yield f"{path.relative_to(root)}:{first + line - 1}", lines
    for path in _files(root, MANIFESTS):
        for line, lines in in_text(_head_comment(path.read_text(encoding="utf-8")), names):
            yield f"{path.relative_to(root)}:{line}", lines


def _files(root: Path, patterns: list[str] | tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(root.glob(pattern))


def _subcommands(commands: Mapping[str, click.Command]) -> Iterator[tuple[str, click.Command]]:
    for name, command in commands.items():
        yield name, command
        inner = getattr(command, "commands", {})
        yield from _subcommands({f"{name} {word}": subcommand for word, subcommand in inner.items()})


def _docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def _head_comment(text: str) -> str:
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:end])


def in_markdown(page: str, names: set[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Return (line, commands) of each fenced block of a shell, and of each code span that is a command line.

    A block with the comment `continues` before it goes on where the one before it ended.
    """
    blocks: list[tuple[int, list[str]]] = []
    for match in _FENCED.finditer(page):
        if match[2] in SHELLS and (lines := _joined(match[3].splitlines())):
            if match[1] == "continues" and blocks:
                blocks[-1][1].extend(lines)
            else:
                blocks.append((page.count("\n", 0, match.start(3)) + 1, lines))
    yield from ((line, tuple(lines)) for line, lines in blocks)
    yield from _spans(_FENCED.sub(_blank, page), names)


def in_text(text: str, names: set[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Return the same for a docstring, a help text or a comment: indented command lines, code spans, and ends of
    sentences.

    Indented lines are commands where the paragraph begins with one, or a line before ends with a colon.
    """
    lines = text.splitlines()
    block: list[str] = []
    for number, line in enumerate([*lines, ""], 1):
        before = lines[number - 2].rstrip() if number > 1 else ""
        continues = bool(block) and (block[-1].endswith("\\") or _is_indented_command(line))
        if continues or (_is_indented_command(line) and (not before or before.endswith(":"))):
            block.append(line)
        elif block:
            yield number - len(block), tuple(_joined(block))
            block = []
    yield from _spans(text, names)
    for match in _IN_PROSE.finditer(_SPAN.sub(_blank, text)):
        yield text.count("\n", 0, match.start(1)) + 1, (match[1].rstrip(),)


def _is_indented_command(line: str) -> bool:
    return line.startswith("  ") and _COMMAND.match(line.strip()) is not None


def _joined(lines: list[str]) -> list[str]:
    """Join commands with their continuation lines, without empty lines and comments."""
    text = re.sub(r" *\\\n *", " ", "\n".join(line.strip() for line in lines))
    return [without for line in text.splitlines() if (without := re.sub(r"(^|\s+)#.*$", "", line))]


def _spans(text: str, names: set[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for match in _SPAN.finditer(text):
        span = " ".join(match[1].split())
        if _COMMAND.match(span):
            yield text.count("\n", 0, match.start()) + 1, (_asked(span, names),)


def _asked(span: str, names: set[str]) -> str:
    """Return a command for a span without arguments: it names the command, or options that its help must list."""
    words = span.split()
    name = " ".join(word for word in words if not word.startswith("-"))
    if name not in names:
        return span
    options = [word for word in words if word.startswith("-")]
    return " && ".join(f"{name} --help | grep -e {option}" for option in options) or f"{name} --help"


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])
