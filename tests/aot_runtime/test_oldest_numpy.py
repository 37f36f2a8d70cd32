"""The runtime with the oldest numpy that it allows, in a virtual environment of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from aot_runtime import DeviceError
from tests.support.hip_double.double import DoubleLibrary

CHECKOUT = Path(__file__).parents[2]
TESTS = ("device", "bundle")
"""Tests that need neither the emulator nor the builder, which ask for a later numpy."""
TOOLS = ("pytest", "pytest-timeout", "hypothesis")
CALL = """
import numpy as np
from aot_runtime import open_bundle
small = open_bundle({bundle!r})
out = small.affine(np.ones((4, 32), np.float32))
print(np.__version__, out.shape, out.dtype, small.affine(small.device.array(out)).shape)
"""


def dependencies() -> list[str]:
    """Return the runtime's own dependencies as pip has them; of numpy the oldest release."""
    block = re.search(r"^dependencies = \[(.*?)^\]", (CHECKOUT / "pyproject.toml").read_text(), re.M | re.S)
    assert block
    found = re.findall(r'"(.+)"', block[1])
    return [re.sub(r"^numpy>=(\S+)$", r"numpy==\1.*", requirement) for requirement in found]


@pytest.fixture(scope="module")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the runtime's dependencies and the oldest numpy allowed."""
    folder = tmp_path_factory.mktemp("old")
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    installing = subprocess.run(
        [python, "-m", "pip", "install", "-q", *dependencies(), *TOOLS], capture_output=True, text=True
    )
    if installing.returncode and "No matching distribution" in installing.stderr:
        pytest.skip(f"for Python {sys.version.partition(' ')[0]}: {installing.stderr.splitlines()[-1]}")
    assert not installing.returncode, installing.stderr
    return python


def run(command: list[object], environment: dict[str, str]) -> str:
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (CHECKOUT, CHECKOUT / "runtime")))}
    child = subprocess.run(
        list(map(str, command)), cwd=CHECKOUT, env=os.environ | paths | environment, capture_output=True, text=True
    )
    assert not child.returncode, child.stdout[-4000:] + child.stderr[-4000:]
    return child.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_tests_of_the_runtime(old_python: Path):
    chosen = [CHECKOUT / "tests/aot_runtime" / name for name in TESTS]
    printed = run([old_python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen], {})
    assert int(re.findall(r"(\d+) passed", printed)[-1]) > 100, printed[-4000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_call(old_python: Path, hip_double: DoubleLibrary, small_bundle: Path):
    root = hip_double.path.parent.parent
    environment = {"ROCM_PATH": str(root), "LD_LIBRARY_PATH": str(root / "lib")}
    printed = run([old_python, "-c", CALL.format(bundle=str(small_bundle))], environment)
    assert re.fullmatch(r"1\.26\.\d+ \(4, 32\) float32 \(4, 32\)\n", printed), printed


def test_the_emulator_says_which_numpy_it_needs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(np, "__version__", "2.0.2")
    for name in [name for name in sys.modules if name == "aot_emulator"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(DeviceError, match=r"needs numpy 2\.1 .* this is 2\.0\.2: pip install 'aotbuild\[emulator\]'"):
        import aot_emulator  # noqa: F401
