"""README.md: its script is the example, its commands are those of CI, its table is the builder's."""

from __future__ import annotations

import os
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from aot.targets import TARGETS
from tests.docs.markdown import blocks, section, table
from tests.docs.scripts import ROOT, run_blocks
from tests.rocm.packages import SUITES
from tests.support.hip_double.double import DoubleLibrary

README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    return [line for block in blocks(README, "sh") for line in block.text.splitlines()]


def test_the_script_is_the_example():
    (block,) = blocks(README, "python")
    assert block.comment == "file: examples/attention_numpy.py"
    assert block.text == (ROOT / "examples/attention_numpy.py").read_text(encoding="utf-8")
    assert "`python examples/attention_numpy.py dist/attention-gfx942`" in README


def test_targets_and_tiers():
    documented = {
        (arch, tier) for tier, *cells in table(section(README, "Targets")) for c in cells for arch in c.split()
    }
    assert documented == {(target.arch, target.tier) for target in TARGETS}


def test_ci_runs_the_readmes_test_command_and_the_release_check(tmp_path: Path):
    """The script runs with stand-ins for its commands, which log their arguments."""
    log = tmp_path / "log"
    for name in ("python3", "python", "pip", "ruff", "mypy", "lint-imports", "mkdocs", "pytest"):
        fake = tmp_path / "bin" / name
        fake.parent.mkdir(exist_ok=True)
        fake.write_text(f'#!/bin/sh\necho "{name} $*" >> "{log}"\n')
        fake.chmod(0o755)
    # The virtual environment's activation is the one thing that the script needs of the first command.
    (tmp_path / "bin/python3").write_text('#!/bin/sh\nmkdir -p "$3/bin" && : > "$3/bin/activate"\n')
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([str(ROOT / ".ci/run")], cwd=tmp_path, env=environment, check=True)
    (test_command,) = (line for line in commands() if "pytest" in line)
    install, run = test_command.split(" && ")
    plain = install.replace("'", "")
    called = [line.rstrip() for line in log.read_text().splitlines()]
    checks = ["ruff check .", "mypy", "lint-imports", "mkdocs build --strict"]
    kept = tmp_path / "cache/aotbuild-release"
    selections = (
        "--within 120 --each 1 tests/ops",
        "--within 300 tests/aot_runtime tests/aot/c tests/rocm",
    )
    rocm = [f"pytest --on rocm --rocm {release} {selected}" for release in SUITES for selected in selections]
    release = f"python -m tests.release --cache {kept}"
    assert called == [plain, *checks, plain, run, "pytest -n auto models", *rocm, release]


def test_extras_and_commands_exist():
    package = metadata.metadata("aotbuild")
    scripts = {script.name for script in metadata.entry_points(group="console_scripts")}
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for folder, distribution in ((".", "aotbuild"), ("./runtime", "aot-runtime")):
            found = re.findall(rf"'{re.escape(folder)}\[([\w,]+)\]'", text)
            named = {extra for extras in found for extra in extras.split(",")}
            assert named and named <= set(metadata.metadata(distribution).get_all("Provides-Extra"))
    assert {"aotbuild", "aotbundle"} <= scripts
    assert section(README, "Licence").strip().startswith(package["License-Expression"])


@pytest.mark.parametrize("line", [line for line in commands() if "aotbuild" in line])
def test_build_commands_are_right(line: str):
    pytest.importorskip("triton")
    from click.testing import CliRunner

    from aot.cli import main

    arguments = line.partition("aotbuild ")[2].split()
    result = CliRunner().invoke(main, [*arguments[:-1], "--dry-run", str(ROOT / arguments[-1])])
    assert result.exit_code == 0, result.output


def test_the_foreign_examples_page(hip_double: DoubleLibrary, foreign_bundle: Path, tmp_path: Path):
    page = (ROOT / "examples/foreign/README.md").read_text(encoding="utf-8")
    (tmp_path / "dist").symlink_to(foreign_bundle.parent)
    (block,) = blocks(page, "python")
    hip_double.run(run_blocks, str(foreign_bundle), str(tmp_path), block.text)
