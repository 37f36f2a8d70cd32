"""Builds of tiny projects by the `aotbuild` command, in this process or in one of their own."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from aot.cli import main
from aot_runtime.bundle.reading import read_blob, read_index
from aot_runtime.contract.records import Index
from tests.support.session_builds import build_here

from .projects import KERNELS, SCALE, write_project


class Project:
    """A tiny project in a folder of its own, with its own cache and output."""

    def __init__(self, folder: Path, manifest: str = SCALE, kernels: str = KERNELS):
        self.folder, self.output, self.cache = folder, folder / "out", folder / "cache"
        self.manifest = write_project(folder, manifest, kernels)

    def command(self, *options: str, archs: tuple[str, ...] = ("gfx942",)) -> list[str]:
        targets = [item for arch in archs for item in ("--arch", arch)]
        return [*targets, str(self.manifest), "-o", str(self.output), "--cache-dir", str(self.cache), *options]

    def build(self, *options: str, archs: tuple[str, ...] = ("gfx942",), workers: bool = False) -> Result:
        """Build in this process. An exception that a user would see as a traceback fails the test.

        workers: whether worker processes compile, as they do elsewhere. To start one takes longer than a tiny kernel.
        """
        return self.invoke(self.command(*options, archs=archs), workers)

    @staticmethod
    def invoke(command: list[str], workers: bool = False) -> Result:
        """Run the command with these words."""
        result = CliRunner().invoke(main, command) if workers else build_here(command)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start a build in a process group of its own, as a shell does."""
        script = shutil.which("aotbuild", path=str(Path(sys.executable).parent)) or shutil.which("aotbuild")
        assert script, "aotbuild is not installed"
        command = [script, *self.command("--jobs", "1", *options)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)

    def folder_of(self, arch: str = "gfx942") -> Path:
        return self.output / f"tiny-{arch}"

    def bundle(self, arch: str = "gfx942") -> Index:
        """Return the index of a bundle, after checking that its every code object is what the index says."""
        index = read_index(self.folder_of(arch))
        for blob in index.blobs.values():
            read_blob(self.folder_of(arch), blob, arch)
        return index


def figures(result: Result | str) -> tuple[int, int]:
    """Return (compiled, from the cache) as a successful build reports them."""
    if isinstance(result, Result):
        assert result.exit_code == 0, result.output
        return figures(result.stdout)
    found = re.search(r"^(\d+) compiled, (\d+) from the cache, in \d+\.\d s$", result, re.MULTILINE)
    assert found, result
    return int(found[1]), int(found[2])


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
