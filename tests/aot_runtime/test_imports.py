"""The runtime is independent: it imports nothing of the builder, Triton or torch."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import aot
import aot_runtime
from tests.support.hip_double.double import DoubleLibrary
from tests.support.sources import sources

MAX_LINES = 7504
"""Maximum number of lines of the runtime that an open and a first call over HIP load."""
MAX_IMPORT = 0.4
"""Maximum CPU time to import `open_bundle`, as a fraction of numpy's. It takes about 12 ms, numpy 45."""
PACKAGES = ("aot_runtime", "aot_bundle", "aot_emulator")
RUNTIME = Path(__file__).parents[2] / "runtime"
BLOCKED = """
import sys
class Blocked:
    NAMES = ("triton", "torch", "aot", "pydantic", "ruamel", "pebble", "kernels", "yaml")
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.NAMES:
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Blocked())
for name in Blocked.NAMES:
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
    modules = [".".join(path.relative_to(RUNTIME).with_suffix("").parts) for path in sorted(sources(RUNTIME, PACKAGES))]
    names = [name.removesuffix(".__init__") for name in modules]
    assert {"aot_runtime", "aot_bundle.command.main", "aot_runtime.device.drivers.hip"} <= set(names)
    run(f"import importlib\nfor name in {names!r}: importlib.import_module(name)")


def test_importing_the_runtime_imports_no_binding():
    """A machine without a GPU may look at bundles, and an import should be quick."""
    printed = run(
        "before = set(sys.modules)\nfrom aot_runtime import DeviceArray, get_device, open_bundle\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    ).split()
    assert not {"hip", "rocm", "cuda", "elftools", "click", "rich", "ml_dtypes", "pytest"} & set(printed)
    assert {"numpy", "aot_runtime"} <= set(printed)


def test_the_import_is_short_beside_numpys(tmp_path: Path):
    """Times are taken in one process each, with numpy's modules and msgspec loaded before those of the runtime."""
    script = """
from time import process_time
start = process_time()
import numpy
middle = process_time()
import msgspec
before = process_time()
from aot_runtime import open_bundle
print((process_time() - before) / (middle - start))
"""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", script]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True, env=environment) for _ in range(6)]
    parts = [float(run.stdout) for run in runs[1:]]  # the first run compiles
    assert statistics.median(parts) <= MAX_IMPORT


def test_an_open_and_a_call_load_what_they_need(hip_double: DoubleLibrary, small_bundle: Path):
    """Modules for errors, graphs, recordings, exchange with other libraries and archives are loaded when needed."""
    printed = hip_double.run_text(f"""
import sys
import numpy as np
from aot_runtime import open_bundle
open_bundle({str(small_bundle)!r}, "hip").affine(np.ones((2, 3), np.float32))
print("numpy.ma" in sys.modules, *(name for name in sys.modules if name.startswith("aot_runtime")))
""").split()
    later = {
        "bundle.archive", "bundle.codeobject", "bundle.multi_archive", "bundle.search", "bundle.source",
        "call.advice", "call.aliasing", "call.alternatives", "call.calls_file", "call.index_tensors", "call.display",
        "call.entries", "call.explanation", "call.recording", "call.refusal", "contract.gpu_names",
        "contract.index_encoding", "contract.manifest_rules", "contract.overlap", "contract.partial_evaluation",
        "contract.peaks", "contract.provenance", "contract.tensor_maps", "contract.versions",
        "device.dlpack", "device.drivers.current", "device.drivers.launch_config", "device.drivers.protocol",
        "device.exporting", "device.foreign", "device.graph", "device.protocol", "device.streams", "device.views",
        "folders", "formats", "installed",
        "regular_files", "trust.policy", "trust.reader",
    }  # fmt: skip
    masked, *names = printed
    assert {f"aot_runtime.{name}" for name in later}.isdisjoint(names) and masked == "False"
    files = (RUNTIME / f"{name.replace('.', '/')}.py" for name in names)
    assert sum(len(file.read_text().splitlines()) for file in files if file.exists()) <= MAX_LINES


def test_the_version_is_that_of_the_package():
    assert aot_runtime.__version__ == aot.__version__ == metadata.version("aotbuild")


def test_calling_an_op(hip_double: DoubleLibrary, small_bundle: Path):
    script = f"""
import numpy as np
from aot_runtime import open_bundle
small = open_bundle({str(small_bundle)!r})
out = small.affine(np.ones((4, 32), np.float32))
print(out.shape, out.dtype, small.affine(small.device.array(out)).shape)
"""
    assert hip_double.run_text(BLOCKED + script) == "(4, 32) float32 (4, 32)\n"


def test_the_commands(small_bundle: Path):
    commands = [["verify"], ["ls"], ["explain", "affine", "--shape=x=4,32", "--dtype=T=float16"]]
    commands += [["selftest", "--device=emulator"]]
    run(f"""
from aot_bundle.command.main import main
for command, *options in {commands!r}:
    try: main([command, {str(small_bundle)!r}, *options])
    except SystemExit as end: assert not end.code, command
""")
