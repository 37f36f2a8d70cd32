"""A small program under real Triton without a GPU, in processes of its own: captured once, and its cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aot_capture.records import Capture, read_capture
from tests.docs.scripts import ROOT

PROGRAM = Path(__file__).parent / "program"
ALL = "import kernels; kernels.launch_all()"


@dataclass
class Session:
    """A folder with the program's files, and commands run in it."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def kernels(self) -> Path:
        return self.folder / "kernels.py"

    def edit(self, old: str, new: str, file: str = "kernels.py") -> None:
        text = (self.folder / file).read_text()
        assert text.count(old) == 1
        (self.folder / file).write_text(text.replace(old, new))

    def aotbuild(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(map(str, (ROOT, ROOT / "runtime")))
        variables = {"PYTHONPATH": path, "TRITON_CACHE_DIR": str(self.folder / "own-cache"), **self.environment}
        return subprocess.run(
            [sys.executable, "-m", "aot", *map(str, arguments)],
            cwd=self.folder,
            env={**_clean(), **variables, **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def capture(
        self, script: str = ALL, *options: object, **environment: str
    ) -> tuple[Capture, subprocess.CompletedProcess[str]]:
        """Capture a script to kernels.jsonl."""
        result = self.aotbuild(
            "capture",
            "-o",
            "kernels.jsonl",
            "--arch",
            "gfx942",
            *options,
            "--",
            sys.executable,
            "-c",
            script,
            **environment,
        )
        return read_capture(self.folder / "kernels.jsonl"), result

    def run(self, script: str = ALL, *options: object, **environment: str) -> tuple[dict[str, Any], Any]:
        """Run a script under the guard; return its report."""
        result = self.aotbuild(
            "run", "--no-compile", "--arch", "gfx942", "--json", "report.json", *options,
            "--", sys.executable, "-c", script, **environment,
        )  # fmt: skip
        report = self.folder / "report.json"
        return json.loads(report.read_text()) if report.exists() else {}, result


def _clean() -> dict[str, str]:
    ours = ("TRITON", "AOTBUILD_CAPTURE", "AOTBUILD_NO_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """The program in a new folder."""
    shutil.copytree(PROGRAM, tmp_path, dirs_exist_ok=True)
    return Session(tmp_path)


@dataclass(frozen=True)
class Captured:
    """The program captured: the file, and the cache that Triton made meanwhile."""

    file: Path
    cache: Path
    capture: Capture


@pytest.fixture(scope="session")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    folder = tmp_path_factory.mktemp("captured")
    shutil.copytree(PROGRAM, folder, dirs_exist_ok=True)
    capture, result = Session(folder).capture()
    assert result.returncode == 0, result.stderr
    (folder / "own-cache").rename(folder / "moved")  # the lists in it hold absolute paths
    return Captured(folder / "kernels.jsonl", folder / "moved", capture)
