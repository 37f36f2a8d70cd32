"""Builds of tiny projects by the `aotbuild` command, in this process or in one of their own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from aot.cli import main
from aot_runtime.bundle.reading import read_blob, read_index
from aot_runtime.contract.records import Index
from tests.support.building.projects import KERNELS, SCALE, write_project


class Project:
    """A tiny project in a folder of its own, with its own cache and output."""

    def __init__(self, folder: Path, manifest: str = SCALE, kernels: str = KERNELS):
        self.folder, self.output, self.cache = folder, folder / "out", folder / "cache"
        self.manifest = write_project(folder, manifest, kernels)

    def command(self, *options: str, archs: tuple[str, ...] = ("gfx942",)) -> list[str]:
        targets = [item for arch in archs for item in ("--arch", arch)]
        places = [str(self.manifest), "-o", str(self.output), "--cache-dir", str(self.cache)]
        return [*targets, *places, "--jobs", "1", *options]  # starting a worker takes longer than a tiny kernel

    def build(self, *options: str, archs: tuple[str, ...] = ("gfx942",)) -> Result:
        """Build in this process. An exception that a user would see as a traceback fails the test."""
        result = CliRunner().invoke(main, self.command(*options, archs=archs))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start a build in a process group of its own, as a shell does."""
        script = shutil.which("aotbuild", path=str(Path(sys.executable).parent)) or shutil.which("aotbuild")
        assert script, "aotbuild is not installed"
        return subprocess.Popen(
            [script, *self.command(*options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def bundle(self, arch: str = "gfx942") -> Index:
        """The index of a bundle whose every code object is what the index says."""
        folder = self.output / f"tiny-{arch}"
        index = read_index(folder)
        for blob in index.blobs.values():
            read_blob(folder, blob, arch)
        return index


def figures(result: Result | str) -> tuple[int, int]:
    """(compiled, from the cache) as a build that went well reports them."""
    if isinstance(result, Result):
        assert result.exit_code == 0, result.output
        return figures(result.stdout)
    found = re.search(r"^(\d+) compiled, (\d+) from the cache, in \d+\.\d s$", result, re.MULTILINE)
    assert found, result
    return int(found[1]), int(found[2])


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
