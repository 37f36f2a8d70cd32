"""The runtime stands alone: nothing of the builder, of triton or of torch is there when it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hip_double.double import DoubleLibrary

RUNTIME = Path(__file__).parents[2] / "runtime"

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("triton", "torch", "aot", "pydantic", "ruamel", "pebble", "kernels", "yaml",
        "rich"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Blocked())
for name in ("triton", "torch", "aot"):
    try: __import__(name)
    except ImportError: pass
    else: raise AssertionError(f"{name} could be imported")
"""


def run(script: str) -> str:
    """Run a script in a fresh interpreter in which the builder and its dependencies cannot be imported."""
    child = subprocess.run([sys.executable, "-c", BLOCKED + script], capture_output=True, text=True, timeout=60)
    assert child.returncode == 0, child.stderr
    return child.stdout


def test_every_module_of_the_runtime():
    modules = [".".join(path.relative_to(RUNTIME).with_suffix("").parts) for path in sorted(RUNTIME.rglob("*.py"))]
    names = [name.removesuffix(".__init__") for name in modules]
    assert {"aot_runtime", "aot_runtime.command.main", "aot_runtime.device.drivers.hip"} <= set(names)
    run(f"import importlib\nfor name in {names!r}: importlib.import_module(name)")


def test_importing_the_runtime_imports_no_binding():
    """A machine without a GPU may look at bundles; and an import should not take long."""
    printed = run(
        "before = set(sys.modules)\nfrom aot_runtime import DeviceArray, get_device, open_bundle\n"
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    for heavy in ("hip", "rocm", "cuda", "elftools", "msgpack", "click", "ml_dtypes", "hypothesis", "pytest"):
        assert f"'{heavy}'" not in printed, heavy
    assert "'numpy'" in printed and "'aot_runtime'" in printed


def test_looking_at_a_bundle(bundles: Path):
    printed = run(f"""
from pathlib import Path
from aot_runtime.bundle.reading import read_index
from aot_runtime.call.callspec import CallSpec, plan_call
from aot_runtime.call.planner import op_planner
from aot_runtime.bundle.verification import verify_bundle

folder = Path({str(bundles / "small-gfx942")!r})
assert verify_bundle(folder) == []
index = read_index(folder)
found = plan_call(index, op_planner(index, "affine"), CallSpec(shapes={{"x": (4, 32)}}, dtypes={{"T": "float16"}}), 304)
print(found.launches[0].variant.symbol, found.launches[0].grid, found.aligned)
""")
    assert printed == "affine_rows (4, 1, 1) True\n"


def test_calling_an_op(hip_double: DoubleLibrary, bundles: Path):
    printed = hip_double.run(
        BLOCKED
        + f"""
import numpy as np
from aot_runtime import open_bundle

small = open_bundle({str(bundles / "small-gfx942")!r})
out = small.affine(np.ones((4, 32), np.float32))
print(out.shape, out.dtype, small.affine(small.device.array(out)).shape)
assert not {{"triton", "torch", "aot"}} & set(sys.modules)
"""
    )
    assert printed == "(4, 32) float32 (4, 32)\n"


@pytest.mark.parametrize(
    "command", [["verify", "BUNDLE"], ["ls", "BUNDLE"], ["selftest", "BUNDLE", "--device", "emulator"]]
)
def test_the_command(bundles: Path, command: list[str]):
    arguments = [str(bundles / "small-gfx942") if word == "BUNDLE" else word for word in command]
    run(f"sys.argv = ['aotbundle', *{arguments!r}]\nfrom aot_runtime.command.main import main\nmain()")
