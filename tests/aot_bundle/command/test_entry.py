"""The commands without their requirements, and as modules."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name == {gone!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
sys.argv[1:] = ["--help"]
from {module}.__main__ import main
main()
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, cwd=Path.home())


@pytest.mark.parametrize(
    ("module", "gone", "said"),
    [
        ("aot", "triton", "aotbuild: error: building needs triton: pip install 'aotbuild[build]'\n"),
        ("aot", "click", "aotbuild: error: building needs click: pip install 'aotbuild[build]'\n"),
        ("aot_bundle", "click", "aotbundle: error: the commands need click: pip install aotbuild\n"),
    ],
)
def test_a_missing_package(module: str, gone: str, said: str):
    result = run("-c", WITHOUT.format(module=module, gone=gone))
    assert (result.returncode, result.stdout, result.stderr) == (2, "", said)


HIDDEN = """
from importlib import util
util.find_spec = lambda name, *rest, find=util.find_spec: None if name == "tinygrad" else find(name, *rest)
from aot_bundle.__main__ import main
main()
"""


@pytest.mark.parametrize("words", [("profile", "copy", "--shape", "x=2,3"), ("isa",)], ids=lambda words: words[0])
def test_without_the_emulator_there_is_nothing_to_answer(small_bundle: Path, words: tuple[str, ...]):
    command, *rest = words
    result = run("-c", HIDDEN, command, str(small_bundle), *rest)
    assert (result.returncode, result.stdout) == (2, "")
    assert "the emulator needs tinygrad's tables of instructions: pip install 'aotbuild[emulator]'" in result.stderr


@pytest.mark.parametrize(("module", "name"), [("aot", "aotbuild"), ("aot_bundle", "aotbundle")])
def test_as_a_module(module: str, name: str):
    result = run("-m", module, "--help")
    assert result.returncode == 0 and result.stdout.startswith(f"Usage: {name} ")
