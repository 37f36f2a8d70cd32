"""Time to open a bundle as a folder, as an archive, and as one of several in a file; the emulator executes.

    aotbuild --arch gfx942,gfx1201 manifests/first.yaml
    python benchmarks/opening.py dist/first-gfx942 dist/first-gfx1201

Each run is a process of its own (its script is in benchmarks/cold): it opens the first bundle and makes the call of its
smallest selftest case, whose result is checked. All ways take turns, and one run of each beforehand fills the page
cache. `process` is from before a process starts to the result, `CPU` the time of the processor that it takes, which
other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import ast
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from measure import machine, median, table, versions

from aot_bundle.packing import merge_bundles, pack_bundle
from aot_runtime import AotError
from aot_runtime.bundle.reading import read_index

SCRIPT = Path(__file__).parent / "cold/opened.py"
FOLDER = "folder"


@dataclass(frozen=True)
class Run:
    """Seconds of a process: all of it, of the processor, to open the bundle, and to make the first call."""

    process: float
    cpu: float
    opened: float
    called: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+", help="the bundle's folder; others for the same file")
    parser.add_argument("-n", "--runs", type=int, default=20, help="measured runs of each way (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        try:
            index = read_index(options.bundles[0])
            ways = ways_of(options.bundles, Path(name))
        except AotError as error:
            sys.exit(f"opening.py: {error}")
        print(machine())
        print(f"{index.name} for {index.target.arch}, {len(index.variants)} variants; {versions('numpy', 'msgspec')}")
        print(f"load of the machine: {os.getloadavg()[0]:.1f}\n")
        print(report({way: (path, index.target.arch) for way, path in ways.items()}, options.runs))


def ways_of(bundles: list[Path], folder: Path) -> dict[str, Path]:
    """Every way with the path that is opened. Raises `AotError`."""
    pack_bundle(bundles[0], folder / "one.aotb")
    ways = {FOLDER: bundles[0], "archive": folder / "one.aotb"}
    if len(bundles) > 1:
        merge_bundles(bundles, folder / "several.aotb")
        ways["several architectures"] = folder / "several.aotb"
    return ways


def run(path: Path, arch: str) -> Run:
    """Time one process. Exits with its error."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    child = subprocess.run([sys.executable, str(SCRIPT), str(path), arch], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if child.returncode:
        sys.exit(f"opening.py: {(child.stderr.strip().splitlines() or ['it failed'])[-1]}")
    imported, opened, called = ast.literal_eval(child.stdout)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(called - start, cpu, opened - imported, called - opened)


def report(ways: dict[str, tuple[Path, str]], runs: int) -> str:
    """Medians of every way, and each beside the folder's."""
    found: dict[str, list[Run]] = {name: [] for name in ways}
    for number in range(runs + 1):
        for name, way in ways.items():
            measured = run(*way)
            if number:
                found[name].append(measured)
    rows = []
    for name in found:
        cells = [name]
        for field in ("opened", "called", "process", "cpu"):
            of_folder, own = (median([getattr(item, field) for item in found[way]]) for way in (FOLDER, name))
            cells.append(f"{1e3 * own:.1f} ({own / of_folder - 1:+.1%})")
        rows.append(cells)
    return table(("medians, ms", "open_bundle", "first call", "process", "CPU"), rows)


if __name__ == "__main__":
    main()
