"""The small program of tests/aot_capture, captured under real Triton without a GPU and built for what it ran on."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from click.testing import CliRunner

from aot.cli import main
from aot.command.programs import triton_target
from aot.targets import parse_arch
from tests.aot_capture.conftest import PROGRAM, Session

LANES = {"gfx942": 64, "sm_90": 32}


def with_device(arch: str) -> str:
    """The script with a driver on which autotuners measure, as on a GPU. Without one, no results are recorded."""
    target = triton_target(parse_arch(arch))
    device = f"from aot_capture.no_gpu import NoGpuDriver; triton.runtime.driver.set_active(NoGpuDriver({target!r}))"
    return f"import triton; {device}; {script(arch)}"


def script(arch: str) -> str:
    """Every kernel of the program, with its autotuned ones. HIP before Triton 3.7 imports torch."""
    torch = "import sys, types; sys.modules.setdefault('torch', types.SimpleNamespace(Tensor=type, dtype=type))"
    launches = f"k.launch_all({LANES[arch]}); k.tuned[(1,)](k.X, 64); k.tuned_with_hook[(1,)](k.X, 64)"
    return f"{torch}; import kernels as k; {launches}"


@dataclass(frozen=True)
class Built:
    """A program's folder with kernels.jsonl, the cache that its JIT filled, and dist/ with what was built."""

    session: Session
    arch: str

    @property
    def file(self) -> Path:
        return self.session.folder / "kernels.jsonl"

    @property
    def shipped(self) -> Path:
        return self.session.folder / "dist" / f"kernels-{self.arch}-cache"

    @property
    def manifest(self) -> dict[str, Any]:
        return json.loads((self.shipped / "captured.json").read_text())

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def aotbuild(self, *arguments: object, **environment: str) -> Any:
        return self.session.aotbuild(
            *arguments, AOTBUILD_CACHE_DIR=str(self.session.folder / "our-cache"), **environment
        )

    def capture(self, python: str = sys.executable) -> Any:
        return self.aotbuild("capture", "-o", "kernels.jsonl", "--", python, "-c", with_device(self.arch))

    def build(self, *options: object, arch: str = "", file: str = "kernels.jsonl") -> Any:
        """Run `aotbuild` in this process: to import the builder takes longer than what most tests ask of it."""
        words = [str(word) for word in ("--arch", arch or self.arch, "-j", 2, *options, file)]
        with chdir(self.session.folder):
            result = CliRunner().invoke(main, words, env={"AOTBUILD_CACHE_DIR": str(self.session.folder / "our-cache")})
        return CompletedProcess(words, result.exit_code, result.stdout, result.stderr)

    def run(self, *options: object, arch: str = "", **environment: str) -> tuple[dict[str, Any], Any]:
        """Run the program again under the guard."""
        arch = arch or self.arch
        return self.session.run(script(self.arch), "--arch", arch, *options, **environment)


def copied(built: Built, folder: Path) -> Built:
    """Copy the program to another folder, without the files that the JIT and the builder made."""
    folder.mkdir()
    for name in ("kernels.py", "helpers.py", "kernels.jsonl"):
        shutil.copy(built.session.folder / name, folder)
    for name in ("dist", "our-cache"):
        shutil.copytree(built.session.folder / name, folder / name)
    return Built(Session(folder), built.arch)


def _made(folder: Path, arch: str) -> Built:
    shutil.copytree(PROGRAM, folder, dirs_exist_ok=True)
    made = Built(Session(folder), arch)
    result = made.capture()
    assert result.returncode == 0, result.stderr
    result = made.build()
    assert result.returncode == 0, result.stderr
    return made


@pytest.fixture(scope="session")
def on_amd(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return _made(tmp_path_factory.mktemp("gfx942"), "gfx942")


@pytest.fixture(scope="session")
def on_nvidia(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return _made(tmp_path_factory.mktemp("sm_90"), "sm_90")


@pytest.fixture(params=["on_amd", "on_nvidia"])
def built(request: pytest.FixtureRequest) -> Built:
    found: Built = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def own(on_amd: Built, tmp_path: Path) -> Built:
    """The program captured for gfx942 and built, in a folder of the test's own."""
    return copied(on_amd, tmp_path / "own")
