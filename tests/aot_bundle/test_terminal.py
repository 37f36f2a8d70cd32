"""All output goes through one module, line by line, without control sequences."""

from __future__ import annotations

import ast
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from aot_bundle import terminal
from aot_bundle.command.failures import Told
from aot_bundle.text_table import MAX_CELL, table_lines
from aot_runtime.errors import AotError, NoVariantError
from aot_runtime.texts import escaped
from tests.support.sources import sources

ROOT = Path(__file__).parents[2]
PRINTERS = ("runtime/aot_runtime/terminal.py", "runtime/aot_bundle/terminal.py")
WARNS = "runtime/aot_runtime/call/refusal.py"
"""Warns of slow variants, with escaped text."""
OF_PROGRAMS = "aot_capture/"
"""Runs in the user's program, whose own names it prints, and imports nothing of ours."""
MAY_USE_RICH = "aot/progress.py"
"""Shows bars, which have no text of others."""
MAY_NAME_STREAMS = "aot/compile/settings.py"
"""Sends both streams elsewhere while a kernel is compiled."""
OF_CLICK = {"echo", "secho", "style", "echo_via_pager", "prompt", "confirm", "progressbar", "pause", "clear",
            "get_text_stream", "get_binary_stream"}  # fmt: skip
HOSTILE = "a\x1b]0;t\x07\x9b2J\r\n\u2028\u2029\x85\u202e\u2066\x7f\x00\udcff\u200bz"
HARMLESS = r"a\x1b]0;t\x07\x9b2J\r\n\u2028\u2029\x85\u202e\u2066\x7f\x00\udcff\u200bz"


def test_a_line_stays_one_and_shows_what_a_terminal_would_obey():
    assert escaped(HOSTILE) == HARMLESS and escaped(HARMLESS) == HARMLESS
    assert escaped("größer ≤ 日本 ' \\ \"") == "größer ≤ 日本 ' \\ \""


def test_everything_that_is_written(capsys: pytest.CaptureFixture[str]):
    terminal.write(HOSTILE, "b")
    terminal.write(HOSTILE, err=True)
    terminal.write_error("tool", HOSTILE, HOSTILE)
    terminal.write(*terminal.text_block(f"1\n{HOSTILE}\n", "  "))
    out, err = capsys.readouterr()
    first, second = HARMLESS.replace(r"\n", "\n  ").split("\n")
    assert out == f"{HARMLESS}\nb\n  1\n  {first}\n{second}\n"
    assert err == f"{HARMLESS}\ntool: error: {HARMLESS}\n  {HARMLESS}\n"


def test_json_is_ascii_and_comes_in_pieces(capsys: pytest.CaptureFixture[str]):
    data = {"text": HOSTILE, "list": [1, True, None, [], {}], HOSTILE: {"x": 0.5}}
    terminal.write_json({**data, "iterator": iter([float("nan"), float("inf"), -1.0])})
    text = capsys.readouterr().out
    assert text.isascii() and text.replace("\n", "").isprintable()
    assert json.loads(text) == {**data, "iterator": [None, None, -1.0]}
    assert "".join(terminal.json_pieces(data)) == json.dumps(data, indent=1)
    assert next(iter(terminal.json_pieces(iter(range(10**12))))) == "[\n "


def test_a_stream_that_cannot_encode(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    with (tmp_path / "out").open("w", encoding="ascii") as file:
        monkeypatch.setattr(sys, "stdout", file)
        terminal.write("größer")
    assert (tmp_path / "out").read_text() == "gr\\xf6\\xdfer\n"


def test_an_error_is_its_lines():
    error = AotError(f"no {HOSTILE}", "why")
    assert str(error) == f"no {HARMLESS}\n  why" and error.lines == (f"no {HOSTILE}", "why")
    refused = NoVariantError("none", explain=lambda: ((), (HOSTILE,)))
    assert str(refused) == f"none\n  {HARMLESS}"


def test_what_is_logged(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    root, mine = logging.getLogger(), logging.getLogger("aotbuild")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(mine, "level", mine.level)
    terminal.log_to_stderr("tool", logging.INFO)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logging.getLogger("aotbuild.build").exception("%s failed", HOSTILE)
    head, *trace = capsys.readouterr().err.splitlines()
    assert head == f"tool: {HARMLESS} failed" and all(line.startswith("  ") and line.isprintable() for line in trace)


def test_what_python_writes_by_itself(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    terminal.guard("tool")
    warnings.showwarning(UserWarning(HOSTILE), UserWarning, f"{HOSTILE}.py", 3)
    error = ValueError(HOSTILE)
    sys.excepthook(ValueError, error, None)
    lines = capsys.readouterr().err.split("\n")
    assert lines[0] == f"tool: {HARMLESS}.py:3: UserWarning: {HARMLESS}" and all(map(str.isprintable, lines))


def test_wrong_usage(capsys: pytest.CaptureFixture[str]):
    @click.command(cls=Told)
    @click.argument("path", type=click.Path(exists=True))
    def command(path: str) -> None:
        """A command."""

    with pytest.raises(SystemExit) as ended:
        command.main([HOSTILE.replace("\0", "")], "tool")
    assert ended.value.code == 2
    told = HARMLESS.replace(r"\x00", "")
    lines = capsys.readouterr().err.split("\n")
    assert lines[:2] == ["Usage: tool [OPTIONS] PATH", "Try 'tool --help' for help."] and all(
        map(str.isprintable, lines)
    )
    assert lines[3].startswith("Error: Invalid value for 'PATH'") and lines[4:] == [""] and r"\x1b]0;t\x07" in told


def test_a_long_cell_does_not_blow_up_the_others():
    rows = [("NAME", "N"), *((f"name{i}", str(i)) for i in range(1000)), ("x" * 100_000, HOSTILE)]
    lines = list(table_lines(rows))
    assert sum(map(len, lines)) < 1000 * (MAX_CELL + 8) and lines[-1] == f"{'x' * (MAX_CELL - 1)}…  {HARMLESS}"


def test_a_table_fits_its_terminal_where_a_column_may_be_wrapped():
    rows = [("NAME", "N"), ("  a name of several words", "5"), ("日本語", "60")]
    assert list(table_lines(rows, right=(1,), width=20)) == [
        "NAME               N", "  a name of        5", "several words", "日本語            60",
    ]  # fmt: skip


def test_nothing_else_prints():
    """A print of another module could show what a bundle says without escaping it."""
    paths = sorted(sources(ROOT))
    names = {path.relative_to(ROOT).as_posix(): path for path in paths}
    for printer in (*PRINTERS, WARNS):
        del names[printer]
    names = {name: path for name, path in names.items() if not name.startswith(OF_PROGRAMS)}
    assert [f"{name}:{fault}" for name, path in names.items() for fault in prints(path.read_text(), name)] == []


@pytest.mark.parametrize(
    "text",
    ["print(x)", "p = print", "click.echo(x)", "from click import secho", "sys.stderr.write(x)", "f(file=sys.stdout)",
     "os.write(2, x)", "traceback.print_exc()", "logging.basicConfig()", "logging.StreamHandler()", "sys.exit('x')",
     "raise SystemExit(f'{x}')", "import rich.console", "from rich.console import Console", "warnings.warn(x)",
     "from sys import stdout", "sys.__stderr__.write(x)", "from builtins import print", "pprint.pprint(x)",
     "error.show()"],
)  # fmt: skip
def test_a_print_is_found(text: str):
    assert list(prints(text, "aot/somewhere.py"))


def prints(text: str, module: str) -> Iterator[str]:
    """Return the lines of a module that may write to a terminal themselves, and what they call."""
    tree = ast.parse(text)
    asked = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("isatty", "flush")
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id="print"):
                found = "print"
            case ast.Attribute(value=ast.Name(id="click"), attr=name) if name in OF_CLICK:
                found = f"click.{name}"
            case ast.Attribute(value=ast.Name(id="sys"), attr=name) if name.strip("_") in ("stdout", "stderr"):
                found = "" if id(node) in asked or module == MAY_NAME_STREAMS else f"sys.{name}"
            case ast.Attribute(value=ast.Name(id="traceback"), attr=name) if name.startswith("print"):
                found = f"traceback.{name}"
            case ast.Attribute(
                value=ast.Name(id="logging"), attr="basicConfig" | "StreamHandler" | "lastResort" as name
            ):
                found = f"logging.{name}"
            case ast.Attribute(value=ast.Name(id="pprint")):
                found = "pprint"
            case ast.Call(func=ast.Attribute(attr="show"), args=[]) if (
                module != "runtime/aot_bundle/command/failures.py"
            ):
                found = "show() of click's exceptions"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="write"), args=[ast.Constant(), *_]):
                found = "os.write"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="warnings"), attr="warn"), args=[said, *_]):
                is_escaped = (
                    isinstance(said, ast.Call) and isinstance(said.func, ast.Name) and said.func.id == "escaped"
                )
                found = "" if is_escaped else "warnings.warn"
            case ast.Call(func=ast.Attribute(attr="exit") | ast.Name(id="SystemExit"), args=[said]):
                found = "exit with a text" if _is_text(said) else ""
            case ast.ImportFrom(module=source, names=names):
                told = {item.name for item in names} & (OF_CLICK | {"print", "stdout", "stderr", "pprint"})
                found = f"import of {told or source}" if told or _is_rich(source or "", module) else ""
            case ast.Import(names=names) if any(_is_rich(item.name, module) for item in names):
                found = "import of rich"
            case _:
                found = ""
        if found:
            yield f"{node.lineno}: {found}"


def _is_text(node: ast.expr) -> bool:
    return not isinstance(node, ast.Call) and any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.walk(node)
    )


def _is_rich(name: str, module: str) -> bool:
    return name.split(".")[0] == "rich" and module != MAY_USE_RICH
