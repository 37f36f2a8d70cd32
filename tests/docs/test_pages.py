"""The other pages: their code runs, and their tables are complete."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import aot_runtime
from aot_bundle.command.main import main as aotbundle
from aot_runtime import errors
from aot_runtime.bundle.reading import read_index
from aot_runtime.call.op import MAX_PLANS
from aot_runtime.contract import index_file, records
from aot_runtime.device.memory import KEPT_BLOCK, KEPT_TOTAL
from tests.docs.markdown import blocks, section, table
from tests.docs.scripts import ROOT, run_blocks
from tests.release.shown import PAGES as PATTERNS
from tests.support.hip_double.double import DoubleLibrary
from tests.support.sources import sources

PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for pattern in PATTERNS
    for path in sorted(ROOT.glob(pattern))
}
BUNDLE, RUNTIME = PAGES["docs/bundle.md"], PAGES["docs/runtime.md"]
NAMED = (*vars(records).values(), *vars(index_file).values())
RECORDS = dict.fromkeys(item for item in NAMED if isinstance(item, type) and issubclass(item, records.Record))


@pytest.mark.parametrize(
    "record", [item for item in RECORDS if item is not records.Record], ids=lambda item: item.__name__
)
def test_fields_of_the_index(record: type[msgspec.Struct]):
    cells = [row[0] for row in table(section(BUNDLE, record.__name__))]
    documented = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(documented) == sorted(record.__struct_fields__)


def test_format_version():
    assert f"`format` is the version of the index, {index_file.FORMAT_VERSION}." in BUNDLE


def test_files_of_a_bundle(rows_bundle: Path):
    written = {path.relative_to(rows_bundle).parts[0] for path in rows_bundle.rglob("*")}
    (listing,) = (block.text for block in blocks(BUNDLE, "") if block.text.startswith("dist/"))
    assert {line.split()[0].split("/")[0] for line in listing.splitlines()[1:]} == written
    assert all(len(path.stem) == 16 for path in (rows_bundle / "code").iterdir())
    assert read_index(rows_bundle).name == "rows"


def test_python_of_the_runtime_page(hip_double: DoubleLibrary, rows_bundle: Path, tmp_path: Path):
    (tmp_path / "dist").symlink_to(rows_bundle.parent)
    (command,) = (block.text.split() for block in blocks(section(RUNTIME, "Types"), "sh"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert CliRunner().invoke(aotbundle, command[1:]).exit_code == 0
    source = "\n".join(["import sys; sys.path.append('types')", *(block.text for block in blocks(RUNTIME, "python"))])
    output = hip_double.run(run_blocks, str(rows_bundle), str(tmp_path), source)
    assert output.startswith("softmax on gfx942")


def test_errors_are_listed():
    rows = [row[0].strip("`") for row in table(section(RUNTIME, "Errors"))]
    assert set(rows) == set(aot_runtime.__all__) & set(vars(errors)) - {"AotError"}
    for name, meaning in ((row[0].strip("`"), row[1]) for row in table(section(RUNTIME, "Errors"))):
        for base in re.findall(r"\ban? `(\w+)`", meaning):
            assert base in [item.__name__ for item in getattr(errors, name).__mro__]


def test_commands_are_listed():
    rows = [row[0].strip("`") for row in table(section(RUNTIME, "Commands"))]
    assert sorted(rows) == sorted(f"aotbundle {name}" for name in aotbundle.commands)


def test_numbers():
    memory = section(RUNTIME, "Memory")
    assert f"up to {KEPT_BLOCK >> 20} MiB" in memory and f"{KEPT_TOTAL >> 20} MiB" in memory
    assert f"keeps {MAX_PLANS} plans" in RUNTIME


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", PAGES[name]):
        file, _, anchor = target.partition("#")
        path = (ROOT / name).parent / file if file else ROOT / name
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}, target


@pytest.mark.parametrize("name", PAGES)
def test_named_files_are_there(name: str):
    """Code spans that are paths name files of this repository."""
    for path in re.findall(
        r"`((?:aot|runtime|models|kernels|manifests|examples|benchmarks|docs|tests)/[\w./*-]*)`", PAGES[name]
    ):
        assert list(ROOT.glob(path.rstrip("/"))), path


def test_every_name_of_the_architecture_page_is_defined():
    """Each code span that is an identifier names a definition, a folder or a word of the page's own subject."""
    page = re.sub(r"```.*?```", "", PAGES["docs/architecture.md"], flags=re.DOTALL)
    names = set(re.findall(r"`(\w+)`", page)) - {"exclude", "explain", "linecache", "verify"}
    files = [*sources(ROOT)]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    defined = set(re.findall(r"^(?:class |def )?([A-Za-z_]\w*)\b", text, re.MULTILINE))
    folders = {path.name for path in (*ROOT.iterdir(), *(ROOT / "runtime").rglob("*")) if path.is_dir()}
    projects = [ROOT / "pyproject.toml", ROOT / "runtime/pyproject.toml"]
    texts = [path.read_text(encoding="utf-8") for path in projects]
    extras = {extra for text in texts for extra in tomllib.loads(text)["project"]["optional-dependencies"]}
    assert names - defined - folders - extras == {"aotbuild", "aotbundle"}


def test_profiling_on_the_emulator(rows_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The command and the program of docs/emulator.md count the same."""
    counters = section(PAGES["docs/emulator.md"], "Counters and `aotbundle profile`")
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist/rows-gfx942").symlink_to(rows_bundle)
    (command,), (program,) = ([block.text for block in blocks(counters, kind)] for kind in ("sh", "python"))
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(aotbundle, command.split()[1:], catch_exceptions=False)
    assert shown.exit_code == 0 and "softmax_rows" in shown.stdout, shown.output
    titles = [row[0] for row in table(counters)]
    assert [title for title in titles if f"\n  {title}" not in shown.stdout] == ["matrix instructions", "loops"]
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines()[1] == "[] (2048, 2048)"
