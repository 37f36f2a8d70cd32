"""docs/start.md and docs/howto: their files build, and their code runs on the emulator and prints the shown output."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from aot_bundle.command.main import main as aotbundle
from tests.docs.markdown import Block, blocks
from tests.docs.scripts import ROOT
from tests.release.shown import files_of_pages
from tests.support.session_builds import build_here, session_cache

PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "docs/start.md", *sorted((ROOT / "docs/howto").glob("*.md")))
}
DOCKERFILE = (ROOT / "examples/container/Dockerfile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, rows_bundles: Path, foreign_bundle: Path) -> Path:
    """Return a reader's folder: the files that the pages show, and the bundles that their commands build."""
    folder = tmp_path_factory.mktemp("reader")
    for name, text in files_of_pages(ROOT).items():
        if name.startswith("hello/"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    cache = session_cache()
    command = ["--arch", "gfx942", str(folder / "hello/manifest.yaml"), "--cache-dir", str(cache)]
    result = build_here([*command, "-o", str(folder / "dist")])
    assert result.exit_code == 0, result.output
    (folder / "dist/rows").symlink_to(rows_bundles)
    (folder / "dist/rows-gfx942").symlink_to(rows_bundles / "rows-gfx942")
    (folder / "dist/foreign-gfx942").symlink_to(foreign_bundle)
    return folder


def programs(page: str) -> list[Block]:
    return [block for block in blocks(page, "python") if not block.comment.startswith("file: ")]


def test_every_program_prints_what_its_page_says(folder: Path):
    """All pages run in one process, each with its own names. A comment behind a `print` is what it prints."""
    script = []
    for name, page in PAGES.items():
        text = "\n".join(block.text for block in programs(page))
        script.append(f"print('page', {name!r})\nexec(compile({text!r}, {name!r}, 'exec'), {{}})")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "runtime")))}
    process = subprocess.run(
        [sys.executable, "-c", "\n".join(script)], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    printed = process.stdout.splitlines()
    expected = re.findall(r"print\(.*\)  # (.*)$", "\n".join(b.text for p in PAGES.values() for b in programs(p)), re.M)
    assert len(expected) >= 2 and set(expected) <= set(printed)


def test_the_first_bundle_checks_itself(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    commands = [line for block in blocks(PAGES["docs/start.md"], "sh") for line in block.text.splitlines()]
    (selftest,) = (shlex.split(line)[1:] for line in commands if " selftest " in line)
    result = CliRunner().invoke(aotbundle, selftest, catch_exceptions=False)
    assert result.exit_code == 0 and result.output.count("\nok ") == 2, result.output
    assert " aligned" in result.output and " general" in result.output, "the page says that both variants are tested"


def instructions() -> list[tuple[str, str]]:
    """Return (instruction, the rest of its line) of the Dockerfile without comments; continued lines are one."""
    text = re.sub(r"^#.*\n", "", re.sub(r"\\\n", " ", DOCKERFILE), flags=re.MULTILINE)
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line.strip()]


def test_the_image_has_what_the_page_builds_and_no_compiler():
    """No container engine is at hand, so only its instructions are checked: what they copy and run is there, or made by
    the page's commands."""
    found = instructions()
    names = [name for name, _ in found]
    assert set(names) <= {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "CMD"} and names.count("FROM") == 1
    variables = dict(text.partition("=")[::2] for name, text in found if name == "ARG")
    (base,) = (text for name, text in found if name == "FROM")
    assert base == "python:${PYTHON}-slim" and [int(n) for n in variables["PYTHON"].split(".")] >= [3, 11]
    made = "\n".join(block.text for block in blocks(PAGES["docs/howto/deploy.md"], "sh"))
    bundle = variables["BUNDLE"].strip('"')
    for source in (text.split()[0].replace("${BUNDLE}", bundle) for name, text in found if name == "COPY"):
        folder = source.rpartition("/")[0] if "*" in source else source
        assert (ROOT / source).is_file() or f"--wheel-dir {folder} " in made or f"verify {folder}\n" in made, source
    assert f"manifests/{bundle.rpartition('-')[0]}.yaml" in made and f"--arch {bundle.rpartition('-')[2]}" in made
    assert variables["EXTRAS"] == "" and "cuda" in metadata.metadata("aot-runtime").get_all("Provides-Extra")
    scripts = {script.name for script in metadata.entry_points(group="console_scripts")}
    for text in (text for name, text in found if name == "RUN"):
        for part in re.split(r"&&|;", text):
            (program, *words) = part.split()
            assert program in {"apt-get", "pip", "rm", "useradd"} | scripts, part
            assert not {"gcc", "g++", "clang", "build-essential", "triton"} & set(words)
    (command,) = (text for name, text in found if name == "CMD")
    copied = {f"{text.split()[1]}{Path(text.split()[0]).name}" for name, text in found if name == "COPY"}
    assert set(re.findall(r"/opt/app/\S+\.py", command)) <= copied
    assert names[-2:] == ["USER", "CMD"], "the program is not root"


def test_the_page_names_the_dockerfile():
    commands = " ".join(block.text for block in blocks(PAGES["docs/howto/deploy.md"], "sh"))
    assert "docker build --file examples/container/Dockerfile" in commands
    arguments = re.findall(r"--build-arg (\w+)=", PAGES["docs/howto/deploy.md"])
    assert arguments and {("ARG", name) for name in arguments} <= {(n, t.partition("=")[0]) for n, t in instructions()}
